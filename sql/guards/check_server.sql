-- Make sure that this is the server that handed the tokens out.
--
-- After a promotion or a restore, numbers drawn on the lost timeline are unknown here, so nothing may pass. A
-- plain restart keeps timeline and identifier; its new start time is remembered, by whoever finds the row
-- free, so that the identifier isn't read again.
--
-- Where the setting failover is lift, the first call that finds a new timeline recovers by itself, alone.

create or replace function ledger.check_server(call jsonb)
returns void
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
    server ledger.server;
    timeline text := substr(pg_walfile_name(pg_current_wal_lsn()), 1, 8);
    identifier bigint;
begin
    select s.* into server from ledger.server as s;
    if server.timeline = timeline and server.started_at = pg_postmaster_start_time() then
        return;
    end if;

    select c.system_identifier into identifier from pg_control_system() as c;
    if server.timeline is distinct from timeline or server.system_identifier <> identifier then
        if server.failover = 'lift' then
            perform ledger.recover_server(false, 'ledger', 'failover is set to lift');
            return;
        end if;
        perform ledger.refuse_new_timeline(call, jsonb_build_object(
            'timeline', timeline, 'known_timeline', server.timeline,
            'system_identifier', identifier, 'known_system_identifier', server.system_identifier
        ));
    end if;

    if current_setting('transaction_isolation') = 'read committed' then
        perform from ledger.server as s for update skip locked;
        if found then
            update ledger.server as s set started_at = pg_postmaster_start_time();
        end if;
    end if;
end;
$$;

comment on function ledger.check_server(jsonb) is
    'Guard. This is the server that handed the tokens out. Refuses by refuse_new_timeline.';
