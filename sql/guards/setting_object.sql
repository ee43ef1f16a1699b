-- A setting that holds a JSON object, as bind_token and record_shadow keep it for a transaction. Anybody can set it to
-- anything: what isn't an object reads as an empty one.

create or replace function ledger.setting_object(name text)
returns jsonb
language plpgsql
stable
set search_path = pg_catalog, pg_temp
as $$
declare
    value jsonb;
begin
    if nullif(current_setting(name, true), '') is null then
        return jsonb '{}';
    end if;
    begin
        value := current_setting(name, true)::jsonb;
    exception
        when data_exception then
            null;
    end;
    return case when jsonb_typeof(value) = 'object' then value else '{}' end;
end;
$$;

comment on function ledger.setting_object(text) is
    'Guard. A setting as a JSON object. Refuses nothing.';
