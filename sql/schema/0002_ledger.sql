-- 0002_ledger: the tables. Everything that happens to them happens in sql/functions.
--
-- Locks        only objects that it creates, which nobody can see before it ends.
-- Rewrites     nothing.
-- Transaction  runs inside one.
-- Reversible   yes, by 0002_ledger.down.sql, which refuses while there are refunds.
-- Needs        membership in ledger_owner.

set local search_path = pg_catalog, pg_temp;
set local lock_timeout = '1s';
set local statement_timeout = '60s';
set local role ledger_owner;

comment on schema ledger is
    'The fenced ledger: refunds, the tokens that may move them, and the record of every move and refusal.';


create sequence ledger.token_seq as bigint cache 1 no cycle;

comment on sequence ledger.token_seq is
    'The one source of tokens. CACHE 1: a cached block would hand numbers out of order. No rollback gives one out '
    'twice.';

create sequence ledger.refusal_seq as bigint cache 1 no cycle;

comment on sequence ledger.refusal_seq is
    'Counts refusals. A rollback leaves it, so it knows of refusals that took their transaction with them.';


-- Domains and not CHECK constraints, for the table they are used in: a table's constraints are set up again for every
-- statement, which costs more than a claim's own update. A domain is looked at only where a value is assigned.
create domain ledger.state as text
    constraint state_is_known check (value in (
        'pending', 'sending', 'sent', 'failed', 'unknown', 'accepted', 'review', 'cancelled', 'returned'
    ));

comment on domain ledger.state is
    'pending, sending, unknown, accepted, review; final: sent, failed, cancelled, returned.';

create domain ledger.amount as bigint
    constraint amount_is_positive check (value > 0);

comment on domain ledger.amount is 'Money in the currency''s minor unit, above zero.';


create table ledger.currency (
    currency text primary key,
    exponent smallint not null,
    constraint currency_is_an_iso_4217_code check (currency ~ '^[A-Z]{3}$'),
    constraint exponent_is_small check (exponent between 0 and 4)
);

comment on table ledger.currency is 'ISO 4217: the currencies a refund may have.';
comment on column ledger.currency.currency is 'The three-letter code.';
comment on column ledger.currency.exponent is 'Decimal places of the minor unit: EUR 2, JPY 0, KWD 3.';


create table ledger.transition (
    from_state text,
    to_state text not null,
    on_claim boolean not null default false,
    own_token boolean not null default false,
    active_token boolean not null default false,
    person boolean not null default false,
    debit text,
    credit text,
    constraint transition_is_named_once unique nulls not distinct (from_state, to_state),
    constraint money_moves_between_two_accounts check ((debit is null) = (credit is null))
);

comment on table ledger.transition is
    'The legal moves of a refund: the one list that the guards, the docs and the tests read.';
comment on column ledger.transition.from_state is 'The state before; null for a refund that is being added.';
comment on column ledger.transition.to_state is 'The state after.';
comment on column ledger.transition.on_claim is 'A claim may make this move, under the active token.';
comment on column ledger.transition.own_token is
    'The holder that claimed the refund may make it, while its token is active.';
comment on column ledger.transition.active_token is 'Any holder of the active token may make it.';
comment on column ledger.transition.person is 'A person or a webhook may make it, with actor, reason and evidence.';
comment on column ledger.transition.debit is 'The account the money leaves; null where none moves.';
comment on column ledger.transition.credit is 'The account the money reaches; null where none moves.';


create table ledger.server (
    single boolean primary key default true,
    system_identifier bigint not null,
    timeline text not null,
    started_at timestamptz not null,
    failover text not null default 'hold',
    constraint failover_is_hold_or_lift check (failover in ('hold', 'lift')),
    constraint server_is_one_row check (single)
);

comment on table ledger.server is
    'The server that handed the tokens out. On another timeline every fenced call is refused until recovery (LG106).';
comment on column ledger.server.single is 'Always true: there is one row.';
comment on column ledger.server.system_identifier is 'The cluster''s identifier: a dump restored elsewhere shows here.';
comment on column ledger.server.timeline is 'The timeline, as the names of WAL files spell it.';
comment on column ledger.server.failover is
    'On a new timeline: hold refuses until recover_failover has run; lift lets the first call do the same by itself.';
comment on column ledger.server.started_at is
    'When the server started; only when this differs is the identifier looked at.';


create table ledger.kind (
    kind text collate "C" primary key,
    lock text not null default 'redis',
    mode text not null default 'enforce',
    lease_ttl interval not null default '30 seconds',
    idle_limit interval not null default '10 seconds',
    lock_limit interval not null default '5 seconds',
    transaction_limit interval,
    max_attempts integer not null default 5,
    key_window interval not null default '23 hours',
    constraint kind_has_a_name check (kind ~ '^[^[:cntrl:]:{}]{1,100}$'),
    constraint lock_is_redis_or_advisory check (lock in ('redis', 'advisory')),
    constraint mode_is_known check (mode in ('off', 'shadow', 'enforce')),
    constraint limits_are_positive check (
        lease_ttl > '0' and idle_limit > '0' and lock_limit > '0' and max_attempts > 0 and key_window > '0'
        and (transaction_limit is null or transaction_limit > '0')
    ),
    constraint limits_fit_a_setting check (
        greatest(lease_ttl, idle_limit, lock_limit, transaction_limit) <= '24 days'
    ),
    constraint idle_limit_is_within_the_lease check (idle_limit <= lease_ttl)
);

