-- Check a token that is presented, as its kind's mode says: off, shadow, enforce.
--
-- Refuses, first match wins: what check_in_mode refuses.

create or replace function ledger.check_fenced(call jsonb, resource text, token bigint)
returns void
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
    mode text := ledger.checked_mode(split_part(resource, ':', 1));
begin
    if mode <> 'off' then
        perform ledger.check_in_mode(mode, call, resource, token);
    end if;
end;
$$;

comment on function ledger.check_fenced(jsonb, text, bigint) is
    'Guard. Checks a token as its kind''s mode says. Refuses by the guards of check_in_mode.';
