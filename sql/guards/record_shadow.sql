-- Record what enforce would have refused; once for each transaction, resource and code.
--
-- The gate isn't taken, for shadow never waits: the fence is read as it stands.

create or replace function ledger.record_shadow(call jsonb, resource text, token bigint)
returns void
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
    gate ledger.gate_pass;
    verdict text;
    known jsonb := coalesce(nullif(current_setting('ledger.shadowed', true), ''), '{}')::jsonb;
begin
    select f.active, f.barrier, f.holder, f.activated_at
    into gate.active, gate.barrier, gate.holder, gate.activated_at
    from ledger.fence as f
    where f.resource = record_shadow.resource;

    verdict := case
        when token is null and call ? 'table' then 'LG103'
        else ledger.judge_token(resource, token, gate)
    end;
    if verdict is null or verdict = '40001' or known ? (resource || ' ' || verdict) then
        return;
    end if;

    perform set_config(
        'ledger.shadowed', (known || jsonb_build_object(resource || ' ' || verdict, true))::text, true
    );
    insert into ledger.refusal (
        number, code, reason, function, kind, resource, token, active, active_holder, mode, table_name, message, detail
    )
    values (
        nextval('ledger.refusal_seq'), split_part(verdict, ' ', 1), nullif(split_part(verdict, ' ', 2), ''),
        call ->> 'function', split_part(resource, ':', 1), resource, token, gate.active, gate.holder, 'shadow',
        call ->> 'table', 'would have been refused',
        jsonb_strip_nulls(call || jsonb_build_object(
            'resource', resource, 'statement', left(current_query(), 500),
            'late_seconds', round(extract(epoch from clock_timestamp() - gate.activated_at), 3)
        ))
    );
end;
$$;

comment on function ledger.record_shadow(jsonb, text, bigint) is
    'Guard. Records what enforce would have refused. Refuses nothing.';