comment on table ledger.kind is 'A kind of job, the part of a resource before the colon, with its limits.';
comment on column ledger.kind.kind is 'The kind: settle in settle:m_4471.';
comment on column ledger.kind.lock is 'Where the leases of this kind live: redis or advisory.';
comment on column ledger.kind.mode is 'How protected tables of this kind are checked. Refund functions always enforce.';
comment on column ledger.kind.lease_ttl is 'How long a lease lasts without renewal.';
comment on column ledger.kind.idle_limit is
    'How long a client may be silent inside a transaction that wrote under a token.';
comment on column ledger.kind.lock_limit is 'How long a call waits at the gate or for a lock.';
comment on column ledger.kind.transaction_limit is
    'How long such a transaction may last at all (PostgreSQL 17+); null: no limit.';
comment on column ledger.kind.max_attempts is 'Claims of one refund before it goes to review.';
comment on column ledger.kind.key_window is 'How long the gateway surely remembers an idempotency key.';


create table ledger.fence (
    resource text collate "C" primary key,
    kind text collate "C" not null,
    active bigint not null,
    barrier bigint not null,
    holder text not null,
    activated_at timestamptz not null,
    idle_limit_ms integer not null,
    lock_limit_ms integer not null,
    transaction_limit_ms integer,
    max_attempts integer not null,
    key_window interval not null,
    constraint active_is_a_token check (active > 0),
    constraint barrier_is_not_below_active check (barrier >= active)
) with (fillfactor = 50);

create index fence_by_kind on ledger.fence (kind);

comment on table ledger.fence is
    'One row per resource that was ever activated: its only valid token, and its kind''s limits, so that the gate is '
    'one read.';
comment on column ledger.fence.resource is 'kind:name, what the lock protects.';
comment on column ledger.fence.kind is 'The part before the colon.';
comment on column ledger.fence.active is 'The only token under which writes pass.';
comment on column ledger.fence.barrier is
    'The last number drawn when the fence was last raised: numbers up to it, the active one aside, are void.';
comment on column ledger.fence.holder is 'Who activated the active token.';
comment on column ledger.fence.activated_at is 'When it was activated.';
comment on column ledger.fence.idle_limit_ms is 'From the kind, in milliseconds.';
comment on column ledger.fence.lock_limit_ms is 'From the kind, in milliseconds.';
comment on column ledger.fence.transaction_limit_ms is 'From the kind, in milliseconds.';
comment on column ledger.fence.max_attempts is 'From the kind.';
comment on column ledger.fence.key_window is 'From the kind.';


create table ledger.draw (
    resource text collate "C",
    token bigint,
    drawn_at timestamptz not null default clock_timestamp(),
    primary key (resource, token)
);

comment on table ledger.draw is
    'Numbers drawn and not yet passed by the barrier. A number without a row was never drawn.';
comment on column ledger.draw.resource is 'What the number was drawn for.';
comment on column ledger.draw.token is 'The number.';
comment on column ledger.draw.drawn_at is 'When it was drawn.';


-- fillfactor leaves room for HOT updates: a claim touches no index, and a set of claims updates every row of a page at
-- once. No index and no predicate may mention the state, or every claim would write to it. Refunds are updated twice
-- and then rest, so vacuum runs early.
create table ledger.refund (
    merchant_id text collate "C" not null,
    refund_id text collate "C" not null,
    amount_minor ledger.amount not null,
    fence bigint not null default 0,
    claimed_xid xid8,
    added_at timestamptz not null,
    first_claimed_at timestamptz,
    changed_at timestamptz not null,
    settled_at timestamptz,
    attempts integer not null default 0,
    journal_number integer not null default 1,
    maybe_sent boolean not null default false,
    state ledger.state not null default 'pending',
    currency text not null,
    idempotency_key text collate "C" not null,
    payment_ref text,
    gateway text,
    gateway_ref text,
    constraint refund_pkey primary key (merchant_id, refund_id),
    constraint idempotency_key_is_used_once unique (idempotency_key),
    constraint sent_has_gateway_ref check (state <> 'sent' or gateway_ref is not null)
) with (
    fillfactor = 50,
    autovacuum_vacuum_scale_factor = 0.02,
    autovacuum_vacuum_cost_delay = 0
);

create index refund_open on ledger.refund (merchant_id, refund_id) where settled_at is null;

comment on table ledger.refund is
    'The refunds as they stand. Changed by the functions alone; the journal can rebuild it.';
comment on column ledger.refund.merchant_id is
    'Whose refund it is; settle:<merchant_id> guards the row. Without a slash.';
