-- Record many refunds of one merchant as sent, 1,000 at most; one row comes back for each, in the order given.
--
-- outcome is confirmed, already_confirmed, or the code that confirm_refund would raise for that row; such a row
-- changes nothing, and the others go through. A refund that is named twice is confirmed once.
--
-- Each row is looked up by its key, in order, and written by its place in the table, which can't change while it is
-- locked: whatever the planner thinks of the merchant, the time grows with the batch alone.
--
-- Refuses, first match wins:
--   LG304 BadArgument     an array or an element is null or empty, the arrays are unequal or longer than 1,000
--   55P03                 an activation holds the gate for longer than the limit
--   LG106 RecoveryNeeded  the server was promoted or restored
--   LG102, LG105, LG101   the token isn't the active one, and some row isn't recorded under it yet; DETAIL lists
--                         those that are, and the references of those that aren't, so that they aren't lost

create or replace function ledger.confirm_refunds(
    merchant_id text,
    token bigint,
    refund_ids text[],
    gateway_refs text[]
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
    call jsonb := jsonb_build_object('function', 'confirm_refunds', 'merchant_id', merchant_id, 'token', token);
    gate ledger.gate_pass;
    now_at timestamptz;
    places tid[];
    ids text[];
    refs text[];
    numbers integer[];
    attempt_counts integer[];
    marks boolean[];
    amounts bigint[];
    currencies text[];
    states text[];
    decisions text[];
    outcomes ledger.row_outcome[];
    recorded jsonb;
    unrecorded jsonb;
begin
    perform ledger.check_arrays(call, cardinality(refund_ids), cardinality(gateway_refs));
    if coalesce(merchant_id, '') = '' then
        perform ledger.refuse_argument(call, 'merchant_id must be given');
    end if;
    if exists (
        select
        from unnest(refund_ids, gateway_refs) as g (refund_id, gateway_ref)
        where coalesce(g.refund_id, '') = ''
            or ledger.gateway_ref_problem(g.gateway_ref) is not null
    ) then
        perform ledger.refuse_argument(call, 'every refund id and every gateway reference must be given and printable');
    end if;

    gate := ledger.pass_gate('confirm_refunds', 'settle:' || merchant_id, token);

    if gate.verdict is null then
        perform
        from (select u.id collate "C" as id from unnest(refund_ids) as u (id) order by 1) as g
        cross join lateral (
            select
            from ledger.refund as r
            where r.merchant_id = confirm_refunds.merchant_id and r.refund_id = g.id
            for no key update
        ) as locked;
    end if;

    now_at := clock_timestamp();
    select
        array_agg(d.place order by d.position),
        array_agg(d.refund_id order by d.position), array_agg(d.ref order by d.position),
        array_agg(d.journal_number + 1 order by d.position), array_agg(d.attempts order by d.position),
        array_agg(d.maybe_sent order by d.position), array_agg(d.amount_minor order by d.position),
        array_agg(d.currency order by d.position), array_agg(d.state order by d.position),
        array_agg(d.decision order by d.position),
        array_agg(
            row(
                d.position, d.refund_id, split_part(d.decision, ' ', 1), nullif(split_part(d.decision, ' ', 2), ''),
                case when d.verdict = 'confirmed' then 'sent' else d.state end, d.amount_minor, d.currency,
                case when d.verdict = 'confirmed' then d.first_ref else d.gateway_ref end
            )::ledger.row_outcome order by d.position
        ),
        jsonb_agg(d.refund_id order by d.position) filter (where d.is_recorded),
        jsonb_object_agg(d.refund_id, d.ref) filter (where not d.is_recorded)
    into places, ids, refs, numbers, attempt_counts, marks, amounts, currencies, states, decisions, outcomes,
        recorded, unrecorded
    from (
        select
            v.*,
            case
                when v.verdict <> 'confirmed' or v.occurrence = 1 then v.verdict
                when v.ref = v.first_ref then 'already_confirmed'
                else 'LG303'
            end as decision
        from (
            select q.*, row_number() over w as occurrence, first_value(q.ref) over w as first_ref
            from (
                select
                    r.place, g.refund_id, g.ref, g.position::integer,
                    r.state, r.gateway_ref, r.journal_number, r.attempts, r.maybe_sent, r.amount_minor, r.currency,
                    coalesce(r.state = 'sent' and r.fence = confirm_refunds.token and r.gateway_ref = g.ref, false)
                        as is_recorded,
                    case
                        when r.state is null then 'LG201'
                        when r.state = 'sent' and r.gateway_ref = g.ref then 'already_confirmed'
                        when r.fence > confirm_refunds.token then 'LG101 row'
                        when r.state in ('sending', 'sent', 'returned', 'accepted') and r.gateway_ref <> g.ref
                            then 'LG303'
                        when r.settled_at is not null then 'LG202'
                        when r.state <> 'accepted' and (r.state <> 'sending' or r.fence < confirm_refunds.token)
                            then 'LG203 not_claimed'
                        when r.claimed_xid = pg_current_xact_id_if_assigned() then 'LG203 claim_not_committed'
                        else 'confirmed'
                    end as verdict
                from unnest(refund_ids, gateway_refs) with ordinality as g (refund_id, ref, position)
                left join lateral (
                    select x.ctid as place, x.*
                    from ledger.refund as x
                    where x.merchant_id = confirm_refunds.merchant_id and x.refund_id = g.refund_id
                    offset 0
                ) as r on true
            ) as q
            window w as (partition by q.refund_id, q.verdict order by q.position)
        ) as v
    ) as d;

    if gate.verdict is not null then
        if coalesce(jsonb_array_length(recorded), 0) < cardinality(refund_ids) or cardinality(refund_ids) = 0 then
            perform ledger.refuse_token(
                call || jsonb_build_object(
                    'recorded', coalesce(recorded, '[]'), 'unrecorded', coalesce(unrecorded, '{}')
                ),
                'settle:' || merchant_id, token, gate
            );
        end if;
        return query select o.* from unnest(outcomes) as o;
        return;
    end if;

    update ledger.refund as r
    set state = 'sent',
        fence = confirm_refunds.token,
        gateway_ref = i.ref,
        changed_at = now_at,
        settled_at = now_at,
        journal_number = i.number
    from unnest(places, refs, numbers, decisions) as i (place, ref, number, decision)
    where r.ctid = i.place and i.decision = 'confirmed';

    insert into ledger.journal (
        merchant_id, refund_id, number, attempts, at, token, amount_minor, maybe_sent, from_state, to_state,
        currency, debit, credit, gateway_ref, reason
    )
    select
        confirm_refunds.merchant_id, i.refund_id, i.number, i.attempts, now_at, confirm_refunds.token, i.amount_minor,
        i.maybe_sent, i.state, 'sent', i.currency, t.debit, t.credit, i.ref,
        nullif(current_setting('ledger.reason', true), '')
    from unnest(ids, refs, numbers, attempt_counts, marks, amounts, currencies, states, decisions)
        as i (refund_id, ref, number, attempts, maybe_sent, amount_minor, currency, state, decision)
    cross join ledger.transition as t
    where i.decision = 'confirmed' and t.from_state = 'sending' and t.to_state = 'sent';

    perform ledger.record_row_refusals(call, outcomes);
    return query select o.* from unnest(outcomes) as o;
end;
$$;

comment on function ledger.confirm_refunds(text, bigint, text[], text[]) is
    'Record many refunds of one merchant as sent; a row that can''t be gets its code. '
    'Refuses: LG304, 55P03, LG106, LG102, LG105, LG101.';
