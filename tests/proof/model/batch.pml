/* Several refunds at a time: claim_refunds and confirm_refunds, row by row, and the loop of a settlement round them.
 *
 * README.md beside this file says how to read it. A session carries out what its client asked for: a client that gave up
 * waiting has made the call again on another session, while the first one is still at it. Worker w uses the session
 * 2w - 1, and after a lost reply 2w. Leases are in refund.pml: here any worker may activate at any moment.
 */
#include "checks.inc"

#ifndef WORKERS
#define WORKERS 2
#endif
#ifndef REFUNDS
#define REFUNDS 2
#endif
#ifndef MAX_ROWS
#define MAX_ROWS 2                  /* of one claim */
#endif
#ifndef LOST
#define LOST 1                      /* replies that are lost, or given up: the call is made again beside the first */
#endif
#ifndef KILLED
#define KILLED 0                    /* sessions that are ended in mid-transaction: rolled back */
#endif
#ifndef CRASHES
#define CRASHES 1                   /* workers that die */
#endif

#ifndef CONFIRMS_ALL
#define CONFIRMS_ALL 0              /* a client begins by confirming every refund, which it hasn't claimed */
#endif

/* ---- The guards: 1 in force, 0 taken away ---- */
#ifndef GATE
#define GATE 1                      /* activation waits for calls under way */
#endif
#ifndef ROWS_ARE_LOCKED
#define ROWS_ARE_LOCKED 1           /* by the statement that decides on them */
#endif
#ifndef ROWS_ARE_LOCKED_IN_ORDER
#define ROWS_ARE_LOCKED_IN_ORDER 1
#endif
#ifndef OWN_CLAIM_ONLY
#define OWN_CLAIM_ONLY 1            /* each row is confirmed by itself: LG203 for the one that isn't one's own */
#endif
#ifndef RECLAIM_MARKS
#define RECLAIM_MARKS 1
#endif
#ifndef CURSOR_BEGINS_AGAIN
#define CURSOR_BEGINS_AGAIN 1       /* a short answer isn't the end: no open row is */
#endif
#ifndef DOUBT_RECLAIMS
#define DOUBT_RECLAIMS 1            /* after a lost reply the claim is made with reclaim */
#endif

mtype = { pending, sending, sent };
mtype = { none, claimed, reclaimed, taken_over, claim_refunds, confirm_refunds };
#define SESSIONS (2 * WORKERS + 1)

byte last_drawn = 0; byte active_token = 0; byte barrier = 0;
byte shared = 0;                    /* sessions inside the gate */
mtype state[REFUNDS] = pending; byte row_token[REFUNDS]; bit maybe_sent[REFUNDS];
byte locked_by[REFUNDS];            /* the session that has the row's lock */
mtype told[SESSIONS * REFUNDS] = none;  /* what a session's claim said of each refund */
bit replied[SESSIONS]; bit is_refused[SESSIONS];
mtype asked[SESSIONS] = none;       /* what a session was asked for, and with what */
byte given_token[SESSIONS]; byte given_after[SESSIONS]; byte given_set[SESSIONS]; bit given_reclaim[SESSIONS];
bit was_sent[REFUNDS];              /* to the gateway, by anybody, ever */
byte sender[REFUNDS];               /* the token under which it was claimed last */
byte lost = LOST; byte killed = KILLED; byte crashes = CRASHES;

#define WITHOUT(set, s) (set & (255 - BIT(s)))
#define IS_CLAIMABLE(r, token, reclaim) (state[r] == pending || (state[r] == sending && row_token[r] < token) \
                                         || (reclaim && state[r] == sending && row_token[r] == token))
#define TOLD(s, r) told[s * REFUNDS + r]

