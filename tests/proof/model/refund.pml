/* The life of one refund: draw, lease, activate, claim, ask, send, record, release; under every fault, in every order.
 *
 * README.md beside this file says how to read it. Each call of a SQL function is one atomic step, for a fenced call holds
 * the gate shared and activation holds it exclusively; transactions that stay open are in transaction.pml, several
 * refunds in batch.pml. A pause needs no step of its own: any process may rest for as long as the others like.
 *
 * Tokens count from 1. Workers are 1 to WORKERS, the fresh one that comes last is WORKERS + 1, a person by hand is 0.
 */
#include "checks.inc"

/* ---- How much happens in one search ---- */
#ifndef WORKERS
#define WORKERS 2
#endif
#ifndef STARTS
#define STARTS 1                    /* how often each worker starts */
#endif
#ifndef LOST
#define LOST 1                      /* replies that are lost: the call was carried out and is made again */
#endif
#ifndef MAX_ATTEMPTS
#define MAX_ATTEMPTS 0              /* 0: not counted */
#endif

/* ---- What may happen besides: 0 never, 1 at any moment, once ---- */
#ifndef FRESH_WORKER
#define FRESH_WORKER 0              /* the faults stop, and a fresh worker starts */
#endif
#ifndef INTRUDER
#define INTRUDER 0                  /* somebody types a number that nobody drew */
#endif
#ifndef FORGETS_TO_ACTIVATE
#define FORGETS_TO_ACTIVATE 0       /* a client leaves the activation out */
#endif
#ifndef MIXES_TOKENS
#define MIXES_TOKENS 0              /* a client confirms under its new token what it sent under its old one */
#endif
#ifndef DECLINES
#define DECLINES 1                  /* the gateway may decline, once, and have an error, once */
#endif
#ifndef LATER_WORD
#define LATER_WORD 0                /* the gateway may accept, and give its final word later */
#endif
#ifndef SHORT_MEMORY
#define SHORT_MEMORY 0              /* the gateway doesn't remember what it declined */
#endif
#ifndef KEY_ENDS
#define KEY_ENDS 0                  /* the key window passes; after it the gateway forgets the key */
#endif
#ifndef PERSON
#define PERSON 0                    /* moves by a person: cancel, review, resolve, requeue, return; so many */
#endif
#ifndef LEASE_BROKEN
#define LEASE_BROKEN 0              /* an operator breaks a lease */
#endif
#ifndef BY_HAND
#define BY_HAND 0                   /* an operator puts the refund right by hand */
#endif
#ifndef FAILOVER
#define FAILOVER 0                  /* the server goes back to an earlier commit; 1: recovered at once, 2: after a while */
#endif
#ifndef CRASH_OF_POSTGRES
#define CRASH_OF_POSTGRES 0         /* what wasn't flushed is lost */
#endif

