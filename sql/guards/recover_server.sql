-- Make this server the known one, and lift what has to be lifted. recover_failover does it by hand; where the setting
-- failover is lift, the first fenced call on a new timeline does it by itself. Only one at a time: the others wait and
-- find nothing to do. Returns nothing_to_do, acknowledged or recovered.

create or replace function ledger.recover_server(nothing_lost boolean, actor text, reason text)
returns text
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
    server ledger.server;
    current_timeline text := substr(pg_walfile_name(pg_current_wal_lsn()), 1, 8);
    identifier bigint;
    last_drawn bigint;
    highest bigint;
    lifted bigint;
    is_known_server boolean;
    outcome text;
begin
    perform ledger.keep_commit();
    select s.* into server from ledger.server as s for update;
    select c.system_identifier into identifier from pg_control_system() as c;
    select s.last_value, greatest(s.last_value, (select max(f.barrier) from ledger.fence as f))
    into last_drawn, highest
    from ledger.token_seq as s;
    is_known_server := server.timeline = current_timeline and server.system_identifier = identifier;
    if is_known_server and highest = last_drawn then
        return 'nothing_to_do';
    end if;

    outcome := case when is_known_server or nothing_lost is true then 'acknowledged' else 'recovered' end;
    if outcome = 'recovered' then
        lifted := ledger.lift_tokens(highest, actor, reason);
    elsif highest > last_drawn then
        lifted := highest + 1048576;
        perform setval('ledger.token_seq', lifted);
    end if;

    update ledger.server as s
    set system_identifier = identifier, timeline = current_timeline, started_at = pg_postmaster_start_time();

    insert into ledger.event (event, token, actor, reason, detail)
    values ('recovered', lifted, actor, reason, jsonb_build_object(
        'outcome', outcome, 'timeline', current_timeline, 'known_timeline', server.timeline,
        'system_identifier', identifier, 'known_system_identifier', server.system_identifier
    ));
    return outcome;
end;
$$;

comment on function ledger.recover_server(boolean, text, text) is
    'Guard. Makes this server the known one after a promotion or a restore. Refuses nothing.';
