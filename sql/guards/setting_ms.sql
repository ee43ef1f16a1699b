-- A setting of the time kind, in milliseconds; 0 means no limit. Null for one that this version doesn't know.
--
-- current_setting answers in whatever unit reads best (10s, 1min), and an interval understands them all.

create or replace function ledger.setting_ms(name text)
returns integer
language plpgsql
stable
set search_path = pg_catalog, pg_temp
as $$
begin
    return extract(epoch from current_setting(name, true)::interval) * 1000;
end;
$$;

comment on function ledger.setting_ms(text) is
    'Guard. A time setting in milliseconds. Refuses nothing.';
