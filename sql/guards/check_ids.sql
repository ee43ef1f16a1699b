-- Make sure that a call names a refund.

create or replace function ledger.check_ids(call jsonb, merchant_id text, refund_id text)
returns void
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
begin
    if coalesce(merchant_id, '') = '' or coalesce(refund_id, '') = '' then
        perform ledger.refuse_argument(call, 'merchant_id and refund_id must be given');
    end if;
end;
$$;

comment on function ledger.check_ids(jsonb, text, text) is
    'Guard. Both ids are given. Refuses by refuse_argument.';
