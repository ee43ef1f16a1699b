-- Bound how long a client may keep this transaction open, so that a frozen one can't hold the gate for ever.
--
-- A limit that is null or lower already stays. transaction_timeout ends sessions that are working, so it is set only
-- where the kind asks for it, and only by the first call: setting it again would start it again.

create or replace function ledger.limit_transaction(idle_ms integer, transaction_ms integer)
returns void
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
    idle_now integer := ledger.setting_ms('idle_in_transaction_session_timeout');
    -- Postgres has it from version 17 on; before, it is null.
    transaction_now integer := ledger.setting_ms('transaction_timeout');
begin
    if idle_now not between 1 and idle_ms then
        perform set_config('idle_in_transaction_session_timeout', idle_ms::text, true);
    end if;

    if transaction_ms is not null and transaction_now not between 1 and transaction_ms then
        perform set_config('transaction_timeout', transaction_ms::text, true);
    end if;
end;
$$;

comment on function ledger.limit_transaction(integer, integer) is
    'Guard. Sets the idle limit, and the transaction limit if there is one, for this transaction. Refuses nothing.';