comment on column ledger.refund.refund_id is 'The caller''s id, unique for the merchant.';
comment on column ledger.refund.amount_minor is 'The amount in the currency''s minor unit: 7025 is 70.25 EUR.';
comment on column ledger.refund.fence is 'The token under which the row was last changed; 0 before the first claim.';
comment on column ledger.refund.claimed_xid is
    'The transaction of a first claim: what it confirms, it must not have claimed itself.';
comment on column ledger.refund.added_at is 'When the refund was added.';
comment on column ledger.refund.first_claimed_at is
    'Since when a request may be at the gateway; the key window runs from here.';
comment on column ledger.refund.changed_at is 'When the row last changed.';
comment on column ledger.refund.settled_at is 'When the refund reached a final state; null while it is open.';
comment on column ledger.refund.attempts is 'Claims and takeovers; the holder''s own repetitions don''t count.';
comment on column ledger.refund.journal_number is 'The number of the row''s newest journal entry.';
comment on column ledger.refund.maybe_sent is
    'An earlier claimer''s request may be at the gateway, or may still arrive.';
comment on column ledger.refund.state is
    'pending, sending, unknown, accepted, review; final: sent, failed, cancelled, returned.';
comment on column ledger.refund.currency is 'ISO 4217.';
comment on column ledger.refund.idempotency_key is
    'The key under which the gateway sees the refund, for its whole life.';
comment on column ledger.refund.payment_ref is 'The payment that is refunded, as the gateway knows it.';
comment on column ledger.refund.gateway is 'Which gateway it goes to, where there is more than one.';
comment on column ledger.refund.gateway_ref is 'The gateway''s reference of the movement, or of what it accepted.';


create table ledger.journal (
    merchant_id text collate "C" not null,
    refund_id text collate "C" not null,
    number integer not null,
    attempts integer not null,
    at timestamptz not null,
    token bigint,
    amount_minor bigint,
    maybe_sent boolean not null,
    from_state text,
    to_state text not null,
    database_user text not null default session_user,
    currency text,
    debit text,
    credit text,
    gateway_ref text,
    actor text default nullif(current_setting('ledger.actor', true), ''),
    reason text,
    evidence jsonb,
    constraint journal_pkey primary key (merchant_id, refund_id, number),
    constraint money_moves_whole check (
        num_nonnulls(debit, credit, amount_minor, currency) in (0, 4)
        and (amount_minor is null or (amount_minor > 0 and debit <> credit))
    )
);

comment on table ledger.journal is
    'Every transition of every refund, in order, with the money it moves. Append-only. One row names both accounts.';
comment on column ledger.journal.merchant_id is 'Whose refund.';
comment on column ledger.journal.refund_id is 'Which refund.';
comment on column ledger.journal.number is '1, 2, 3 for this refund, without a gap.';
comment on column ledger.journal.attempts is 'The refund''s attempts after the transition.';
comment on column ledger.journal.at is 'When, by the server''s clock, read after the row was locked.';
comment on column ledger.journal.token is 'The token it was made under; null where none is needed.';
comment on column ledger.journal.amount_minor is 'The amount that moved; null where none did.';
comment on column ledger.journal.maybe_sent is 'The refund''s maybe_sent after the transition.';
comment on column ledger.journal.from_state is 'The state before; null when the refund was added.';
comment on column ledger.journal.to_state is 'The state after.';
comment on column ledger.journal.database_user is 'The session''s user.';
comment on column ledger.journal.currency is 'The currency of what moved.';
comment on column ledger.journal.debit is 'The account the money left.';
comment on column ledger.journal.credit is 'The account the money reached.';
comment on column ledger.journal.gateway_ref is 'The reference recorded with this transition.';
comment on column ledger.journal.actor is 'The person who acted; from the setting ledger.actor.';
comment on column ledger.journal.reason is 'Why.';
comment on column ledger.journal.evidence is 'What it rests on.';


-- Finished refunds that were moved out of the way, each with its whole journal. Never changed and never removed: what
-- is in here can't be added again. The columns are those of refund and journal, in their order.
create table ledger.archived_refund (
    like ledger.refund including comments,
    constraint archived_refund_pkey primary key (merchant_id, refund_id),
    constraint archived_key_is_used_once unique (idempotency_key)
);

comment on table ledger.archived_refund is
    'Finished refunds that archive_refunds moved here, as they were. Their ids and keys can''t be used again.';

create table ledger.archived_journal (
    like ledger.journal including comments,
    constraint archived_journal_pkey primary key (merchant_id, refund_id, number)
);

comment on table ledger.archived_journal is 'The journal of the archived refunds, whole, as it was.';

create table ledger.carried_balance (
    merchant_id text collate "C" not null,
    currency text not null,
    account text not null,
    balance_minor bigint not null,
    constraint carried_balance_pkey primary key (merchant_id, currency, account)
) with (fillfactor = 70);

comment on table ledger.carried_balance is
    'What the archived entries sum to, so that balances don''t depend on what was archived.';
