-- Take the next refunds of a merchant for sending, in the order of their ids, after a cursor.
--
-- Pass the last id of one call as after_refund_id of the next. Pending refunds, and those an older token left in
-- sending or unknown, are taken; this token's own sending ones only with reclaim. Rows that another transaction
-- has locked are passed over, so a short or empty answer isn't the end of the work: no open pending, sending or
-- unknown row is. Outcomes are those of claim_refund; a row that goes to review comes back, too.
--
-- Rows are locked in one order, decided in the locking statement, and written from arrays, each by its place in the
-- table, which can't change while it is locked: no plan can read more of the table than was asked for, nor make the
-- time grow faster than the batch. (By its id, a planner that thinks the merchant small joins all with all.)
--
-- Refuses, first match wins:
--   LG304 BadArgument     the merchant or the cursor is null, or max_rows isn't from 1 to 1000
--   55P03                 an activation holds the gate for longer than the limit
--   LG106 RecoveryNeeded  the server was promoted or restored
--   LG107 Paused          an operator paused the merchant or the kind
--   LG102, LG105, LG101   the token isn't the active one

create or replace function ledger.claim_refunds(
    merchant_id text,
    token bigint,
    max_rows integer,
    after_refund_id text default '',
    reclaim boolean default false
)
returns setof ledger.claim
language plpgsql
security definer
set search_path = pg_catalog, pg_temp
set plan_cache_mode = force_generic_plan
set enable_seqscan = off
set enable_hashjoin = off
set enable_mergejoin = off
set enable_bitmapscan = off
set jit = off
as $$
declare
    call jsonb := jsonb_build_object('function', 'claim_refunds', 'merchant_id', merchant_id, 'token', token);
    gate ledger.gate_pass;
    now_at timestamptz;
    places tid[];
    ids text[];
    decisions text[];
    to_states text[];
    attempt_counts integer[];
    numbers integer[];
    states text[];
    marks boolean[];
    changes boolean[];
    firsts timestamptz[];
    claims ledger.claim[];
begin
    if merchant_id is null or after_refund_id is null or reclaim is null then
        perform ledger.refuse_argument(call, 'merchant_id, after_refund_id and reclaim must not be null');
    end if;
    if coalesce(max_rows not between 1 and 1000, true) then
        perform ledger.refuse_argument(call, 'max_rows is from 1 to 1000');
    end if;

    gate := ledger.pass_gate('claim_refunds', 'settle:' || merchant_id, token);
    if gate.is_paused then
        perform ledger.check_paused(call, 'settle:' || merchant_id);
    end if;
    if gate.verdict is not null then
        perform ledger.refuse_token(call, 'settle:' || merchant_id, token, gate);
    end if;

    now_at := clock_timestamp();
    select
        array_agg(d.place), array_agg(d.refund_id), array_agg(d.decision), array_agg(d.to_state), array_agg(d.attempt),
        array_agg(d.journal_number + 1), array_agg(d.state), array_agg(d.marked), array_agg(d.first_at),
        array_agg(d.decision <> 'reclaimed' or not d.maybe_sent),
        array_agg(
            row(
                claim_refunds.merchant_id, d.refund_id, d.amount_minor, d.currency, d.payment_ref, d.gateway,
                d.idempotency_key, d.attempt,
                case when d.to_state = 'review' then 'review' else d.decision end,
                case when d.to_state = 'review' then d.decision end,
                d.state, nullif(d.fence, 0), d.first_at
            )::ledger.claim
        )
    into places, ids, decisions, to_states, attempt_counts, numbers, states, marks, firsts, changes, claims
    from (
        select
            c.*,
            case when c.decision in ('attempts_used_up', 'key_window_over') then 'review' else 'sending' end
                as to_state,
            c.attempts + case when c.decision in ('claimed', 'taken_over') then 1 else 0 end as attempt,
            c.maybe_sent or c.state <> 'pending' as marked,
            case when c.decision = 'claimed' then now_at else c.first_claimed_at end as first_at
        from (
            select
                r.ctid as place, r.refund_id, r.state, r.fence, r.attempts, r.journal_number, r.maybe_sent,
                r.first_claimed_at,
                r.amount_minor, r.currency, r.payment_ref, r.gateway, r.idempotency_key,
                ledger.claim_outcome(
                    r.state, r.fence, r.maybe_sent, r.attempts, r.first_claimed_at,
                    claim_refunds.token, gate.max_attempts, gate.key_window, now_at
                ) as decision
            from ledger.refund as r
            where r.merchant_id = claim_refunds.merchant_id
                and r.refund_id > after_refund_id
                and r.settled_at is null
                and ledger.claim_outcome(
                    r.state, r.fence, r.maybe_sent, r.attempts, r.first_claimed_at,
                    claim_refunds.token, gate.max_attempts, gate.key_window, now_at
                ) not like 'LG%'
                and (reclaim or r.state <> 'sending' or r.fence <> claim_refunds.token)
            order by r.refund_id
            limit max_rows
            for no key update skip locked
        ) as c
    ) as d;

    update ledger.refund as r
    set state = i.to_state,
        fence = claim_refunds.token,
        attempts = i.attempt,
        maybe_sent = i.marked,
        claimed_xid = case
            when i.decision = 'claimed' then pg_current_xact_id()
            when i.decision = 'reclaimed' then r.claimed_xid
        end,
        first_claimed_at = i.first_at,
        changed_at = now_at,
        journal_number = i.number
    from unnest(places, decisions, to_states, attempt_counts, numbers, marks, firsts, changes)
        as i (place, decision, to_state, attempt, number, marked, first_at, changes)
    where r.ctid = i.place and i.changes;

    insert into ledger.journal (
        merchant_id, refund_id, number, attempts, at, token, maybe_sent, from_state, to_state, reason
    )
    select
        claim_refunds.merchant_id, i.refund_id, i.number, i.attempt, now_at, claim_refunds.token, i.marked,
        i.state, i.to_state,
        coalesce(nullif(i.decision, 'claimed'), nullif(current_setting('ledger.reason', true), ''))
    from unnest(ids, decisions, to_states, attempt_counts, numbers, marks, states, changes)
        as i (refund_id, decision, to_state, attempt, number, marked, state, changes)
    where i.changes;

    return query select c.* from unnest(claims) as c;
end;
$$;

comment on function ledger.claim_refunds(text, bigint, integer, text, boolean) is
    'Take a merchant''s next refunds for sending, in order, after a cursor. '
    'Refuses: LG304, 55P03, LG106, LG107, LG102, LG105, LG101.';
