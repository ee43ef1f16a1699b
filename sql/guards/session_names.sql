-- Sessions as words: pid 4711 (ledger_worker, settle).

create or replace function ledger.session_names(sessions jsonb)
returns text
language plpgsql
immutable
set search_path = pg_catalog, pg_temp
as $$
begin
    return (
        select string_agg(
            coalesce('pid ' || (s ->> 'pid'), 'a prepared transaction')
                || coalesce(' (' || nullif(concat_ws(', ', s ->> 'user', s ->> 'application'), '') || ')', ''),
            ', '
        )
        from jsonb_array_elements(sessions) as s
    );
end;
$$;

comment on function ledger.session_names(jsonb) is
    'Guard. Sessions named for a message. Refuses nothing.';