comment on column ledger.carried_balance.merchant_id is 'Whose.';
comment on column ledger.carried_balance.currency is 'ISO 4217.';
comment on column ledger.carried_balance.account is 'The account, as in the journal.';
comment on column ledger.carried_balance.balance_minor is 'The sum, in the currency''s minor unit.';


create table ledger.event (
    event_id bigint generated always as identity primary key,
    at timestamptz not null default clock_timestamp(),
    event text not null,
    kind text,
    resource text collate "C",
    token bigint,
    holder text,
    previous_token bigint,
    previous_holder text,
    database_user text not null default session_user,
    actor text default nullif(current_setting('ledger.actor', true), ''),
    reason text default nullif(current_setting('ledger.reason', true), ''),
    detail jsonb,
    constraint event_is_known check (event in (
        'activated', 'session_ended', 'kind_set', 'mode_set', 'recovered',
        'protected', 'unprotected', 'exempted', 'paused', 'resumed', 'lease_broken', 'held', 'failover_set',
        'reviewed', 'requeued', 'archived', 'pruned'
    ))
);

create index event_by_resource on ledger.event (resource, token);
create index event_by_time on ledger.event (at);

comment on table ledger.event is
    'What happened to fences and kinds: who held a resource when, under which token. Added to, and pruned.';
comment on column ledger.event.event_id is 'Rises with time, roughly: it is taken before the commit.';
comment on column ledger.event.at is 'When, by the server''s clock.';
comment on column ledger.event.event is 'What happened.';
comment on column ledger.event.kind is 'The kind it concerns.';
comment on column ledger.event.resource is 'The resource it concerns; null for a whole kind or server.';
comment on column ledger.event.token is 'The token that was activated.';
comment on column ledger.event.holder is 'Who activated it.';
comment on column ledger.event.previous_token is 'The token that was active before.';
comment on column ledger.event.previous_holder is 'Who had activated that.';
comment on column ledger.event.database_user is 'The session''s user.';
comment on column ledger.event.actor is 'The person who acted.';
comment on column ledger.event.reason is 'Why.';
comment on column ledger.event.detail is 'The rest, as data.';


create table ledger.refusal (
    refusal_id bigint generated always as identity primary key,
    number bigint,
    at timestamptz not null default clock_timestamp(),
    code text not null,
    reason text,
    function text,
    kind text,
    resource text collate "C",
    merchant_id text collate "C",
    refund_id text collate "C",
    token bigint,
    active bigint,
    holder text,
    active_holder text,
    mode text not null default 'enforce',
    table_name text,
    message text,
    detail jsonb,
    database_user text not null default session_user,
    application_name text default nullif(current_setting('application_name', true), ''),
    client_address inet default inet_client_addr(),
    actor text default nullif(current_setting('ledger.actor', true), ''),
    constraint refusal_is_recorded_once unique (number),
    constraint code_is_a_sqlstate check (code ~ '^LG[1-3][0-9]{2}$')
);

create index refusal_by_refund on ledger.refusal (merchant_id, refund_id);
create index refusal_by_time on ledger.refusal (at);

comment on table ledger.refusal is
    'What was refused. Written on a second connection, since a refusal takes its own transaction with it.';
comment on column ledger.refusal.refusal_id is 'The row''s id.';
comment on column ledger.refusal.number is
    'The refusal''s number from refusal_seq, as in the DETAIL and the server log.';
comment on column ledger.refusal.at is 'When it was recorded.';
comment on column ledger.refusal.code is 'The SQLSTATE.';
comment on column ledger.refusal.reason is 'The finer reason, where the code has more than one.';
comment on column ledger.refusal.function is 'The function that refused.';
comment on column ledger.refusal.kind is 'The kind of job.';
comment on column ledger.refusal.resource is 'The resource.';
comment on column ledger.refusal.merchant_id is 'The merchant that was named.';
comment on column ledger.refusal.refund_id is 'The refund that was named.';
comment on column ledger.refusal.token is 'The token that was brought.';
comment on column ledger.refusal.active is 'The token that was active.';
comment on column ledger.refusal.holder is 'Who brought it.';
comment on column ledger.refusal.active_holder is 'Who held the active token.';
comment on column ledger.refusal.mode is 'enforce: refused. shadow: would have been refused.';
comment on column ledger.refusal.table_name is 'The protected table, where one was written to.';
comment on column ledger.refusal.message is 'What the caller was told.';
comment on column ledger.refusal.detail is 'The DETAIL, whole.';
comment on column ledger.refusal.database_user is 'The session''s user.';
comment on column ledger.refusal.application_name is 'The session''s application_name.';
comment on column ledger.refusal.client_address is 'Where it connected from; null over a socket.';
comment on column ledger.refusal.actor is 'The person who acted.';


create table ledger.pause (
    target text collate "C" primary key,
    paused_at timestamptz not null default clock_timestamp(),
    actor text not null,
    reason text not null
);

comment on table ledger.pause is 'The kinds and resources that may begin nothing now.';
comment on column ledger.pause.target is 'A kind, or a resource kind:name.';
comment on column ledger.pause.paused_at is 'Since when.';
comment on column ledger.pause.actor is 'By whom.';
comment on column ledger.pause.reason is 'Why.';