/* ---- The guards: 1 in force, 0 taken away ---- */
#ifndef DRAW_BEFORE_LEASE
#define DRAW_BEFORE_LEASE 1
#endif
#ifndef ACTIVATION
#define ACTIVATION 1                /* 0: drawing raises the fence at once */
#endif
#ifndef BARRIER
#define BARRIER 1                   /* activating voids every number drawn up to then, higher ones too */
#endif
#ifndef FENCE_RISES
#define FENCE_RISES 1
#endif
#ifndef SWAP_COMPARES
#define SWAP_COMPARES 1             /* drawing again: the lease is shown to be one's own */
#endif
#ifndef RENEW_COMPARES
#define RENEW_COMPARES 1
#endif
#ifndef RELEASE_COMPARES
#define RELEASE_COMPARES 1
#endif
#ifndef FENCE
#define FENCE 1                     /* 0: any drawn number passes, only the row is compared */
#endif
#ifndef ONLY_DRAWN
#define ONLY_DRAWN 1                /* LG102 */
#endif
#ifndef ONLY_ACTIVATED
#define ONLY_ACTIVATED 1            /* LG105 */
#endif
#ifndef FENCE_AT_SETTLING
#define FENCE_AT_SETTLING 1
#endif
#ifndef ROW_NOT_NEWER
#define ROW_NOT_NEWER 1             /* LG101, row */
#endif
#ifndef OWN_CLAIM_ONLY
#define OWN_CLAIM_ONLY 1            /* LG203: what is settled was claimed under this token */
#endif
#ifndef OWN_RETRY_PASSES
#define OWN_RETRY_PASSES 1          /* activating and claiming again under one token is no violation */
#endif
#ifndef OWN_RECORD_RECOGNISED
#define OWN_RECORD_RECOGNISED 1     /* "already recorded" is said before "stale" */
#endif
#ifndef FINISHED_IS_FINAL
#define FINISHED_IS_FINAL 1         /* LG202 */
#endif
#ifndef REVIEW_WAITS_FOR_A_PERSON
#define REVIEW_WAITS_FOR_A_PERSON 1 /* LG204 */
#endif
#ifndef UNKNOWN_IS_TAKEN_OVER
#define UNKNOWN_IS_TAKEN_OVER 1
#endif
#ifndef TAKEOVER_MARKS
#define TAKEOVER_MARKS 1
#endif
#ifndef RECLAIM_MARKS
#define RECLAIM_MARKS 1
#endif
#ifndef DOUBT_MARKS
#define DOUBT_MARKS 1               /* what leaves a claim for unknown, accepted or review may be at the gateway */
#endif
#ifndef MARKED_IS_NOT_RELEASED
#define MARKED_IS_NOT_RELEASED 1    /* it goes to unknown, not to pending */
#endif
#ifndef MARKED_IS_NOT_CANCELLED
#define MARKED_IS_NOT_CANCELLED 1
#endif
#ifndef REQUEUE_MARKS
#define REQUEUE_MARKS 1
#endif
#ifndef NOT_WHILE_SENDING
#define NOT_WHILE_SENDING 1         /* no person moves a refund that is sending */
#endif
#ifndef REVIEW_IS_COMMITTED
#define REVIEW_IS_COMMITTED 1       /* 0: raised as an error, which undoes the move to review */
#endif
#ifndef KEY_WINDOW
#define KEY_WINDOW 1
#endif
#ifndef SERVER_IS_CHECKED
#define SERVER_IS_CHECKED 1         /* LG106 until recovery */
#endif
#ifndef DRAW_CHECKS_SERVER
#define DRAW_CHECKS_SERVER 1
#endif
#ifndef PERSON_CHECKS_SERVER
#define PERSON_CHECKS_SERVER 1
#endif
#ifndef RECOVERY
#define RECOVERY 1
#endif
#ifndef RECOVERY_LIFTS_FENCE
#define RECOVERY_LIFTS_FENCE 1      /* 0: the sequence only */
#endif
#ifndef RECOVERY_MARKS
#define RECOVERY_MARKS 1
#endif
#ifndef DRAW_IS_DURABLE
#define DRAW_IS_DURABLE 1
#endif
#ifndef BREAK_FENCES
#define BREAK_FENCES 1
#endif
#ifndef BREAK_COMPARES
#define BREAK_COMPARES 1
#endif
#ifndef HAND_TAKES_LEASE
#define HAND_TAKES_LEASE 1
#endif
#ifndef HAND_FAILS_ON_ANSWER_ONLY
#define HAND_FAILS_ON_ANSWER_ONLY 1 /* 0: by hand, failed because the gateway had nothing */
#endif
#ifndef ASKS_FIRST
#define ASKS_FIRST 1
#endif
#ifndef FAILS_IF_REMEMBERED_ONLY
#define FAILS_IF_REMEMBERED_ONLY 1
#endif
#ifndef FAILS_IF_DECLINED_ONLY
#define FAILS_IF_DECLINED_ONLY 1    /* 0: failed on an error, too */
#endif

/* ---- What is assumed of the gateway: 1 it holds, 0 it doesn't ---- */
#ifndef KEY
#define KEY 1                       /* a second request under the key moves no money */
#endif
#ifndef KEY_OUTLIVES_REQUESTS
/* nothing claimed within the key window is sent after the key is forgotten, nor recorded what a person saw before that */
#define KEY_OUTLIVES_REQUESTS 1
#endif

