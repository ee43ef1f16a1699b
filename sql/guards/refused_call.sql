-- How a refusal's message begins: the function, and what it was called for.

create or replace function ledger.refused_call(call jsonb)
returns text
language plpgsql
immutable
set search_path = pg_catalog, pg_temp
as $$
begin
    return format(
        '%s%s refused',
        coalesce(call ->> 'function', 'write'),
        ' of ' || coalesce(
            (call ->> 'merchant_id') || coalesce(' ' || (call ->> 'refund_id'), ''),
            call ->> 'resource',
            call ->> 'table',
            call ->> 'kind',
            call ->> 'target',
            call ->> 'relation'
        )
    );
end;
$$;

comment on function ledger.refused_call(jsonb) is
    'Guard. The first words of a refusal: which call, for what. Refuses nothing.';
