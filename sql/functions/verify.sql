-- Compare everything that is written down twice. No row means that nothing is wrong.
--
-- check                   what was found
-- journal_is_whole        a number is missing, or an entry doesn't begin where the one before it ended
-- journal_is_legal        an entry makes a move that the table transition doesn't list, or moves money otherwise
-- journal_is_fenced       an entry's token was never activated, or tokens fall
-- row_is_journaled        a refund isn't what its journal makes it
-- entry_has_a_refund      entries without a refund
-- fence_is_ahead          a refund carries a newer token than its fence, or a fence than the sequence
-- balance_is_conserved    a merchant's balances don't match its refunds
-- gateway_ref_is_single   one gateway reference on two refunds
-- archive_is_whole        an archived refund isn't what its archived journal ends in, or is still outside as well
-- trigger_is_on           a guard trigger is missing, disabled or not ENABLE ALWAYS
-- table_is_protected      a protected table isn't protected as its entry says
--
-- Reads whole tables unless a merchant is named.
--
-- Refuses nothing.

create or replace function ledger.verify(merchant_id text default null)
returns setof ledger.finding
language plpgsql
stable
security definer
set search_path = pg_catalog, pg_temp
as $$
begin
    return query
    select 'journal_is_whole', j.merchant_id, j.refund_id, null::text,
        format('entry %s follows entry %s: from %s after %s', j.number, j.before_number, j.from_state, j.before_state),
        jsonb_build_object('number', j.number)
    from (
        select
            e.*,
            lag(e.number) over w as before_number,
            lag(e.to_state) over w as before_state
        from ledger.journal as e
        where verify.merchant_id is null or e.merchant_id = verify.merchant_id
        window w as (partition by e.merchant_id, e.refund_id order by e.number)
    ) as j
    where j.number <> coalesce(j.before_number, 0) + 1 or j.from_state is distinct from j.before_state;

    return query
    select 'journal_is_legal', j.merchant_id, j.refund_id, null::text,
        format(
            'entry %s: %s to %s moves %s from %s to %s',
            j.number, j.from_state, j.to_state, j.amount_minor, j.debit, j.credit
        ),
        jsonb_build_object('number', j.number)
    from ledger.journal as j
    left join ledger.transition as t on t.from_state is not distinct from j.from_state and t.to_state = j.to_state
    left join ledger.refund as r on r.merchant_id = j.merchant_id and r.refund_id = j.refund_id
    where (verify.merchant_id is null or j.merchant_id = verify.merchant_id)
        and (
            (t.to_state is null and j.from_state is distinct from j.to_state)
            or j.debit is distinct from t.debit
            or j.credit is distinct from t.credit
            or (j.debit is not null and (j.amount_minor <> r.amount_minor or j.currency <> r.currency))
        );

    return query
    select 'journal_is_fenced', j.merchant_id, j.refund_id, 'settle:' || j.merchant_id,
        format('entry %s: token %s after %s, %s', j.number, j.token, j.before_token,
            case when j.is_activated then 'activated' else 'never activated' end),
        jsonb_build_object('number', j.number, 'token', j.token)
    from (
        select
            e.*,
            max(e.token) over w as before_token,
            exists (
                select
                from ledger.event as a
                where a.resource = 'settle:' || e.merchant_id and a.token = e.token and a.event = 'activated'
            ) as is_activated
        from ledger.journal as e
        where verify.merchant_id is null or e.merchant_id = verify.merchant_id
        window w as (
            partition by e.merchant_id, e.refund_id order by e.number
            rows between unbounded preceding and 1 preceding
        )
    ) as j
    where j.token is not null and (not j.is_activated or j.token < j.before_token);

    return query
    select 'row_is_journaled', coalesce(r.merchant_id, j.merchant_id), coalesce(r.refund_id, j.refund_id), null::text,
        format('the row is %s under token %s, its journal says %s under %s', r.state, r.fence, j.state, j.fence),
        jsonb_build_object('row', to_jsonb(r) - 'claimed_xid', 'journal', to_jsonb(j))
    from ledger.refund as r
    left join ledger.refund_from_journal as j on j.merchant_id = r.merchant_id and j.refund_id = r.refund_id
    where (verify.merchant_id is null or r.merchant_id = verify.merchant_id)
        and (to_jsonb(r) - 'claimed_xid') is distinct from to_jsonb(j);

    return query
    select distinct 'entry_has_a_refund', j.merchant_id, j.refund_id, null::text,
        'the journal has entries, but there is no refund', '{}'::jsonb
    from ledger.journal as j
    where (verify.merchant_id is null or j.merchant_id = verify.merchant_id)
        and not exists (
            select from ledger.refund as r where r.merchant_id = j.merchant_id and r.refund_id = j.refund_id
        );

    return query
    select 'fence_is_ahead', r.merchant_id, r.refund_id, 'settle:' || r.merchant_id,
        format('the row carries token %s, its fence %s', r.fence, f.active),
        jsonb_build_object('row_token', r.fence, 'active', f.active)
    from ledger.refund as r
    left join ledger.fence as f on f.resource = 'settle:' || r.merchant_id
    where (verify.merchant_id is null or r.merchant_id = verify.merchant_id) and r.fence > coalesce(f.active, 0);

    return query
    select 'fence_is_ahead', null::text, null::text, f.resource,
        format('its barrier is %s, the sequence is at %s', f.barrier, s.last_value),
        jsonb_build_object('barrier', f.barrier, 'last_drawn', s.last_value)
    from ledger.fence as f
    cross join ledger.token_seq as s
    where f.barrier > s.last_value;

    return query
    select 'balance_is_conserved', b.merchant_id, null::text, null::text,
        format('%s %s: the journal has %s, the refunds %s', b.currency, b.account, b.journaled, b.recorded),
        jsonb_build_object('currency', b.currency, 'account', b.account)
    from (
        select
            x.merchant_id, x.currency, x.account,
            sum(x.minor) filter (where x.source = 'journal') as journaled,
            sum(x.minor) filter (where x.source = 'refund') as recorded
        from (
            select 'journal' as source, a.merchant_id, a.currency, a.account, a.balance_minor::numeric as minor
            from ledger.balance as a
            where a.balance_minor <> 0
            union all
            select 'refund', r.merchant_id, r.currency, v.account, v.minor
            from (select r.* from ledger.refund as r union all select a.* from ledger.archived_refund as a) as r
            cross join lateral (
                values
                    (case when r.state in ('failed', 'cancelled', 'returned') then null else 'merchant_available' end,
                        -r.amount_minor),
                    (case when r.settled_at is null then 'refund_reserved'
                        when r.state = 'sent' then 'gateway_clearing' end,
                        r.amount_minor)
            ) as v (account, minor)
            where v.account is not null
        ) as x
        where verify.merchant_id is null or x.merchant_id = verify.merchant_id
        group by x.merchant_id, x.currency, x.account
    ) as b
    where coalesce(b.journaled, 0) <> coalesce(b.recorded, 0);

    return query
    select 'gateway_ref_is_single', min(r.merchant_id), null::text, null::text,
        format('gateway reference %s is on %s refunds', r.gateway_ref, count(*)),
        jsonb_build_object('gateway_ref', r.gateway_ref, 'refunds', jsonb_agg(r.merchant_id || '/' || r.refund_id))
    from (select r.* from ledger.refund as r union all select a.* from ledger.archived_refund as a) as r
    where r.gateway_ref is not null and (verify.merchant_id is null or r.merchant_id = verify.merchant_id)
    group by r.gateway, r.gateway_ref
    having count(*) > 1;

    return query
    select 'archive_is_whole', a.merchant_id, a.refund_id, null::text,
        format(
            'archived as %s after %s entries, its archived journal has %s and ends in %s',
            a.state, a.journal_number, count(j.number), max(j.to_state) filter (where j.number = a.journal_number)
        ),
        jsonb_build_object('is_still_outside', r.refund_id is not null)
    from ledger.archived_refund as a
    left join ledger.archived_journal as j on j.merchant_id = a.merchant_id and j.refund_id = a.refund_id
    left join ledger.refund as r on r.merchant_id = a.merchant_id and r.refund_id = a.refund_id
    where verify.merchant_id is null or a.merchant_id = verify.merchant_id
    group by a.merchant_id, a.refund_id, a.state, a.journal_number, r.refund_id
    having count(j.number) <> a.journal_number
        or max(j.to_state) filter (where j.number = a.journal_number) is distinct from a.state
        or r.refund_id is not null;

    return query
    select 'trigger_is_on', null::text, null::text, 'ledger.' || c.name,
        coalesce('its guard is enabled as ' || t.tgenabled::text || ', not A (always)', 'its guard is missing'),
        jsonb_build_object('table', c.name, 'trigger', c.name || c.suffix, 'enabled', t.tgenabled)
    from (
        select g.name, '_is_guarded' as suffix
        from unnest(array[
            'refund', 'journal', 'fence', 'draw', 'kind', 'event', 'refusal', 'server', 'currency', 'transition',
            'protected_table', 'exemption', 'pause', 'work', 'archived_refund', 'archived_journal', 'carried_balance'
        ]) as g (name)
        union all
        select g.name, '_is_archived' from unnest(array['refund', 'journal']) as g (name)
        union all
        select g.name, '_is_pruned' from unnest(array['event', 'work']) as g (name)
    ) as c
    left join pg_trigger as t on t.tgrelid = to_regclass('ledger.' || c.name) and t.tgname = c.name || c.suffix
    where t.tgenabled is distinct from 'A';

    return query
    select 'table_is_protected', null::text, null::text, u.relation::text, u.finding, u.detail
    from ledger.unprotected_tables() as u;
end;
$$;

comment on function ledger.verify(text) is
    'Compare everything that is written down twice; no row means nothing is wrong. Refuses nothing.';
