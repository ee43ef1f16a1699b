-- Make sure that housekeeping says who does it and why, takes small steps, and leaves alone what is too young.

create or replace function ledger.check_housekeeping(
    call jsonb,
    before timestamptz,
    youngest interval,
    max_rows integer,
    actor text,
    reason text
)
returns void
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
begin
    perform ledger.check_person(call, actor, reason);
    if coalesce(max_rows not between 1 and 1000, true) then
        perform ledger.refuse_argument(call, 'max_rows is from 1 to 1000');
    end if;
    if coalesce(before > clock_timestamp() - youngest, true) then
        perform ledger.refuse_argument(call, format('before is at least %s ago', youngest));
    end if;
end;
$$;

comment on function ledger.check_housekeeping(jsonb, timestamptz, interval, integer, text, text) is
    'Guard. Housekeeping names a person, in small steps, of what is old. Refuses by refuse_argument.';