/* ---- The words ---- */
mtype = { pending, sending, sent, failed, unknown, accepted, review, cancelled, returned };           /* states */
mtype = { none, claimed, reclaimed, taken_over, attempts_used_up, key_window_over, stale, refused, done };  /* outcomes */
mtype = { Nothing, InFlight, Sent, Accepted, Declined, NotRemembered, Unknown };        /* answers of the gateway */
#define TYPED 30                    /* a number that nobody draws */
#define BY_PERSON_HERE 100          /* the lease is a person's */

/* ---- Postgres ---- */
byte last_drawn = 0;                /* the sequence */
byte active_token = 0;                    /* the fence: the active token */
byte barrier = 0;                   /* and the last number drawn when it was raised */
mtype state = pending;              /* the refund's row */
byte row_token = 0;
bit maybe_sent = 0;
byte attempts = 0;
bit was_claimed = 0;                /* first_claimed_at is set */
bit window_over = 0;                /* and longer ago than the key window */
bit is_new_server = 0;              /* promoted or restored, and not recovered */
byte unflushed = 0;                 /* draws that a crash of Postgres would lose */
/* ---- Redis ---- */
byte lease = 0;                     /* 0 free, or whose: worker * 4 + start */
/* ---- The gateway ---- */
mtype request[WORKERS + 2] = Nothing;   /* of each worker: InFlight, then the answer */
byte orphans = 0;                   /* requests in flight whose sender has gone */
mtype has = Nothing;                /* what it has under the refund's key */
byte movements = 0;                 /* of money */
bit has_forgotten = 0; bit has_declined = 0; bit has_erred = 0;
/* ---- What only the observer knows ---- */
byte newest = 0;                    /* the token activated last, by whatever became of it */
int handed_out = 0; byte highest = 0;   /* numbers drawn */
byte holders = 0;                   /* whose lease has never ended */
byte fenced_out = 0;                /* up to here an operator or a recovery has fenced out */
byte broken = 0;                    /* the token of the holder whose lease was broken */
byte claimer = 0;                   /* who claimed last */
byte may_send = 0;                  /* who has a claim and may yet send */
bit was_sent = 0;                   /* some request was sent, ever */
bit is_looking = 0;                 /* a person has looked at the gateway, and not recorded it yet */
byte lost = LOST; byte ended = 0; bit calm = 0;     /* calm: the faults have stopped */

#define IS_FINISHED(s) (s == sent || s == failed || s == cancelled || s == returned)
#define IS_OVER (IS_FINISHED(state) || state == review || (LATER_WORD && state == accepted))
#define WITHOUT(set, who) (set & (255 - BIT(who)))

/* ================ sql/ ================ */

#define IS_DRAWN(token) (token <= last_drawn)

/* judge_token: who passes the gate */
#define PASSES(token) (!(is_new_server && SERVER_IS_CHECKED) && token > 0 && ( \
       token == active_token \
    || (!FENCE && IS_DRAWN(token)) \
    || (!ONLY_ACTIVATED && token > active_token && IS_DRAWN(token)) \
    || (!ONLY_DRAWN && token > active_token)))

#define MAY_ACTIVATE(token) ((IS_DRAWN(token) || !ONLY_DRAWN) && ( \
       (BARRIER && FENCE_RISES && token > barrier) \
    || (!BARRIER && FENCE_RISES && token > active_token) \
    || (!FENCE_RISES && token != active_token)))

/* Every write under a token goes through here. */
inline write(to, token) {
    if :: token != newest -> VIOLATED(one_writer) :: else fi;
    if :: (handed_out & BIT(token)) == 0 -> VIOLATED(only_drawn_numbers) :: else fi;
    if :: broken != 0 && token == broken -> VIOLATED(broken_is_out) :: else fi;
    if :: state == review && to != review -> VIOLATED(finished_stays) :: else fi;
    unflushed = 0;
    move(to);
    row_token = token
}
/* Every change of the state goes through here. */
inline move(to) {
    if :: IS_FINISHED(state) && to != state && !(state == sent && to == returned) -> VIOLATED(finished_stays) :: else fi;
    if :: to == sent && movements != 1 -> VIOLATED(record_is_true) :: else fi;
    if :: (to == failed || to == cancelled) && movements != 0 -> VIOLATED(record_is_true) :: else fi;
    state = to
}

