-- Record a refund that is to be sent. The same again is a no-op that says so.
--
-- Looks first and inserts only when the refund is missing: an insert would wait for a transaction that is moving
-- the row. Whoever moves refunds here from another system brings the key under which they were sent. What was archived
-- is recorded still.
--
-- Refuses, first match wins:
--   LG304 BadArgument            an id, the key, the reference or the gateway is null, empty, too long or malformed
--   LG302 BadAmount              the amount isn't positive, or the currency isn't known
--   LG301 ConflictingDuplicate   the id or the key exists with other content

create or replace function ledger.add_refund(
    merchant_id text,
    refund_id text,
    amount_minor bigint,
    currency text,
    payment_ref text default null,
    gateway text default null,
    idempotency_key text default null
)
returns ledger.added
language plpgsql
security definer
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
set jit = off
as $$
declare
    call jsonb := jsonb_build_object(
        'function', 'add_refund', 'merchant_id', merchant_id, 'refund_id', refund_id,
        'amount_minor', amount_minor, 'currency', currency
    );
    key text := coalesce(idempotency_key, merchant_id || '/' || refund_id);
    was_added boolean := false;
    at timestamptz;
    refund ledger.refund;
begin
    perform ledger.check_refund(call, merchant_id, refund_id, amount_minor, currency, payment_ref, gateway, key);

    select r.* into refund
    from ledger.refund as r
    where r.merchant_id = add_refund.merchant_id and r.refund_id = add_refund.refund_id;

    if not found then
        select a.* into refund
        from ledger.archived_refund as a
        where a.merchant_id = add_refund.merchant_id and a.refund_id = add_refund.refund_id;
    end if;

    if not found then
        at := clock_timestamp();
        insert into ledger.refund (
            merchant_id, refund_id, amount_minor, currency, payment_ref, gateway, idempotency_key, added_at, changed_at
        )
        select merchant_id, refund_id, amount_minor, currency, payment_ref, gateway, key, at, at
        where not exists (select from ledger.archived_refund as a where a.idempotency_key = key)
        on conflict do nothing;
        was_added := found;

        select r.* into refund
        from ledger.refund as r
        where r.merchant_id = add_refund.merchant_id and r.refund_id = add_refund.refund_id;
        if not found then
            perform ledger.refuse_conflicting_duplicate(
                call, jsonb_build_object('same', 'idempotency key', 'differs', 'refund', 'idempotency_key', key)
            );
        end if;
    end if;

    if was_added then
        insert into ledger.journal (
            merchant_id, refund_id, number, attempts, at, maybe_sent, to_state,
            amount_minor, currency, debit, credit, evidence, reason
        )
        select
            refund.merchant_id, refund.refund_id, 1, 0, at, false, 'pending',
            refund.amount_minor, refund.currency, t.debit, t.credit,
            ledger.refund_origin(payment_ref, gateway, key),
            nullif(current_setting('ledger.reason', true), '')
        from ledger.transition as t
        where t.from_state is null;
    elsif ledger.refund_difference(refund, amount_minor, currency, payment_ref, gateway, key) is not null then
        perform ledger.refuse_conflicting_duplicate(
            call,
            jsonb_build_object(
                'same', 'refund id',
                'differs', ledger.refund_difference(refund, amount_minor, currency, payment_ref, gateway, key),
                'recorded', jsonb_build_object(
                    'amount_minor', refund.amount_minor, 'currency', refund.currency,
                    'payment_ref', refund.payment_ref, 'gateway', refund.gateway,
                    'idempotency_key', refund.idempotency_key
                )
            )
        );
    end if;

    return row(
        refund.merchant_id, refund.refund_id, case when was_added then 'added' else 'already' end, refund.state,
        refund.amount_minor, refund.currency, refund.payment_ref, refund.gateway, refund.idempotency_key
    )::ledger.added;
end;
$$;

comment on function ledger.add_refund(text, text, bigint, text, text, text, text) is
    'Record a refund that is to be sent; once. Refuses: LG304, LG302, LG301.';
