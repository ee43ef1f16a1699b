/* Transactions that stay open: a job that looks whether its charges exist, inserts them, commits; and clients that freeze
 * inside. The gate, snapshots, savepoints, repeated transactions, the limits.
 *
 * README.md beside this file says how to read it. Workers are the sessions 1 to WORKERS; the session WORKERS + 1 carries
 * out a transaction whose client has gone. Session 1 is the one that freezes.
 */
#include "checks.inc"

#ifndef WORKERS
#define WORKERS 2
#endif

/* ---- What happens besides ---- */
#ifndef LIVENESS
#define LIVENESS 0                  /* check that the gate opens, instead of searching for what must never be */
#endif
#ifndef SNAPSHOT
#define SNAPSHOT 0                  /* REPEATABLE READ and SERIALIZABLE: one snapshot for the whole transaction */
#endif
#ifndef SAVEPOINT
#define SAVEPOINT 0                 /* a savepoint rolls back after the token was presented under it */
#endif
#ifndef REPEATED
#define REPEATED 0                  /* a transaction whose commit is in doubt is made again */
#endif
#ifndef JOB
#define JOB 0                       /* lock_job in place of a lease */
#endif
#ifndef SILENT
#define SILENT 0                    /* session 1 freezes between two statements, or while it activates */
#endif
#ifndef STUCK
#define STUCK 0                     /* session 1 freezes inside a COPY, a pipeline or a large result */
#endif
#ifndef BUSY
#define BUSY 0                      /* session 1 goes on with statements and never commits */
#endif

/* ---- The guards: 1 in force, 0 taken away ---- */
#ifndef GATE
#define GATE 1                      /* fenced calls take the gate, shared */
#endif
#ifndef ACTIVATION_WAITS
#define ACTIVATION_WAITS 1          /* activation takes it exclusively */
#endif
#ifndef READ_AFTER_GATE
#define READ_AFTER_GATE 1           /* the fence is read in a statement after the one that took the gate */
#endif
#ifndef READ_LOCKS_FENCE
#define READ_LOCKS_FENCE 1          /* with an older snapshot, the fence is read FOR SHARE: 40001 */
#endif
#ifndef BINDING_ENDS
#define BINDING_ENDS 1              /* what was presented is forgotten with the savepoint */
#endif
#ifndef WRITE_IS_CHECKED
#define WRITE_IS_CHECKED 1          /* each write takes the gate and looks again */
#endif
#ifndef REPEAT_DRAWS
#define REPEAT_DRAWS 1              /* a transaction is repeated under a new token, never under its old one */
#endif
#ifndef JOB_IS_LOCKED
#define JOB_IS_LOCKED 1
#endif
#ifndef JOB_FENCES
#define JOB_FENCES 1                /* lock_job draws and activates in the same transaction */
#endif
#ifndef IDLE_LIMIT
#define IDLE_LIMIT 1
#endif
#ifndef FROZEN_ARE_ENDED
#define FROZEN_ARE_ENDED 1          /* close_gate ends clients that don't read or send, where the DBA grants it */
#endif
#ifndef TRANSACTION_LIMIT
#define TRANSACTION_LIMIT 0         /* off unless the kind has one */
#endif

byte last_drawn = 0; byte active_token = 0; byte barrier = 0;
byte lease = 0;
byte charges = 0;                   /* committed sets of charges */
byte shared = 0;                    /* sessions inside the gate */
byte closed_by = 0;                 /* the session that holds the gate exclusively */
byte job = 0;                       /* the session that holds the job's lock */
byte opened = 0;                    /* sessions in a transaction */
byte working = 0;                   /* in the middle of a statement: the idle limit doesn't run */
byte stuck = 0;                     /* waiting for their client, in the middle of a statement */
byte was_ended = 0;                 /* by the server */
byte waiting = 0;                   /* to activate */

#define WITHOUT(set, s) (set & (255 - BIT(s)))
#define WAS_ENDED(s) (was_ended & BIT(s))

/* A session's transaction is over, for good or ill: its locks go. */
inline leave(s) {
    opened = WITHOUT(opened, s); shared = WITHOUT(shared, s); working = WITHOUT(working, s); stuck = WITHOUT(stuck, s);
    closed_by = (closed_by == s -> 0 : closed_by); job = (job == s -> 0 : job)
}

#define MAY_BE_ENDED(s) ((opened & BIT(s)) && ( \
       (IDLE_LIMIT && !(working & BIT(s))) \
    || (FROZEN_ARE_ENDED && (stuck & BIT(s)) && waiting) \
    || TRANSACTION_LIMIT))
#define END(s) :: atomic { MAY_BE_ENDED(s) -> leave(s); was_ended = was_ended | BIT(s); REACHED(session_ended) }
active proctype server() {
end:
    do END(1) END(2) END(3) END(4)
    od
}

active proctype redis() {
end:
    do
    :: atomic { lease != 0 -> lease = 0 }
    od
}

#define IS_OPEN_TO(s) (closed_by == 0 || closed_by == s || !GATE)