inline draw_token(token) {
    last_drawn++; token = last_drawn;
    unflushed = (DRAW_IS_DURABLE -> 0 : unflushed + 1);
    if :: handed_out & BIT(token) -> VIOLATED(only_drawn_numbers) :: else fi;
    handed_out = handed_out | BIT(token);
    highest = (token > highest -> token : highest);
    if :: !ACTIVATION -> active_token = token; barrier = token; newest = token :: else fi
}

inline activate_token(token, is_active) {
    if
    :: is_new_server && SERVER_IS_CHECKED -> is_active = 0
    :: else ->
        if
        :: token == active_token -> is_active = OWN_RETRY_PASSES; REACHED(activated_again)
        :: token != active_token && MAY_ACTIVATE(token) ->
            is_active = 1; active_token = token; unflushed = 0;
            barrier = (barrier < last_drawn -> last_drawn : barrier);
            if :: (handed_out & BIT(token)) == 0 -> VIOLATED(only_drawn_numbers) :: else fi;
            if :: token < newest -> VIOLATED(one_writer) :: else fi;
            newest = token
        :: else -> is_active = 0
        fi
    fi
}

/* claim_outcome, from below: what stands last wins, as the first `when` does in SQL */
inline claim_outcome(token, outcome) {
    outcome = (state == pending && !maybe_sent -> claimed : taken_over);
    outcome = (MAX_ATTEMPTS && attempts >= MAX_ATTEMPTS -> attempts_used_up : outcome);
    outcome = (state == sending && row_token == token -> (OWN_RETRY_PASSES -> reclaimed : stale) : outcome);
    outcome = (KEY_WINDOW && window_over && (state != pending || maybe_sent) -> key_window_over : outcome);
    outcome = (state == unknown && (row_token == token || !UNKNOWN_IS_TAKEN_OVER) -> refused : outcome);
    outcome = (state == accepted || (state == review && REVIEW_WAITS_FOR_A_PERSON) -> refused : outcome);
    outcome = (IS_FINISHED(state) && FINISHED_IS_FINAL -> refused : outcome);
    outcome = (ROW_NOT_NEWER && row_token > token -> stale : outcome);
    outcome = (PASSES(token) -> outcome : stale)
}

inline claim_refund(token, who, outcome) {
    claim_outcome(token, outcome);
    if
    :: outcome == claimed || outcome == reclaimed || outcome == taken_over ->
        if :: outcome == claimed && (was_sent || WITHOUT(may_send, who)) -> VIOLATED(claim_tells) :: else fi;
        if :: outcome == claimed -> was_claimed = 1; window_over = 0
           :: outcome == taken_over -> maybe_sent = maybe_sent | TAKEOVER_MARKS; REACHED(taken_over)
           :: outcome == reclaimed -> maybe_sent = maybe_sent | RECLAIM_MARKS; REACHED(reclaimed)
        fi;
        attempts = (MAX_ATTEMPTS && outcome != reclaimed -> attempts + 1 : attempts);
        write(sending, token);
        claimer = who; may_send = may_send | BIT(who)
    :: outcome == key_window_over || (outcome == attempts_used_up && REVIEW_IS_COMMITTED) ->
        maybe_sent = maybe_sent | (DOUBT_MARKS && state != pending);
        write(review, token);
        if :: outcome == key_window_over -> REACHED(key_window_over) :: else -> REACHED(attempts_used_up) fi
    :: else -> skip
    fi
}

#define SAME_AGAIN(token, to) (row_token == token && token > 0 && state == to)
#define IS_OWN_CLAIM(token) (state == sending && (row_token == token || !OWN_CLAIM_ONLY))
#define ACCEPTED_TOO(to) (state == accepted && (to == sent || to == failed || to == unknown))

/* lock_to_settle and what follows it: confirm_refund (to sent), fail_refund, mark_unknown, accept_refund, and
 * release_refund (to pending). result: done, stale, refused */
