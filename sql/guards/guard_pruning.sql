-- Refuse to delete what isn't to be pruned: an event that tells what a person did, work that isn't done, and either
-- when it is younger than 30 days.
--
-- prune_events and prune_work choose no such rows. Whoever deletes otherwise, ledger_fn itself included, would lose
-- the record. The triggers are ENABLE ALWAYS.
--
-- Refuses, first match wins:
--   LG103 UnfencedWrite   a deleted row isn't one that pruning takes

create or replace function ledger.guard_pruning()
returns trigger
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
    is_lost boolean;
begin
    execute format(
        'select exists (select from old_rows as o where not (%s < clock_timestamp() - interval ''30 days''))',
        case tg_table_name
            when 'event' then 'o.event in (''activated'', ''held'', ''session_ended'') and o.at'
            else 'o.state = ''done'' and o.changed_at'
        end
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

comment on function ledger.guard_pruning() is
    'Guard. Trigger: only what pruning takes can be deleted. Refuses by refuse_unfenced_write.';
