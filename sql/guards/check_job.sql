-- Make sure that a job may run under an advisory lock: its resource is well formed and its kind's leases don't
-- live in Redis, where a holder can't be seen from here. A new kind becomes an advisory one.

create or replace function ledger.check_job(call jsonb, resource text)
returns ledger.kind_limits
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
    kind ledger.kind_limits;
begin
    perform ledger.check_resource(call, resource);
    kind := ledger.ensure_kind(split_part(resource, ':', 1), 'advisory');
    if kind.known and kind.lock = 'redis' then
        perform ledger.refuse_argument(
            call,
            format(
                'leases of kind %1$s live in Redis; select ledger.set_kind(%1$L, lock => ''advisory'', ...) moves them',
                kind.kind
            )
        );
    end if;
    perform ledger.check_server(call);
    return kind;
end;
$$;

comment on function ledger.check_job(jsonb, text) is
    'Guard. A job of this kind may use an advisory lock. Refuses by refuse_argument and refuse_new_timeline.';