inline settle_refund(token, who, to, result) {
    if
    :: is_new_server && SERVER_IS_CHECKED -> result = stale
    :: else ->
        if
        :: SAME_AGAIN(token, to) && (PASSES(token) || OWN_RECORD_RECOGNISED) -> result = done; REACHED(recorded_again)
        :: else ->
            if
            :: (FENCE_AT_SETTLING && !PASSES(token)) || (ROW_NOT_NEWER && row_token > token && FENCE_AT_SETTLING) ->
                result = stale
            :: else ->
                if
                :: !IS_OWN_CLAIM(token) && !ACCEPTED_TOO(to) -> result = refused
                :: else ->
                    result = done;
                    if :: state == sending && who != claimer -> VIOLATED(record_is_true) :: else fi;
                    to = (to == pending && maybe_sent && MARKED_IS_NOT_RELEASED -> unknown : to);
                    maybe_sent = maybe_sent | (DOUBT_MARKS && (to == unknown || to == accepted));
                    write(to, token)
                fi
            fi
        fi
    fi
}

/* What recovery does: the sequence, the active token and the barrier above anything handed out, open refunds marked */
inline recover_failover() {
    last_drawn = highest + 1; highest = last_drawn; handed_out = handed_out | BIT(last_drawn);
    if :: RECOVERY_LIFTS_FENCE -> active_token = last_drawn; barrier = last_drawn; newest = last_drawn; fenced_out = last_drawn
       :: else fi;
    if :: !IS_FINISHED(state) && RECOVERY_MARKS -> maybe_sent = 1; was_claimed = 1 :: else fi;
    is_new_server = 0; REACHED(recovered)
}

/* ================ The gateway ================ */

/* One request is carried out. Under a key that it has, the answer is the first one again. */
inline carry_out(answer) {
    if
    :: KEY && has != Nothing -> answer = has; REACHED(answered_from_memory)
    :: else ->
        if
        :: answer = Sent; has = Sent; move_money()
        :: LATER_WORD -> answer = Accepted; has = Accepted
        :: DECLINES && !has_declined && !(SHORT_MEMORY && calm) ->
            has_declined = 1;
            if :: SHORT_MEMORY -> answer = NotRemembered :: else -> answer = Declined; has = Declined fi
        :: DECLINES && !has_erred && !calm -> has_erred = 1; answer = Unknown       /* busy, an error: nothing happened */
        fi
    fi
}
inline move_money() {
    movements++;
    if :: movements > 1 -> VIOLATED(one_movement) :: else fi;
    if :: state == failed || state == cancelled || (IS_FINISHED(state) && movements > 1) -> VIOLATED(record_is_true)
       :: else fi
}
#define NOTHING_IS_ON_ITS_WAY (may_send == 0 && !is_looking && orphans == 0 && request[1] != InFlight && request[2] != InFlight \
                               && request[WORKERS] != InFlight && request[WORKERS + 1] != InFlight)
#define MAY_FORGET (KEY_ENDS && window_over && has != Nothing && !has_forgotten \
                    && (NOTHING_IS_ON_ITS_WAY || !KEY_OUTLIVES_REQUESTS))
proctype gateway() {
    mtype answer = Nothing;
    byte i;
end:
    do
    :: atomic { request[1] == InFlight -> carry_out(answer); request[1] = answer; answer = Nothing }
    :: atomic { request[2] == InFlight -> carry_out(answer); request[2] = answer; answer = Nothing }
    :: atomic { WORKERS > 2 && request[WORKERS] == InFlight -> carry_out(answer); request[WORKERS] = answer; answer = Nothing }
    :: atomic { request[WORKERS + 1] == InFlight -> carry_out(answer); request[WORKERS + 1] = answer; answer = Nothing }
    :: atomic { orphans > 0 -> orphans--; carry_out(answer); answer = Nothing; REACHED(orphan_arrived) }
    :: atomic { has == Accepted -> has = Sent; move_money() }           /* the final word */
    :: atomic { has == Accepted && !has_declined -> has = Declined; has_declined = 1 }
    :: atomic { MAY_FORGET -> has = Nothing; has_forgotten = 1; REACHED(forgotten) }
    od
}

/* ================ Time, Redis, Postgres ================ */

proctype faults() {
end:
    do
    /* a lease ends: its TTL is over, Redis was wiped, or failed over */
    :: atomic { lease != 0 && !calm -> holders = WITHOUT(holders, lease >> 2); lease = 0 }
    :: atomic { KEY_ENDS && was_claimed && !window_over && !has_forgotten && !calm -> window_over = 1 }
    :: atomic { CRASH_OF_POSTGRES && unflushed > 0 && !calm -> last_drawn = last_drawn - unflushed; unflushed = 0; REACHED(draw_lost) }
    od
}

