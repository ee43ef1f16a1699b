-- A JSON value as a bigint; null when it isn't a whole number that fits.

create or replace function ledger.as_number(value jsonb)
returns bigint
language sql
immutable
return case
    when value::text ~ '^-?[0-9]{1,18}$' then value::text::bigint
end;

comment on function ledger.as_number(jsonb) is
    'Guard. A JSON number as a bigint, or null. Refuses nothing.';
