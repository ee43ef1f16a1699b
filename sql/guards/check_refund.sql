-- Make sure that a refund which is to be added is well formed.

create or replace function ledger.check_refund(
    call jsonb,
    merchant_id text,
    refund_id text,
    amount_minor bigint,
    currency text,
    payment_ref text,
    gateway text,
    idempotency_key text
)
returns void
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
    problem text := ledger.refund_problem(merchant_id, refund_id, payment_ref, gateway, idempotency_key);
begin
    if problem is not null then
        perform ledger.refuse_argument(call, problem);
    end if;
    if coalesce(amount_minor <= 0, true) then
        perform ledger.refuse_amount(
            call, format('the amount %s is not positive', coalesce(amount_minor::text, 'null'))
        );
    end if;
    if not exists (select from ledger.currency as c where c.currency = check_refund.currency) then
        perform ledger.refuse_amount(call, format('the currency %s is not known', coalesce(currency, 'null')));
    end if;
end;
$$;

comment on function ledger.check_refund(jsonb, text, text, bigint, text, text, text, text) is
    'Guard. A refund to be added is well formed. Refuses by refuse_argument and refuse_amount.';