/* A standby that is behind, or a backup: what was committed after some moment is gone. */
proctype failover() {
    byte b_drawn, b_active, b_barrier, b_token, b_attempts; mtype b_state; bit b_maybe, b_claimed;
    atomic { !calm -> b_drawn = last_drawn; b_active = active_token; b_barrier = barrier; b_state = state; b_token = row_token;
             b_maybe = maybe_sent; b_claimed = was_claimed }
    atomic { !calm -> last_drawn = b_drawn; active_token = b_active; barrier = b_barrier; state = b_state; row_token = b_token;
             maybe_sent = b_maybe; was_claimed = b_claimed; b_drawn = 0; b_active = 0; b_barrier = 0; b_state = pending;
             b_token = 0; b_maybe = 0; b_claimed = 0; is_new_server = RECOVERY;
             if :: FAILOVER == 1 && RECOVERY -> recover_failover() :: else fi }
    atomic { is_new_server -> recover_failover() }
}

/* ================ Who calls ================ */

#define CRASH    :: !calm -> goto gone
#define REPLY_LOST(again) :: lost > 0 && !calm -> lost--; goto again

/* A holder that has activated, and whose lease never ended, isn't refused as stale. */
inline was_refused_as_stale(token, who, is_active) {
    if :: is_active && (holders & BIT(who)) && fenced_out < token && !is_new_server -> VIOLATED(holder_is_served) :: else fi
}

