-- Whether every token would be refused, since this isn't the server that handed them out. For shadow mode, which
-- neither raises nor recovers.

create or replace function ledger.is_unknown_server()
returns boolean
language plpgsql
stable
set search_path = pg_catalog, pg_temp
as $$
declare
    server ledger.server;
begin
    select s.* into server from ledger.server as s;
    if server.failover = 'lift' then
        return false;
    end if;
    return server.timeline is distinct from substr(pg_walfile_name(pg_current_wal_lsn()), 1, 8)
        or (
            server.started_at is distinct from pg_postmaster_start_time()
            and server.system_identifier is distinct from (select c.system_identifier from pg_control_system() as c)
        );
end;
$$;

comment on function ledger.is_unknown_server() is
    'Guard. Whether tokens would be refused on this server. Refuses nothing.';
