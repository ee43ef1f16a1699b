-- Refuse every write to a ledger table that doesn't come from the ledger's own functions.
--
-- They run as ledger_fn, and nobody can pretend to be that: a setting could be forged, current_user can't. The
-- triggers are ENABLE ALWAYS, so that session_replication_role doesn't switch them off; the owner's stray UPDATE
-- and a superuser's are refused alike.
--
-- Refuses, first match wins:
--   LG103 UnfencedWrite   the write is not by ledger_fn

create or replace function ledger.guard_write()
returns trigger
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
begin
    if current_user <> 'ledger_fn' then
        perform ledger.refuse_unfenced_write(jsonb_build_object(
            'operation', lower(tg_op), 'table', format('%I.%I', tg_table_schema, tg_table_name),
            'role', current_user
        ));
    end if;
    return null;
end;
$$;

comment on function ledger.guard_write() is
    'Guard. Trigger: only ledger_fn writes to the ledger''s tables. Refuses by refuse_unfenced_write.';