proctype worker(byte id) {
    byte token = 0; byte starts = 0; byte me = 0;
    mtype outcome = none; mtype answer = Nothing; mtype result = none; mtype to = pending;
    bit is_active = 0; bit drew_again = 0; bit has_recorded = 0;
    do
    :: atomic { starts < STARTS && !(calm && IS_OVER) -> starts++; me = id * 4 + starts }
    if :: !DRAW_BEFORE_LEASE -> atomic { if :: lease == 0 -> lease = me; holders = holders | BIT(id) :: else -> goto gone fi }
       :: else fi;
draw:
    atomic {
        if :: is_new_server && SERVER_IS_CHECKED && DRAW_CHECKS_SERVER -> goto release :: else fi;
        draw_token(token);
        if :: skip CRASH REPLY_LOST(draw) fi }
    /* the lease: SET NX; drawing again, a swap of one's own value */
    atomic {
        if
        :: lease == me || (!DRAW_BEFORE_LEASE && !drew_again) -> skip
        :: lease == 0 && !drew_again && DRAW_BEFORE_LEASE -> lease = me; holders = holders | BIT(id)
        :: lease != me && drew_again && !SWAP_COMPARES -> lease = me       /* another's, or nobody's */
        :: else -> goto gone
        fi;
        if :: skip CRASH fi }
    if :: FORGETS_TO_ACTIVATE -> goto claim :: skip fi;
activate:
    atomic {
        activate_token(token, is_active);
        if
        :: !is_active && !drew_again && !(is_new_server && SERVER_IS_CHECKED) -> drew_again = 1; REACHED(drew_again); goto draw
        :: !is_active && (drew_again || (is_new_server && SERVER_IS_CHECKED)) -> goto release
        :: is_active -> if :: skip CRASH REPLY_LOST(activate) fi
        fi }
    if :: !RENEW_COMPARES -> atomic { lease = me } :: else fi;      /* one that compares changes nothing here */
    atomic {
        if :: MIXES_TOKENS && starts == 2 && movements > 0 && state == sending -> answer = Sent; goto record
           :: LATER_WORD && state == accepted && (has == Sent || has == Declined) -> answer = has; goto record
           :: else fi }
claim:
    atomic {
        claim_refund(token, id, outcome);
        if
        :: outcome == stale -> was_refused_as_stale(token, id, is_active); may_send = WITHOUT(may_send, id); goto release
        :: outcome == claimed || outcome == reclaimed || outcome == taken_over ->
            if :: skip CRASH REPLY_LOST(claim)
               :: !calm -> goto give_back fi                        /* a stop was asked for */
        :: else -> may_send = WITHOUT(may_send, id); goto release
        fi }
    /* ask the gateway, unless the claim said that nobody sent it */
    atomic {
        if :: outcome != claimed && ASKS_FIRST -> answer = has :: else fi;
        if
        :: answer == Nothing -> if :: skip CRASH :: outcome != claimed && !calm -> goto give_back fi
        :: else -> REACHED(found) ; goto record
        fi }
    atomic {
        if :: token != newest -> REACHED(sent_while_superseded) :: else fi;
        request[id] = InFlight; was_sent = 1;
        if :: skip :: lost > 0 && !calm && orphans < 2 -> lost--; orphans++ fi }  /* no reply: sent again under the same key */
    atomic {
        if
        :: request[id] != InFlight -> answer = request[id]; request[id] = Nothing;
            if :: skip CRASH fi
        :: request[id] == InFlight && !calm ->                      /* waited long enough */
            request[id] = Nothing; orphans = (orphans < 3 -> orphans + 1 : 3);
            if :: answer = Unknown CRASH REPLY_LOST(claim) fi
        fi }
record:
    atomic {
        if
        :: answer == Sent -> to = sent
        :: answer == Accepted -> to = accepted
        :: answer == Declined -> to = failed
        :: answer == NotRemembered -> to = (FAILS_IF_REMEMBERED_ONLY -> unknown : failed)
        :: answer == Unknown -> to = (FAILS_IF_DECLINED_ONLY -> unknown : failed)
        fi;
        settle_refund(token, id, to, result);
        if
        :: result == stale ->
            was_refused_as_stale(token, id, is_active);
            if :: has_recorded && (state == sent || state == failed) && row_token == token && !is_new_server -> VIOLATED(own_record_is_recognised)
               :: else fi
        :: result == done -> has_recorded = IS_FINISHED(state);
            if :: skip REPLY_LOST(record) fi
        :: else
        fi;
        may_send = WITHOUT(may_send, id);
        goto release }
give_back:
    atomic {
        to = pending;
        settle_refund(token, id, to, result);
        if :: result == stale -> was_refused_as_stale(token, id, is_active) :: result == done -> REACHED(released) :: else fi;
        may_send = WITHOUT(may_send, id) }
release:
    atomic {
        if :: lease == me || !RELEASE_COMPARES ->
            if :: lease == me -> holders = WITHOUT(holders, id) :: else fi;
            lease = 0
        :: else fi }
gone:
    atomic {
        if :: request[id] == InFlight -> orphans = (orphans < 3 -> orphans + 1 : 3) :: else fi;
        request[id] = Nothing; holders = WITHOUT(holders, id); may_send = WITHOUT(may_send, id);
        token = 0; outcome = none; answer = Nothing; result = none; to = pending; is_active = 0; drew_again = 0; has_recorded = 0 }
    :: atomic { starts == STARTS || (calm && IS_OVER) -> ended++ }; break
    od
}

/* An operator breaks the lease: the fence is raised first, then the lease cleared if it still is the one that was seen. */
proctype breaker() {
    byte token = 0; byte seen = 0; byte its_token = 0; bit is_active = 0;
    atomic { !calm && lease != 0 -> seen = lease; its_token = active_token }
    if
    :: BREAK_FENCES ->
        atomic { !calm && !is_new_server -> draw_token(token) }
        atomic { !calm -> activate_token(token, is_active);
                 if :: !is_active -> goto over :: else -> fenced_out = (token > fenced_out -> token : fenced_out) fi }
    :: else
    fi;
    atomic {
        !calm ->
        if
        :: lease == seen -> holders = WITHOUT(holders, lease >> 2); lease = 0
        :: lease != seen && !BREAK_COMPARES -> lease = 0
        :: else
        fi;
        broken = its_token; REACHED(lease_broken) }
over:
    atomic { token = 0; seen = 0; its_token = 0; is_active = 0 }
}