inline unlock(s) {
    r = 0;
    do :: r < REFUNDS -> locked_by[r] = (locked_by[r] == s -> 0 : locked_by[r]); r++ :: else -> break od;
    shared = WITHOUT(shared, s)
}
inline enter(s, token) {
    if :: token != active_token -> is_refused[s] = 1; replied[s] = 1; REACHED(refused); goto over
       :: else -> shared = (GATE -> shared | BIT(s) : shared)
    fi
}
inline write(to) {
    if :: token != active_token -> VIOLATED(one_writer) :: else fi;
    if :: state[r] != seen[r] -> VIOLATED(no_lost_update) :: else fi;
    if :: state[r] == sent && to != sent -> VIOLATED(finished_stays) :: else fi;
    state[r] = to; row_token[r] = token
}
#define KILLED_HERE :: atomic { killed > 0 -> killed--; unlock(s); REACHED(rolled_back); goto over }
#define ROW (ROWS_ARE_LOCKED_IN_ORDER || s % 2 == 0 -> n : REFUNDS - 1 - n)
#define MINE(r) ((set & BIT(r)) && seen[r] == sending && (row_token[r] == token || !OWN_CLAIM_ONLY))

proctype session(byte s) {
    byte token = 0; byte r = 0; byte n = 0; byte set = 0; bit reclaim = 0; mtype seen[REFUNDS] = none;
end:
    do
    :: atomic { asked[s] == claim_refunds ->
                asked[s] = none; token = given_token[s]; r = given_after[s]; reclaim = given_reclaim[s]; n = 0; enter(s, token) }
       do                           /* for no key update skip locked */
       :: atomic { r < REFUNDS && n < MAX_ROWS ->
            if
            :: IS_CLAIMABLE(r, token, reclaim) && (locked_by[r] == 0 || !ROWS_ARE_LOCKED) ->
                locked_by[r] = (ROWS_ARE_LOCKED -> s : 0); seen[r] = state[r]; n++;
                TOLD(s, r) = (state[r] == pending && !maybe_sent[r] -> claimed : taken_over);
                TOLD(s, r) = (state[r] == sending && row_token[r] == token -> reclaimed : TOLD(s, r))
            :: IS_CLAIMABLE(r, token, reclaim) && locked_by[r] != 0 -> REACHED(passed_over)
            :: else
            fi;
            r++ }
       :: r >= REFUNDS || n >= MAX_ROWS -> break
       KILLED_HERE
       od;
       atomic {
        r = 0;
        do
        :: r < REFUNDS && seen[r] != none ->
            if :: TOLD(s, r) == claimed && was_sent[r] -> VIOLATED(claim_tells) :: else fi;
            if :: TOLD(s, r) == reclaimed -> REACHED(reclaimed) :: TOLD(s, r) == taken_over -> REACHED(taken_over) :: else fi;
            maybe_sent[r] = maybe_sent[r] | (TOLD(s, r) == taken_over) | (TOLD(s, r) == reclaimed && RECLAIM_MARKS);
            write(sending); sender[r] = token; r++
        :: r < REFUNDS && seen[r] == none -> r++
        :: r >= REFUNDS -> break
        od;
        unlock(s); replied[s] = 1; goto over }
    :: atomic { asked[s] == confirm_refunds ->
                asked[s] = none; token = given_token[s]; set = given_set[s]; n = 0; enter(s, token) }
       do                           /* for no key update, in one order */
       :: atomic { n < REFUNDS && (set & BIT(ROW)) -> r = ROW }
          atomic { locked_by[r] == 0 || !ROWS_ARE_LOCKED -> locked_by[r] = (ROWS_ARE_LOCKED -> s : 0); seen[r] = state[r]; n++ }
       :: n < REFUNDS && !(set & BIT(ROW)) -> n++
       :: n >= REFUNDS -> break
       KILLED_HERE
       od;
       atomic {
        r = 0;
        do
        :: r < REFUNDS && MINE(r) ->
            if :: sender[r] != token || !was_sent[r] -> VIOLATED(record_is_true) :: else fi;
            write(sent); REACHED(confirmed); r++
        :: r < REFUNDS && !MINE(r) -> if :: (set & BIT(r)) && seen[r] == sent -> REACHED(confirmed_before) :: else fi; r++
        :: r >= REFUNDS -> break
        od;
        unlock(s); replied[s] = 1 }
over:
       atomic {
        token = 0; n = 0; set = 0; reclaim = 0; r = 0;
        do :: r < REFUNDS -> seen[r] = none; r++ :: else -> break od;
        r = 0 }
    od
}
inline ask(s, what) {
    r = 0; do :: r < REFUNDS -> TOLD(s, r) = none; r++ :: else -> break od;
    r = 0; replied[s] = 0; is_refused[s] = 0;
    asked[s] = what; given_token[s] = token; given_after[s] = after; given_set[s] = set; given_reclaim[s] = reclaim
}
#define DIES :: crashes > 0 -> crashes--; goto over