create table ledger.protected_table (
    relation regclass primary key,
    resource text collate "C",
    kind text collate "C" not null,
    column_name text,
    stamp boolean not null,
    protected_by text not null default session_user,
    protected_at timestamptz not null default clock_timestamp(),
    constraint one_resource_or_one_a_row check ((resource is null) <> (column_name is null))
);

comment on table ledger.protected_table is
    'The tables that the fence guards: what their triggers should say, for verify and for protecting them again.';
comment on column ledger.protected_table.relation is 'The table; for a partitioned one, the parent.';
comment on column ledger.protected_table.resource is
    'The resource that guards every row; null where each row has its own.';
comment on column ledger.protected_table.kind is 'The kind of the resource.';
comment on column ledger.protected_table.column_name is
    'The column a row''s resource comes from, <kind>:<value>; null where one resource guards every row.';
comment on column ledger.protected_table.stamp is 'Whether a column fence shows which token wrote a row last.';
comment on column ledger.protected_table.protected_by is 'The session''s user.';
comment on column ledger.protected_table.protected_at is 'When it was protected.';

create table ledger.exemption (
    transaction xid8 not null,
    relation regclass not null,
    at timestamptz not null default clock_timestamp(),
    database_user text not null default session_user,
    actor text not null,
    reason text not null,
    primary key (transaction, relation)
);

comment on table ledger.exemption is
    'Transactions that an operator let write to a protected table without a token, and why. Append-only.';
comment on column ledger.exemption.transaction is 'The transaction.';
comment on column ledger.exemption.relation is 'The protected table.';
comment on column ledger.exemption.at is 'When.';
comment on column ledger.exemption.database_user is 'The session''s user.';
comment on column ledger.exemption.actor is 'The person who acted.';
comment on column ledger.exemption.reason is 'Why.';


create table ledger.work (
    resource text collate "C" not null,
    work_id text collate "C" not null,
    state text not null default 'pending',
    attempts integer not null default 0,
    token bigint,
    reason text,
    added_at timestamptz not null default clock_timestamp(),
    changed_at timestamptz not null default clock_timestamp(),
    constraint work_pkey primary key (resource, work_id),
    constraint state_of_work_is_known check (state in ('pending', 'begun', 'failed', 'done', 'review'))
) with (fillfactor = 70);

comment on table ledger.work is
    'Work that is tried more than once, such as the jobs of a queue, with the attempts at it. One row for each.';
comment on column ledger.work.resource is 'Under whose token it is done.';
comment on column ledger.work.work_id is 'The caller''s id for it, unique for the resource.';
comment on column ledger.work.state is
    'pending, begun, failed (may be tried again), done; review: a person must look, nobody begins it.';
comment on column ledger.work.attempts is 'Attempts begun since it was added, or put back by a person.';
comment on column ledger.work.token is 'The token of the last attempt.';
comment on column ledger.work.reason is 'Why the last attempt failed, or why a person must look.';
comment on column ledger.work.added_at is 'When the first attempt was begun.';
comment on column ledger.work.changed_at is 'When the row last changed.';


create type ledger.attempt as (
    resource text,
    work_id text,
    outcome text,
    reason text,
    state text,
    attempt integer,
    max_attempts integer,
    token bigint
);
comment on type ledger.attempt is
    'What the functions on attempts return: what was done, and the work as it stands.';

create type ledger.gate_pass as (
    verdict text,
    active bigint,
    barrier bigint,
    holder text,
    activated_at timestamptz,
    is_paused boolean,
    max_attempts integer,
    key_window interval,
    is_known_server boolean,
    transaction_limit_ms integer,
    settings text
);
comment on type ledger.gate_pass is
    'What the gate found: verdict null when the token passes, and the fence as it stands.';

create type ledger.claim as (
    merchant_id text,
    refund_id text,
    amount_minor bigint,
    currency text,
    payment_ref text,
    gateway text,
    idempotency_key text,
    attempt integer,
    outcome text,
    reason text,
    previous_state text,
    previous_token bigint,
    first_claimed_at timestamptz
);
comment on type ledger.claim is
    'What a claim returns. outcome: claimed, send it; reclaimed, taken_over: ask the gateway first; review: a person '
    'must look.';

create type ledger.move as (
    merchant_id text,
    refund_id text,
    outcome text,
    reason text,
    state text,
    previous_state text,
    token bigint,
    amount_minor bigint,
    currency text,
    idempotency_key text,
    gateway_ref text,
    attempts integer,
    maybe_sent boolean,
    changed_at timestamptz
);
comment on type ledger.move is
    'What a move returns: what was done, or that it had been done already, and the refund as it stands.';

create type ledger.row_outcome as (
    position integer,
    refund_id text,
    outcome text,
    reason text,
    state text,
    amount_minor bigint,
    currency text,
    gateway_ref text
);
comment on type ledger.row_outcome is
    'One row of a set-based call, in the order given: an outcome, or the code that the single call would raise.';

