-- The guard triggers, on every table, ENABLE ALWAYS. Nothing is locked where they are in place already; else
-- SHARE ROW EXCLUSIVE on that table, for milliseconds.

set local role ledger_owner;
revoke create on schema ledger from ledger_fn;

do $$
declare
    name text;
begin
    foreach name in array array[
        'refund', 'journal', 'fence', 'draw', 'kind', 'event', 'refusal', 'server', 'currency', 'transition',
        'protected_table', 'exemption', 'pause', 'work', 'archived_refund', 'archived_journal', 'carried_balance'
    ]
    loop
        if not exists (
            select
            from pg_trigger as t
            where t.tgrelid = format('ledger.%I', name)::regclass
                and t.tgname = name || '_is_guarded'
                and t.tgenabled = 'A'
        ) then
            execute format(
                'create or replace trigger %1$I before insert or update or delete or truncate on ledger.%2$I '
                'for each statement execute function ledger.guard_write()',
                name || '_is_guarded', name
            );
            execute format('alter table ledger.%I enable always trigger %I', name, name || '_is_guarded');
        end if;
    end loop;

    foreach name in array array['refund', 'journal']
    loop
        if not exists (
            select
            from pg_trigger as t
            where t.tgrelid = format('ledger.%I', name)::regclass
                and t.tgname = name || '_is_archived'
                and t.tgenabled = 'A'
        ) then
            execute format(
                'create or replace trigger %1$I after delete on ledger.%2$I '
                'referencing old table as old_rows for each statement execute function ledger.guard_archive()',
                name || '_is_archived', name
            );
            execute format('alter table ledger.%I enable always trigger %I', name, name || '_is_archived');
        end if;
    end loop;

    foreach name in array '{event, work}'::text[]
    loop
        if not exists (
            select
            from pg_trigger as t
            where t.tgrelid = format('ledger.%I', name)::regclass
                and t.tgname = name || '_is_pruned'
                and t.tgenabled = 'A'
        ) then
            execute format(
                'create or replace trigger %1$I after delete on ledger.%2$I '
                'referencing old table as old_rows for each statement execute function ledger.guard_pruning()',
                name || '_is_pruned', name
            );
            execute format('alter table ledger.%I enable always trigger %I', name, name || '_is_pruned');
        end if;
    end loop;
end;
$$;

reset role;