/* An operator by hand: draws, takes the lease, activates, claims, looks at the gateway, settles, releases. */
proctype by_hand() {
    byte token = 0; mtype outcome = none; mtype answer = Nothing; mtype result = none; mtype to = unknown; bit is_active = 0;
    atomic { !calm && (state == sending || state == unknown) && lease == 0 }
    atomic { !calm && !is_new_server -> draw_token(token) }
    if :: HAND_TAKES_LEASE -> atomic { !calm -> if :: lease == 0 -> lease = BY_PERSON_HERE :: else -> goto over fi } :: else fi;
    atomic { !calm -> activate_token(token, is_active); if :: !is_active -> goto over :: else fi }
    atomic { !calm -> claim_refund(token, 0, outcome);
             if :: outcome == reclaimed || outcome == taken_over || outcome == claimed :: else -> goto over fi }
    atomic { !calm -> answer = has }
    atomic {
        !calm ->
        to = (answer == Sent -> sent : (answer == Declined || (answer == Nothing && !HAND_FAILS_ON_ANSWER_ONLY) -> failed : unknown));
        settle_refund(token, 0, to, result); REACHED(settled_by_hand) }
over:
    atomic {
        if :: lease == BY_PERSON_HERE -> lease = 0 :: else fi;
        may_send = WITHOUT(may_send, 0);
        token = 0; outcome = none; answer = Nothing; result = none; to = unknown; is_active = 0 }
}

/* Persons and webhooks, who need no token: move_by_person. What they see at the gateway is what is so; by the time they
 * record that there was nothing, there may be something. */
#define PERSON_MAY (!calm && (state != sending || !NOT_WHILE_SENDING) && !(is_new_server && PERSON_CHECKS_SERVER))
proctype person() {
    byte n = 0;
    do
    :: atomic { n < PERSON && PERSON_MAY && (state == pending || state == review) && !(maybe_sent && MARKED_IS_NOT_CANCELLED) ->
                n++; move(cancelled); REACHED(cancelled) }
    :: atomic { n < PERSON && PERSON_MAY && (state == pending || state == unknown || state == accepted || state == sending) ->
                n++; move(review); REACHED(reviewed) }
    :: atomic { n < PERSON && PERSON_MAY && (state == review || state == accepted) && has == Sent -> n++; move(sent); REACHED(resolved) }
    :: atomic { n < PERSON && PERSON_MAY && (state == review || state == accepted) && has == Declined -> n++; move(failed) }
    :: atomic { n < PERSON && PERSON_MAY && state == review && has == Nothing && movements == 0 -> n++; is_looking = 1 };
       if
       :: atomic { PERSON_MAY && state == review ->
                   is_looking = 0; move(pending); maybe_sent = maybe_sent | (REQUEUE_MARKS && was_claimed);
                   window_over = 0; attempts = 0; REACHED(requeued) }
       :: is_looking = 0
       fi
    :: atomic { n < PERSON && PERSON_MAY && state == sent -> n++; move(returned); REACHED(returned) }
    :: n == PERSON || calm -> break
    od
}

proctype intruder() {
    mtype outcome = none; bit is_active = 0;
    atomic { activate_token(TYPED, is_active); claim_refund(TYPED, 0, outcome); may_send = WITHOUT(may_send, 0) }
}

init {
    atomic {
        run gateway(); run faults(); run worker(1); run worker(2);
        if :: WORKERS > 2 -> run worker(3) :: else fi;
        if :: PERSON -> run person() :: else fi;
        if :: LEASE_BROKEN -> run breaker() :: else fi;
        if :: BY_HAND -> run by_hand() :: else fi;
        if :: INTRUDER -> run intruder() :: else fi;
        if :: FAILOVER -> run failover() :: else fi
    }
    if
    :: FRESH_WORKER ->
        /* The faults stop: who is frozen counts as crashed, the lease has ended. */
        if
        :: atomic { ended == WORKERS && !is_new_server -> calm = 1; lease = 0; holders = 0; lost = 0; run worker(WORKERS + 1) }
        :: timeout -> VIOLATED(fresh_worker_ends_it)
        fi;
        if
        :: atomic { ended == WORKERS + 1 -> if :: !IS_OVER -> VIOLATED(fresh_worker_ends_it) :: else -> REACHED(ended_by_a_fresh_worker) fi }
        :: timeout -> VIOLATED(fresh_worker_ends_it)
        fi
    :: else
    fi
}
