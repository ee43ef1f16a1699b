-- Stop a kind or a resource from beginning anything: drawing, activating and claiming are refused (LG107). What is out
-- gets recorded: confirm, fail, accept, mark_unknown and release go on. The first thing wanted at night.
--
-- Paused already: the first actor and reason stay.
--
-- Refuses, first match wins:
--   LG304 BadArgument   the target is neither a kind nor kind:name, or actor or reason is missing

create or replace function ledger.pause(target text, actor text default null, reason text default null)
returns ledger.pause
language plpgsql
security definer
set search_path = pg_catalog, pg_temp
as $$
declare
    call jsonb := jsonb_build_object('function', 'pause', 'target', target);
    who text := coalesce(actor, nullif(current_setting('ledger.actor', true), ''));
    why text := coalesce(reason, nullif(current_setting('ledger.reason', true), ''));
    paused ledger.pause;
begin
    perform ledger.check_resource(call, case when target like '%:%' then target else target || ':x' end);
    perform ledger.check_person(call, who, why);

    select p.* into paused from ledger.pause as p where p.target = pause.target;
    if found then
        return paused;
    end if;
    insert into ledger.pause (target, actor, reason) values (target, who, why)
    on conflict do nothing;
    if found then
        insert into ledger.event (event, kind, resource, actor, reason)
        values ('paused', split_part(target, ':', 1), case when target like '%:%' then target end, who, why);
    end if;
    select p.* into paused from ledger.pause as p where p.target = pause.target;
    return paused;
end;
$$;

comment on function ledger.pause(text, text, text) is
    'Stop a kind or a resource from beginning anything. Refuses: LG304.';
