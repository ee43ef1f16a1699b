-- A protection's trigger arguments, as pg_trigger keeps them: each ended by a zero byte.

create or replace function ledger.trigger_arguments(protection ledger.protected_table)
returns bytea
language plpgsql
immutable
set search_path = pg_catalog, pg_temp
as $$
declare
    argument text;
    arguments bytea := bytea '';
begin
    foreach argument in array case
        when protection.resource is not null then array['fixed', protection.resource]
        else array['column', protection.kind, protection.column_name]
    end
    loop
        arguments := arguments || convert_to(argument, getdatabaseencoding()) || bytea '\x00';
    end loop;
    return arguments;
end;
$$;

comment on function ledger.trigger_arguments(ledger.protected_table) is
    'Guard. Trigger arguments as the catalog keeps them. Refuses nothing.';