create type ledger.added as (
    merchant_id text,
    refund_id text,
    outcome text,
    state text,
    amount_minor bigint,
    currency text,
    payment_ref text,
    gateway text,
    idempotency_key text
);
comment on type ledger.added is
    'What adding a refund returns. outcome: added, or already when the same refund was there.';

create type ledger.open_count as (
    state text,
    is_claimable boolean,
    refunds bigint
);
comment on type ledger.open_count is
    'How many of a merchant''s refunds are open in one state, and whether a token could claim them.';

create type ledger.finding as (
    "check" text,
    merchant_id text,
    refund_id text,
    resource text,
    finding text,
    detail jsonb
);
comment on type ledger.finding is 'Something verify found wrong.';

create type ledger.kind_limits as (
    kind text,
    lock text,
    mode text,
    lease_ttl interval,
    idle_limit interval,
    lock_limit interval,
    transaction_limit interval,
    max_attempts integer,
    key_window interval,
    known boolean
);
comment on type ledger.kind_limits is
    'A kind and its limits; known is false where these are the defaults that its first activation will write.';

create type ledger.archived as (
    refunds integer,
    entries integer,
    last_refund_id text
);
comment on type ledger.archived is
    'What a call of archive_refunds moved, and after which id the next one goes on; null when nothing is left.';

create type ledger.pruned as (
    events integer,
    last_event_id bigint
);
comment on type ledger.pruned is
    'What a call of prune_events forgot, and after which event the next one goes on; null when nothing is left.';


create view ledger.history as
select
    j.merchant_id,
    j.refund_id,
    j.number,
    j.at,
    j.from_state,
    j.to_state,
    j.token,
    e.holder,
    j.attempts,
    j.maybe_sent,
    j.debit,
    j.credit,
    j.amount_minor,
    j.currency,
    j.gateway_ref,
    j.database_user,
    j.actor,
    j.reason,
    j.evidence
from (select * from ledger.journal union all select * from ledger.archived_journal) as j
left join ledger.event as e
    on e.resource = 'settle:' || j.merchant_id and e.token = j.token and e.event = 'activated';

comment on view ledger.history is 'The journal, with the holder behind each token; of archived refunds too.';

create view ledger.balance as
select merchant_id, currency, account, sum(minor)::bigint as balance_minor
from (
    select merchant_id, currency, debit as account, -amount_minor as minor from ledger.journal where debit is not null
    union all
    select merchant_id, currency, credit, amount_minor from ledger.journal where credit is not null
    union all
    select merchant_id, currency, account, balance_minor from ledger.carried_balance
) as entry
group by merchant_id, currency, account;

comment on view ledger.balance is
    'What the entries sum to, archived ones too. merchant_available: what refunds took; refund_reserved: open; '
    'gateway_clearing: sent.';


create view ledger.refund_from_journal as
select
    j.merchant_id,
    j.refund_id,
    max(j.amount_minor) filter (where j.number = 1) as amount_minor,
    coalesce(max(j.token), 0) as fence,
    min(j.at) filter (where j.number = 1) as added_at,
    coalesce(
        max(j.at) filter (
            where (j.from_state = 'pending' and j.to_state = 'sending' and not j.maybe_sent)
                or (j.from_state = 'review' and j.to_state = 'pending' and j.maybe_sent)
        ),
        case when bool_or(j.maybe_sent) then min(j.at) filter (where j.number = 1) end
    ) as first_claimed_at,
    (array_agg(j.at order by j.number desc))[1] as changed_at,
    case
        when (array_agg(j.to_state order by j.number desc))[1] in ('sent', 'failed', 'cancelled', 'returned')
            then min(j.at) filter (where j.to_state in ('sent', 'failed', 'cancelled', 'returned'))
    end as settled_at,
    (array_agg(j.attempts order by j.number desc))[1] as attempts,
    max(j.number) as journal_number,
    (array_agg(j.maybe_sent order by j.number desc))[1] as maybe_sent,
    (array_agg(j.to_state order by j.number desc))[1] as state,
    max(j.currency) filter (where j.number = 1) as currency,
    max(j.evidence ->> 'idempotency_key') filter (where j.number = 1) as idempotency_key,
    max(j.evidence ->> 'payment_ref') filter (where j.number = 1) as payment_ref,
    max(j.evidence ->> 'gateway') filter (where j.number = 1) as gateway,
    (array_agg(j.gateway_ref order by j.number desc) filter (where j.gateway_ref is not null))[1] as gateway_ref
from ledger.journal as j
group by j.merchant_id, j.refund_id;

comment on view ledger.refund_from_journal is
    'The refunds as their journal makes them: what verify compares, and what a rebuild would write.';


