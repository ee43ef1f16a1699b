-- What happens on a new timeline: hold refuses every fenced call until recover_failover has run; lift lets the first
-- one do what that does, alone, and journals it.
--
-- Refuses, first match wins:
--   LG304 BadArgument   neither hold nor lift, or actor or reason is missing

create or replace function ledger.set_failover(failover text, actor text default null, reason text default null)
returns void
language plpgsql
security definer
set search_path = pg_catalog, pg_temp
as $$
declare
    call jsonb := jsonb_build_object('function', 'set_failover', 'failover', failover);
    who text := coalesce(actor, nullif(current_setting('ledger.actor', true), ''));
    why text := coalesce(reason, nullif(current_setting('ledger.reason', true), ''));
begin
    if coalesce(failover not in ('hold', 'lift'), true) then
        perform ledger.refuse_argument(call, 'failover is hold or lift');
    end if;
    perform ledger.check_person(call, who, why);
    update ledger.server as s set failover = set_failover.failover;
    insert into ledger.event (event, actor, reason, detail)
    values ('failover_set', who, why, jsonb_build_object('failover', failover));
end;
$$;

comment on function ledger.set_failover(text, text, text) is
    'What happens on a new timeline: hold or lift. Refuses: LG304.';