proctype worker(byte id) {
    byte token = 0; byte s = 2 * id - 1; byte r = 0; byte after = 0; byte set = 0; bit reclaim = 0; bit gave_up = 0;
    atomic { last_drawn++; token = last_drawn }
    atomic { shared == 0 || !GATE ->
             if :: token > barrier -> active_token = token; barrier = last_drawn :: else -> goto over fi }
    if :: CONFIRMS_ALL -> set = 255; goto confirm :: else fi;
claim:
    atomic { ask(s, claim_refunds) }
    if
    :: atomic { replied[s] -> if :: is_refused[s] -> goto over :: else fi }
    :: atomic { lost > 0 && !gave_up -> lost--; gave_up = 1; s = 2 * id; reclaim = DOUBT_RECLAIMS; goto claim }
    DIES
    fi;
    atomic {
        set = 0; r = 0;
        do :: r < REFUNDS && TOLD(s, r) != none -> set = set | BIT(r); after = r + 1; r++
           :: r < REFUNDS && TOLD(s, r) == none -> r++
           :: r >= REFUNDS -> break od;
        if
        :: set == 0 ->              /* count_open: is there an open row that could be claimed? */
            r = 0;
            do
            :: r < REFUNDS && IS_CLAIMABLE(r, token, reclaim) && CURSOR_BEGINS_AGAIN -> after = 0; goto claim
            :: r < REFUNDS && IS_CLAIMABLE(r, token, 1) && token == active_token && !(IS_CLAIMABLE(r, token, reclaim) && CURSOR_BEGINS_AGAIN) ->
                VIOLATED(nothing_is_left); goto over
            :: r < REFUNDS && !IS_CLAIMABLE(r, token, 1) -> r++
            :: r < REFUNDS && IS_CLAIMABLE(r, token, 1) && token != active_token -> goto over
            :: r >= REFUNDS -> REACHED(all_done); goto over
            od
        :: else
        fi }
    r = 0;
    do                              /* the gateway; under its key, each moves money once */
    :: atomic { r < REFUNDS && (set & BIT(r)) -> was_sent[r] = 1; r++ }
    :: atomic { r < REFUNDS && !(set & BIT(r)) -> r++ }
    :: r >= REFUNDS -> break
    DIES
    od;
confirm:
    atomic { ask(s, confirm_refunds) }
    if
    :: atomic { replied[s] -> if :: is_refused[s] -> goto over :: else -> goto claim fi }
    :: atomic { lost > 0 && !gave_up -> lost--; gave_up = 1; s = 2 * id; goto confirm }
    DIES
    fi;
over:
    atomic { token = 0; r = 0; after = 0; set = 0; reclaim = 0; gave_up = 0 }
}

init {
    atomic { run session(1); run session(2); run session(3); run session(4); run worker(1); run worker(2) }
    if
    :: timeout -> if :: shared == 0 -> skip :: else -> VIOLATED(calls_end) fi
    fi
}