create view ledger.metrics as
with open_refund as (
    select r.state, r.currency, r.amount_minor, r.changed_at from ledger.refund as r where r.settled_at is null
),
recent_refusal as (
    select
        coalesce(k.kind, '') as kind,
        r.code,
        -- Other reasons are text of whoever was refused, and would be a label each.
        case
            when r.reason in ('superseded', 'voided', 'row', 'not_claimed', 'claim_not_committed') then r.reason
            else ''
        end as reason,
        r.mode
    from ledger.refusal as r
    left join ledger.kind as k on k.kind = r.kind
    where r.at > statement_timestamp() - interval '5 minutes'
),
recent_event as (
    select
        -- What failover = lift does is done alone, at night, and worth an alarm; what a person does is not.
        case when e.event = 'recovered' and e.actor = 'ledger' then 'recovered_by_itself' else e.event end as event,
        coalesce(e.kind, '') as kind,
        e.resource
    from ledger.event as e
    where e.at > statement_timestamp() - interval '5 minutes'
)
select 'ledger_refunds_open' as name, jsonb_build_object('state', s.state) as labels, count(o.state)::float8 as value
from unnest(array['pending', 'sending', 'unknown', 'accepted', 'review']) as s (state)
left join open_refund as o on o.state = s.state
group by s.state
union all
select
    'ledger_refunds_oldest_seconds',
    jsonb_build_object('state', s.state),
    coalesce(extract(epoch from statement_timestamp() - min(o.changed_at)), 0)
from unnest(array['pending', 'sending', 'unknown', 'accepted', 'review']) as s (state)
left join open_refund as o on o.state = s.state
group by s.state
union all
select
    'ledger_refunds_open_minor',
    jsonb_build_object('state', o.state, 'currency', o.currency),
    sum(o.amount_minor)::float8
from open_refund as o
group by o.state, o.currency
union all
select
    'ledger_refusals_recent',
    jsonb_build_object('kind', kind, 'code', code, 'reason', reason, 'mode', mode),
    count(*)
from recent_refusal
group by kind, code, reason, mode
union all
select 'ledger_events_recent', jsonb_build_object('event', event, 'kind', kind), count(*)
from recent_event
group by event, kind
union all
select 'ledger_activations_recent_max', jsonb_build_object('kind', r.kind), max(r.activations)
from (
    select kind, count(*) as activations from recent_event where event = 'activated' group by kind, resource
) as r
group by r.kind
union all
select 'ledger_paused', jsonb_build_object('kind', split_part(p.target, ':', 1)), count(*)
from ledger.pause as p
group by 2
union all
select 'ledger_tokens_drawn_total', '{}', case when q.is_called then q.last_value else 0 end
from ledger.token_seq as q
union all
select 'ledger_refusals_total', '{}', case when q.is_called then q.last_value else 0 end
from ledger.refusal_seq as q
union all
select
    'ledger_server_known',
    '{}',
    (
        s.timeline = substr(pg_walfile_name(pg_current_wal_lsn()), 1, 8)
        and s.system_identifier = (select c.system_identifier from pg_control_system() as c)
    )::integer
from ledger.server as s
where not pg_is_in_recovery();

comment on view ledger.metrics is
    'What to watch, as names, labels and values; docs/metrics.md tells them. Recent: in the last five minutes. Reads '
    'open refunds and what is recent, by their indexes, and no whole table that grows.';


insert into ledger.transition
    (from_state, to_state, on_claim, own_token, active_token, person, debit, credit)
values
    (null, 'pending', false, false, false, true, 'merchant_available', 'refund_reserved'),
    ('pending', 'sending', true, false, false, false, null, null),
    ('sending', 'sending', true, false, false, false, null, null),
    ('unknown', 'sending', true, false, false, false, null, null),
    ('pending', 'review', true, false, false, true, null, null),
    ('sending', 'review', true, true, false, false, null, null),
    ('unknown', 'review', true, false, false, true, null, null),
    ('accepted', 'review', false, false, true, true, null, null),
    ('sending', 'sent', false, true, false, false, 'refund_reserved', 'gateway_clearing'),
    ('sending', 'failed', false, true, false, false, 'refund_reserved', 'merchant_available'),
    ('sending', 'unknown', false, true, false, false, null, null),
    ('sending', 'accepted', false, true, false, false, null, null),
    ('sending', 'pending', false, true, false, false, null, null),
    ('accepted', 'sent', false, false, true, true, 'refund_reserved', 'gateway_clearing'),
    ('accepted', 'failed', false, false, true, true, 'refund_reserved', 'merchant_available'),
    ('accepted', 'unknown', false, false, true, false, null, null),
    ('pending', 'cancelled', false, false, false, true, 'refund_reserved', 'merchant_available'),
    ('sent', 'returned', false, false, false, true, 'gateway_clearing', 'merchant_available'),
    ('review', 'sent', false, false, false, true, 'refund_reserved', 'gateway_clearing'),
    ('review', 'failed', false, false, false, true, 'refund_reserved', 'merchant_available'),
    ('review', 'returned', false, false, false, true, 'refund_reserved', 'merchant_available'),
    ('review', 'cancelled', false, false, false, true, 'refund_reserved', 'merchant_available'),
    ('review', 'pending', false, false, false, true, null, null);

insert into ledger.kind (kind) values ('settle');

insert into ledger.server (system_identifier, timeline, started_at)
select
    s.system_identifier,
    substr(pg_walfile_name(pg_current_wal_lsn()), 1, 8),
    pg_postmaster_start_time()
