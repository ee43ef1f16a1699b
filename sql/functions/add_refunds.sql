-- Record many refunds of one merchant, 1,000 at most; one row comes back for each, in the order given.
--
-- A row whose id or key exists with other content gets the outcome LG301 and changes nothing; the others are
-- added. An optional array that is null stands for nulls. What was archived is recorded still.
--
-- Each row is looked up by its key on its own: whatever the planner thinks of the merchant, the time grows with the
-- batch alone.
--
-- Refuses, first match wins:
--   LG304 BadArgument   null or unequal arrays, more than 1,000 rows, or a malformed id, key, reference or gateway
--   LG302 BadAmount     an amount isn't positive, or a currency isn't known

create or replace function ledger.add_refunds(
    merchant_id text,
    refund_ids text[],
    amounts_minor bigint[],
    currencies text[],
    payment_refs text[] default null,
    gateways text[] default null,
    idempotency_keys text[] default null
)
returns setof ledger.row_outcome
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
    call jsonb := jsonb_build_object('function', 'add_refunds', 'merchant_id', merchant_id);
    size integer := cardinality(refund_ids);
    at timestamptz := clock_timestamp();
    keys text[];
    bad record;
    added_ids jsonb;
    added_count bigint;
    outcomes ledger.row_outcome[];
begin
    perform ledger.check_arrays(
        call, size, cardinality(amounts_minor), cardinality(currencies),
        case when payment_refs is null then size else cardinality(payment_refs) end,
        case when gateways is null then size else cardinality(gateways) end,
        case when idempotency_keys is null then size else cardinality(idempotency_keys) end
    );

    select array_agg(coalesce(g.key, add_refunds.merchant_id || '/' || g.refund_id) order by g.position)
    into keys
    from unnest(refund_ids, idempotency_keys) with ordinality as g (refund_id, key, position)
    where g.position <= size;

    select g.* into bad
    from unnest(refund_ids, amounts_minor, currencies, payment_refs, gateways, keys)
        with ordinality as g (refund_id, amount_minor, currency, payment_ref, gateway, key, position)
    where ledger.refund_problem(add_refunds.merchant_id, g.refund_id, g.payment_ref, g.gateway, g.key) is not null
        or g.amount_minor is null
        or g.amount_minor <= 0
        or not exists (select from ledger.currency as c where c.currency = g.currency)
    order by
        ledger.refund_problem(add_refunds.merchant_id, g.refund_id, g.payment_ref, g.gateway, g.key) is null,
        g.position
    limit 1;
    if found then
        perform ledger.check_refund(
            call || jsonb_build_object(
                'refund_id', bad.refund_id, 'position', bad.position,
                'amount_minor', bad.amount_minor, 'currency', bad.currency
            ),
            merchant_id, bad.refund_id, bad.amount_minor, bad.currency, bad.payment_ref, bad.gateway, bad.key
        );
    end if;

    with added as (
        insert into ledger.refund (
            merchant_id, refund_id, amount_minor, currency, payment_ref, gateway, idempotency_key, added_at, changed_at
        )
        select
            add_refunds.merchant_id, g.refund_id, g.amount_minor, g.currency, g.payment_ref, g.gateway, g.key, at, at
        from unnest(refund_ids, amounts_minor, currencies, payment_refs, gateways, keys)
            as g (refund_id, amount_minor, currency, payment_ref, gateway, key)
        left join lateral (
            select true as is_known
            from ledger.refund as r
            where r.merchant_id = add_refunds.merchant_id and r.refund_id = g.refund_id
            offset 0
        ) as k on true
        left join lateral (
            select true as is_archived
            from ledger.archived_refund as a
            where a.merchant_id = add_refunds.merchant_id and a.refund_id = g.refund_id
            union all
            select true
            from ledger.archived_refund as a
            where a.idempotency_key = g.key
            limit 1
        ) as h on true
        where k.is_known is null and h.is_archived is null
        order by g.refund_id
        on conflict do nothing
        returning refund.refund_id, refund.amount_minor, refund.currency, refund.payment_ref, refund.gateway,
            refund.idempotency_key
    ),
    journaled as (
        insert into ledger.journal (
            merchant_id, refund_id, number, attempts, at, maybe_sent, to_state,
            amount_minor, currency, debit, credit, evidence, reason
        )
        select
            add_refunds.merchant_id, a.refund_id, 1, 0, at, false, 'pending',
            a.amount_minor, a.currency, t.debit, t.credit,
            ledger.refund_origin(a.payment_ref, a.gateway, a.idempotency_key),
            nullif(current_setting('ledger.reason', true), '')
        from added as a
        cross join ledger.transition as t
        where t.from_state is null
    )
    select jsonb_object_agg(a.refund_id, true), count(*) into added_ids, added_count from added as a;
    if added_count = size then
        -- Nothing was there before: what is recorded is what was given.
        return query
        select g.position::integer, g.refund_id, 'added', null::text, 'pending', g.amount_minor, g.currency, null::text
        from unnest(refund_ids, amounts_minor, currencies)
            with ordinality as g (refund_id, amount_minor, currency, position);
        return;
    end if;

    select array_agg(
        row(
            g.position, g.refund_id,
            case
                when (k.refund).refund_id is null then 'LG301'
                when ledger.refund_difference(
                    k.refund, g.amount_minor, g.currency, g.payment_ref, g.gateway, g.key
                ) is not null then 'LG301'
                when g.occurrence = 1 and jsonb_exists(added_ids, g.refund_id) then 'added'
                else 'already'
            end,
            case
                when (k.refund).refund_id is null then 'idempotency_key'
                else ledger.refund_difference(k.refund, g.amount_minor, g.currency, g.payment_ref, g.gateway, g.key)
            end,
            (k.refund).state, g.amount_minor, g.currency, (k.refund).gateway_ref
        )::ledger.row_outcome order by g.position
    )
    into outcomes
    from (
        select u.*, row_number() over (partition by u.refund_id order by u.position) as occurrence
        from unnest(refund_ids, amounts_minor, currencies, payment_refs, gateways, keys)
            with ordinality as u (refund_id, amount_minor, currency, payment_ref, gateway, key, position)
    ) as g
    left join lateral (
        select r as refund
        from ledger.refund as r
        where r.merchant_id = add_refunds.merchant_id and r.refund_id = g.refund_id
        union all
        select row(a.*)::ledger.refund
        from ledger.archived_refund as a
        where a.merchant_id = add_refunds.merchant_id and a.refund_id = g.refund_id
        limit 1
    ) as k on true;

    perform ledger.record_row_refusals(call, outcomes);
    return query select o.* from unnest(outcomes) as o;
end;
$$;

comment on function ledger.add_refunds(text, text[], bigint[], text[], text[], text[], text[]) is
    'Record many refunds of one merchant; a row with other content gets LG301. Refuses: LG304, LG302.';
