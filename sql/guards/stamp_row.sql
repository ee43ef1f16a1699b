-- The trigger that writes into a row's column fence which token wrote it last: evidence to read, never compared
-- across resources. Runs as whoever writes; the check is another trigger's. No token presented: null.

create or replace function ledger.stamp_row()
returns trigger
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
    resource text := tg_argv[1];
    name text;
begin
    if tg_argv[0] = 'column' then
        execute format('select ($1).%I::text', tg_argv[2]) into name using new;
        resource := tg_argv[1] || ':' || name;
    end if;
    begin
        new.fence := (nullif(current_setting('ledger.tokens', true), '')::jsonb ->> resource)::bigint;
    exception
        when data_exception then
            new.fence := null;
    end;
    return new;
end;
$$;

comment on function ledger.stamp_row() is
    'Guard. Trigger: stamps a row with the token that wrote it. Refuses nothing.';
