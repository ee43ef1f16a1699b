-- Let a kind or a resource that was paused go on; false if it wasn't paused.
--
-- Refuses, first match wins:
--   LG304 BadArgument   the target is neither a kind nor kind:name, or actor or reason is missing

create or replace function ledger.resume(target text, actor text default null, reason text default null)
returns boolean
language plpgsql
security definer
set search_path = pg_catalog, pg_temp
as $$
declare
    call jsonb := jsonb_build_object('function', 'resume', 'target', target);
    who text := coalesce(actor, nullif(current_setting('ledger.actor', true), ''));
    why text := coalesce(reason, nullif(current_setting('ledger.reason', true), ''));
begin
    perform ledger.check_resource(call, case when target like '%:%' then target else target || ':x' end);
    perform ledger.check_person(call, who, why);

    delete from ledger.pause as p where p.target = resume.target;
    if not found then
        return false;
    end if;
    insert into ledger.event (event, kind, resource, actor, reason)
    values ('resumed', split_part(target, ':', 1), case when target like '%:%' then target end, who, why);
    return true;
end;
$$;

comment on function ledger.resume(text, text, text) is
    'Let a paused kind or resource go on. Refuses: LG304.';