from pg_control_system() as s;

insert into ledger.currency (currency, exponent) values
    ('AED', 2), ('AFN', 2), ('ALL', 2), ('AMD', 2), ('AOA', 2), ('ARS', 2), ('AUD', 2),
    ('AWG', 2), ('AZN', 2), ('BAM', 2), ('BBD', 2), ('BDT', 2), ('BHD', 3), ('BIF', 0),
    ('BMD', 2), ('BND', 2), ('BOB', 2), ('BOV', 2), ('BRL', 2), ('BSD', 2), ('BTN', 2),
    ('BWP', 2), ('BYN', 2), ('BZD', 2), ('CAD', 2), ('CDF', 2), ('CHE', 2), ('CHF', 2),
    ('CHW', 2), ('CLF', 4), ('CLP', 0), ('CNY', 2), ('COP', 2), ('COU', 2), ('CRC', 2),
    ('CUP', 2), ('CVE', 2), ('CZK', 2), ('DJF', 0), ('DKK', 2), ('DOP', 2), ('DZD', 2),
    ('EGP', 2), ('ERN', 2), ('ETB', 2), ('EUR', 2), ('FJD', 2), ('FKP', 2), ('GBP', 2),
    ('GEL', 2), ('GHS', 2), ('GIP', 2), ('GMD', 2), ('GNF', 0), ('GTQ', 2), ('GYD', 2),
    ('HKD', 2), ('HNL', 2), ('HTG', 2), ('HUF', 2), ('IDR', 2), ('ILS', 2), ('INR', 2),
    ('IQD', 3), ('IRR', 2), ('ISK', 0), ('JMD', 2), ('JOD', 3), ('JPY', 0), ('KES', 2),
    ('KGS', 2), ('KHR', 2), ('KMF', 0), ('KPW', 2), ('KRW', 0), ('KWD', 3), ('KYD', 2),
    ('KZT', 2), ('LAK', 2), ('LBP', 2), ('LKR', 2), ('LRD', 2), ('LSL', 2), ('LYD', 3),
    ('MAD', 2), ('MDL', 2), ('MGA', 2), ('MKD', 2), ('MMK', 2), ('MNT', 2), ('MOP', 2),
    ('MRU', 2), ('MUR', 2), ('MVR', 2), ('MWK', 2), ('MXN', 2), ('MXV', 2), ('MYR', 2),
    ('MZN', 2), ('NAD', 2), ('NGN', 2), ('NIO', 2), ('NOK', 2), ('NPR', 2), ('NZD', 2),
    ('OMR', 3), ('PAB', 2), ('PEN', 2), ('PGK', 2), ('PHP', 2), ('PKR', 2), ('PLN', 2),
    ('PYG', 0), ('QAR', 2), ('RON', 2), ('RSD', 2), ('RUB', 2), ('RWF', 0), ('SAR', 2),
    ('SBD', 2), ('SCR', 2), ('SDG', 2), ('SEK', 2), ('SGD', 2), ('SHP', 2), ('SLE', 2),
    ('SOS', 2), ('SRD', 2), ('SSP', 2), ('STN', 2), ('SVC', 2), ('SYP', 2), ('SZL', 2),
    ('THB', 2), ('TJS', 2), ('TMT', 2), ('TND', 3), ('TOP', 2), ('TRY', 2), ('TTD', 2),
    ('TWD', 2), ('TZS', 2), ('UAH', 2), ('UGX', 0), ('USD', 2), ('USN', 2), ('UYI', 0),
    ('UYU', 2), ('UYW', 4), ('UZS', 2), ('VED', 2), ('VES', 2), ('VND', 0), ('VUV', 0),
    ('WST', 2), ('XAD', 2), ('XAF', 0), ('XCD', 2), ('XCG', 2), ('XOF', 0), ('XPF', 0),
    ('YER', 2), ('ZAR', 2), ('ZMW', 2), ('ZWG', 2);

grant usage on schema ledger to ledger_fn, ledger_worker, ledger_operator, ledger_reader;

grant select on all tables in schema ledger to ledger_fn, ledger_worker, ledger_operator, ledger_reader;
grant insert, update, delete on ledger.fence, ledger.draw to ledger_fn;
grant insert, update on ledger.refund, ledger.kind, ledger.server, ledger.work, ledger.carried_balance to ledger_fn;
grant insert, update, delete on ledger.protected_table, ledger.pause to ledger_fn;
grant insert on ledger.journal, ledger.event, ledger.refusal, ledger.exemption to ledger_fn;
grant insert on ledger.archived_refund, ledger.archived_journal to ledger_fn;
-- What isn't in the archive can't be deleted: guard_archive. Nor can what isn't to be pruned: guard_pruning.
grant delete on ledger.refund, ledger.journal, ledger.refusal, ledger.event, ledger.work to ledger_fn;
grant usage, select, update on ledger.token_seq to ledger_fn;
grant usage, select on ledger.refusal_seq to ledger_fn;

reset role;
