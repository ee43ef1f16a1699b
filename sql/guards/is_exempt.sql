-- Whether an operator let this very transaction write to the table without a token.
--
-- The exemption is a row that only ledger_fn can write; a setting could be forged. It must be younger than the
-- transaction: a restored dump brings rows whose numbers another transaction may have here.

create or replace function ledger.is_exempt(relation oid)
returns boolean
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
begin
    return exists (
        select
        from ledger.exemption as x
        where x.transaction = pg_current_xact_id_if_assigned()
            and x.relation = is_exempt.relation
            and x.at >= transaction_timestamp()
    );
end;
$$;

comment on function ledger.is_exempt(oid) is
    'Guard. Whether this transaction is exempt for the table. Refuses nothing.';
