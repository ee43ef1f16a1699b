-- A write whose resource can't be derived, since the column was renamed, dropped or changed: refused, or recorded in
-- shadow mode.
--
-- Refuses, first match wins:
--   LG304 BadArgument   the column can't name a resource

create or replace function ledger.check_without_column(mode text, call jsonb, kind text, problem text)
returns void
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
begin
    if mode = 'shadow' then
        perform ledger.record_shadow(call || jsonb_build_object('kind', kind, 'reason', problem), null, null);
    else
        perform ledger.refuse_argument(call || jsonb_build_object('kind', kind), problem);
    end if;
end;
$$;

comment on function ledger.check_without_column(text, jsonb, text, text) is
    'Guard. A write whose resource can''t be derived. Refuses by refuse_argument.';
