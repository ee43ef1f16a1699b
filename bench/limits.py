"""Why a target isn't met, where one isn't: what the limit is, how it was found, and what was tried."""

from __future__ import annotations

LIMITS: dict[str, str] = {
    "single_cpu_vs_raw": (
        "a function that does nothing but update one row by its key costs 1.7 times the plain UPDATE (setting its "
        "expressions up again in every transaction, and the call itself), so 0.58 would be the bound of any "
        "function; the gate costs another 1.1 plain UPDATEs, the journal's entry 1.3. Found by leaving out pieces,"
        " in turns on one backend, by its CPU. In those: the CHECKs of refund and journal 0.7 (Postgres parses a "
        "table's CHECKs again for each statement), the guard triggers 0.25, what the server and the pauses say "
        "0.3, the forced limits 0.25. Tried: locking and updating in one statement (saves 0.13), gate, update and "
        "entry in one statement (nothing), the gate's facts all on the fence row (0.25), triggers without a pinned"
        " search_path or with WHEN (nothing). The CHECKs stay: a constraint that states a truth is worth 3 µs. "
        "Batches pay for all of it once a hundred refunds."
    ),
    "single_wall_vs_raw": "the same as `single_cpu_vs_raw`.",
    "single_vs_client_txn": (
        "the same as `single_cpu_vs_raw`: over a socket a round trip is cheaper than what the gate, the guard and the "
        "journal's rules cost, which that client does without. Over a network it is the other way round."
    ),
    "batch100_vs_raw_off": (
        "a refund costs the backend about 8 µs to claim and 18 to confirm, in a flat profile: no function of Postgres "
        "has more than 6 %; what is left is two updates and two entries of the journal with their indexes. "
        "Locking first and updating by place is in it: no deadlocks, no plan that joins all with all. With fsync, as "
        "it runs, the target is met several times over."
    ),
    "import_rate": (
        "a row costs the server about 12 µs through `add_refunds` and 6 to 9 µs by the bare INSERTs, the more the "
        "larger the table; reading and sending it costs the client 4 µs. Found by leaving out pieces of "
        "the function: the look for the same id, for the same id or key among archived refunds, at malformed ids, "
        "and the entry's evidence are 1 to 2 µs each, and none can go: each is a refusal or a record. Tried and "
        "kept: guards that the planner can inline (7 µs), no second look at rows that were all added (4 µs), only "
        "rows that weren't added are sent back (5 µs of the client), reading ahead in a thread, a parser without "
        "dataclasses."
    ),
    "protected_row": (
        "the transaction's own three statements are so small that a fourth round trip and two checks weigh as "
        "much. Each check is a lock and, in a later statement, a look at fence and server: two statements in a "
        "function that pins its search_path can't be less, and the trigger may not rely on what was presented. "
        "Found by the backend's CPU with pieces left out. Tried: one guard in place of seven for a token that is "
        "right in every respect (kept); presenting in the pipeline of the first write (over a socket psycopg's "
        "pipeline costs more than the round trip that it saves; over a network it is the other way round); "
        "reading the column by `to_jsonb`, which is planned once (a user's cast would run with the ledger's "
        "rights). Through an ORM the same is `protected_row_orm`."
    ),
    "vs_pgqueuer_asyncpg": (
        "a refund costs the backends 8 µs to claim and 18 to confirm, and our client 6; a job of pgqueuer's costs its "
        "backend 26 µs and its client 35, one after the other. Ours is two updates and two entries of the journal, "
        "committed before the calls return, and the settlement leaves the index of what is open; bare UPDATEs and "
        "INSERTs of the same sets cost 17 µs. Tried: claims on one connection and confirms on two (kept; on one "
        "each 2.3), sets of a thousand (kept), room on the pages for a set's second versions (kept, 5 µs), guards that "
        "the planner can inline (kept, 7 µs). Left out for less than 3 % each: looking up the rows by place once they "
        "are locked, sorting once, no list of what a refusal would name."
    ),
    "workers8_vs_1": (
        "a worker and its backend take turns and keep one core busy, so two cores bound this by 2; and whatever "
        "else runs there takes from the eight, not from the one."
    ),
    "settle_overhead": (
        "answers are recorded 64 at most at a time (32 in flight, and as many waiting for their turn), so Postgres is "
        "called twice as often as in batches of a hundred; handing a refund over and hearing its answer takes the "
        "interpreter about 12 µs; and the lease adds five calls. Found with cProfile and by counting the calls. Tried "
        "and kept: calls go on while Postgres is asked, one thread where the gateway answers at once, one that watches "
        "over all calls in place of a timer for each, no fact put into words that nobody hears, a pool's connection "
        "given back warm. Tried and left: a claim before the next recording, so that the gateway is never idle (more "
        "and smaller recordings, no gain). More handed over ahead would make larger batches, and more that is sent "
        "after a refusal."
    ),
    "settle_latency_bound": (
        "the last refunds have fewer beside them, the first ones wait for the lease and a claim, and 32 threads take "
        "turns with whatever else runs on these cores."
    ),
}
