-- Record what enforce would have refused: once for each transaction, resource and code, 500 a transaction at most.
--
-- One decision with enforce: the same verdict, judge_token's, on the fence as it stands. The gate isn't taken, for
-- shadow never waits, raises or sets a limit. Without a resource, the write's couldn't be derived.

create or replace function ledger.record_shadow(call jsonb, resource text, token bigint)
returns void
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
    gate ledger.gate_pass;
    verdict text;
    code text;
    own_holder text;
    known jsonb;
    once text;
begin
    if current_setting('transaction_read_only') = 'on' then
        return;
    end if;
    select f.active, f.barrier, f.holder, f.activated_at
    into gate.active, gate.barrier, gate.holder, gate.activated_at
    from ledger.fence as f
    where f.resource = record_shadow.resource;

    verdict := case
        when resource is null then 'LG304'
        when ledger.is_unknown_server() then 'LG106'
        when token is null and call ? 'table' then 'LG103'
        else ledger.judge_token(resource, token, gate)
    end;
    code := split_part(verdict, ' ', 1);
    if verdict is null or code = '40001' then
        return;
    end if;

    known := ledger.setting_object('ledger.shadowed');
    once := concat_ws(' ', left(resource, 300), code);
    if known ? once or (select count(*) from jsonb_object_keys(known)) >= 500 then
        return;
    end if;
    perform set_config('ledger.shadowed', (known || jsonb_build_object(once, true))::text, true);

    if code = 'LG101' then
        select e.holder into own_holder
        from ledger.event as e
        where e.resource = record_shadow.resource and e.token = record_shadow.token and e.event = 'activated';
    end if;
    insert into ledger.refusal (
        number, code, reason, function, kind, resource, token, active, holder, active_holder, mode, table_name,
        message, detail
    )
    values (
        nextval('ledger.refusal_seq'), code, coalesce(nullif(split_part(verdict, ' ', 2), ''), call ->> 'reason'),
        call ->> 'function', coalesce(split_part(resource, ':', 1), call ->> 'kind'), left(resource, 300), token,
        gate.active, own_holder, gate.holder, 'shadow', call ->> 'table', 'would have been refused',
        jsonb_strip_nulls(call || jsonb_build_object(
            'resource', left(resource, 300),
            'token', token,
            'statement', left(current_query(), 500),
            'late_seconds', case
                when code = 'LG101' then round(extract(epoch from clock_timestamp() - gate.activated_at), 3)
            end
        ))
    );
end;
$$;

comment on function ledger.record_shadow(jsonb, text, bigint) is
    'Guard. Records what enforce would have refused. Refuses nothing.';
