-- The guard triggers, on every table, ENABLE ALWAYS. Nothing is locked where they are in place already; else
-- SHARE ROW EXCLUSIVE on that table, for milliseconds.

set local role ledger_owner;
revoke create on schema ledger from ledger_fn;

do $$
declare
    wanted record;
begin
    for wanted in
        select t.name, t.name || g.ending as trigger, g.moment, g.guard
        from (
            values
            ('_is_guarded', 'before insert or update or delete or truncate on ledger.%I', 'guard_write', array[
                'refund', 'journal', 'fence', 'draw', 'kind', 'event', 'refusal', 'server', 'currency', 'transition',
                'protected_table', 'exemption', 'pause', 'work', 'archived_refund', 'archived_journal',
                'carried_balance'
            ]),
            ('_is_archived', 'after delete on ledger.%I referencing old table as old_rows', 'guard_archive', array[
                'refund', 'journal'
            ]),
            ('_is_pruned', 'after delete on ledger.%I referencing old table as old_rows', 'guard_pruning', array[
                'event', 'work'
            ])
        ) as g (ending, moment, guard, tables)
        cross join unnest(g.tables) as t (name)
    loop
        if not exists (
            select
            from pg_trigger as t
            where t.tgrelid = format('ledger.%I', wanted.name)::regclass
                and t.tgname = wanted.trigger
                and t.tgenabled = 'A'
        ) then
            execute format(
                'create or replace trigger %I ' || wanted.moment || ' for each statement execute function ledger.%I()',
                wanted.trigger, wanted.name, wanted.guard
            );
            execute format('alter table ledger.%I enable always trigger %I', wanted.name, wanted.trigger);
        end if;
    end loop;
end;
$$;

reset role;
