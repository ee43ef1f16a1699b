-- Refuse to delete a refund, or an entry of its journal, that isn't in the archive exactly as it was.
--
-- archive_refunds moves rows by copying them first. Whoever deletes otherwise, ledger_fn itself included, would lose
-- the record of money. The triggers are ENABLE ALWAYS.
--
-- Refuses, first match wins:
--   LG103 UnfencedWrite   a deleted row has no equal in the archive

create or replace function ledger.guard_archive()
returns trigger
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
    is_lost boolean;
begin
    execute format(
        'select exists ('
        'select from old_rows as o where not exists ('
        'select from ledger.%I as a '
        'where a.merchant_id = o.merchant_id and a.refund_id = o.refund_id and to_jsonb(a) = to_jsonb(o)))',
        'archived_' || tg_table_name
    ) into is_lost;
    if is_lost then
        perform ledger.refuse_unfenced_write(jsonb_build_object(
            'operation', lower(tg_op), 'table', format('%I.%I', tg_table_schema, tg_table_name),
            'role', current_user
        ));
    end if;
    return null;
end;
$$;

comment on function ledger.guard_archive() is
    'Guard. Trigger: only what is in the archive can be deleted. Refuses by refuse_unfenced_write.';