/* present_token, and each write: the gate is shared, the token judged; is_refused otherwise */
inline pass_gate(s, token) {
    atomic {
        WAS_ENDED(s) || IS_OPEN_TO(s) ->
        if :: WAS_ENDED(s) -> goto over :: else fi;
        shared = (GATE -> shared | BIT(s) : shared);
        if
        :: SNAPSHOT && READ_LOCKS_FENCE && seen_active != active_token -> REACHED(old_snapshot); leave(s); goto over
        :: else
        fi;
        if
        :: token != (SNAPSHOT || !READ_AFTER_GATE -> seen_active : active_token) -> REACHED(refused); leave(s); goto over
        :: else
        fi }
}

/* lock_job: the job's lock, then the gate exclusively, a token drawn and activated, all in this transaction */
inline lock_job(s, token) {
    atomic {
        WAS_ENDED(s) || ((job == 0 || !JOB_IS_LOCKED) && (!JOB_FENCES || (shared == 0 && closed_by == 0))) ->
        if :: WAS_ENDED(s) -> goto over :: else fi;
        job = (JOB_IS_LOCKED -> s : 0);
        if
        :: JOB_FENCES ->
            if :: SNAPSHOT && seen_active != active_token -> REACHED(old_snapshot); leave(s); goto over :: else fi;
            closed_by = s; last_drawn++; token = last_drawn
        :: else -> token = active_token
        fi }
}

inline transaction(s, token) {
    atomic { opened = opened | BIT(s); seen_active = active_token; seen_charges = charges }
    if :: JOB -> lock_job(s, token) :: else -> pass_gate(s, token) fi;
    if
    :: SAVEPOINT ->
        atomic { if :: WAS_ENDED(s) -> goto over :: else -> shared = WITHOUT(shared, s); REACHED(savepoint_rolled_back) fi;
                 if :: BINDING_ENDS -> leave(s); goto over :: else fi }    /* the next write has no token: LG103 */
    :: skip
    fi;
    do
    :: BUSY && s == 1 && !WAS_ENDED(s) -> atomic { working = working | BIT(s) }; atomic { working = WITHOUT(working, s) }
    :: break
    od;
    /* select */
    atomic { if :: WAS_ENDED(s) -> goto over :: else fi;
             finds = ((SNAPSHOT -> seen_charges : charges) > 0);
             if :: finds -> REACHED(charges_found); leave(s); goto over :: else fi }
    if
    :: STUCK && s == 1 -> atomic { if :: WAS_ENDED(s) -> goto over :: else -> working = working | BIT(s); stuck = stuck | BIT(s) fi };
                          WAS_ENDED(s); goto over
    :: SILENT && s == 1 -> WAS_ENDED(s); goto over
    :: else
    fi;
    /* insert */
    if :: WRITE_IS_CHECKED && !JOB -> pass_gate(s, token) :: else fi;
    /* commit */
    atomic {
        if
        :: WAS_ENDED(s)
        :: else ->
            if :: JOB && JOB_FENCES -> active_token = token; barrier = last_drawn :: else fi;
            if :: token != active_token -> VIOLATED(one_writer) :: else fi;
            charges++;
            if :: charges > 1 -> VIOLATED(charged_once) :: else fi;
            REACHED(committed); leave(s)
        fi }
}

/* Draw (done), then wait for the gate, then commit. */
inline activate_token(s, token) {
    waiting = waiting | BIT(s);
    atomic {
        WAS_ENDED(s) || !ACTIVATION_WAITS || !GATE || (shared == 0 && closed_by == 0) ->
        waiting = WITHOUT(waiting, s);
        if :: WAS_ENDED(s) || token <= barrier -> goto over :: else fi;
        opened = opened | BIT(s);
        closed_by = (GATE -> s : closed_by) }
    if :: SILENT && s == 1 -> WAS_ENDED(s); goto over :: skip fi;
    atomic {
        if :: WAS_ENDED(s) -> goto over :: else -> active_token = token; barrier = last_drawn; leave(s) fi }
}

/* A transaction that was sent whole, on a connection that then broke: the server may yet carry it out. */
proctype orphan(byte s; byte token) {
    byte seen_active, seen_charges; bit finds;
    transaction(s, token);
over:
    skip
}

proctype worker(byte id) {
    byte token = 0; byte seen_active = 0; byte seen_charges = 0; bit finds = 0;
    if
    :: !JOB ->
        atomic { last_drawn++; token = last_drawn }
        atomic { if :: lease == 0 -> lease = id :: else -> goto over fi }
        activate_token(id, token)
    :: else
    fi;
    if
    :: REPEATED && id == 1 ->
        run orphan(WORKERS + 1, token);
        if
        :: REPEAT_DRAWS && !JOB -> atomic { last_drawn++; token = last_drawn }; activate_token(id, token)
        :: else
        fi
    :: else
    fi;
    transaction(id, token);
over:
    atomic { if :: lease == id -> lease = 0 :: else fi; token = 0; seen_active = 0; seen_charges = 0; finds = 0 }
}

init {
    atomic { run worker(1); run worker(2); if :: WORKERS > 2 -> run worker(3) :: else fi }
}

#if LIVENESS
/* Whoever waits to activate gets through. */
#define SECOND_WAITS ((waiting & BIT(2)) != 0)
ltl gate_opens { [] (SECOND_WAITS -> <> !SECOND_WAITS) }
#endif
