-- Make sure that the arrays of a set-based call are there, equally long and not too long.

create or replace function ledger.check_arrays(call jsonb, variadic sizes integer[])
returns void
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
begin
    if array_position(sizes, null) is not null then
        perform ledger.refuse_argument(call, 'an array is null');
    end if;
    if (select min(s.size) <> max(s.size) from unnest(sizes) as s (size)) then
        perform ledger.refuse_argument(
            call, format('the arrays are of unequal length: %s', array_to_string(sizes, ', '))
        );
    end if;
    if 1000 < any(sizes) then
        perform ledger.refuse_argument(call, format('%s rows are too many; at most 1000 a call', sizes[1]));
    end if;
end;
$$;

comment on function ledger.check_arrays(jsonb, integer[]) is
    'Guard. Arrays are given, equally long, 1,000 at most. Refuses by refuse_argument.';
