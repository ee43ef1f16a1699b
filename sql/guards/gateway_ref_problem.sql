-- What is malformed about a gateway reference; null when nothing is.

create or replace function ledger.gateway_ref_problem(gateway_ref text)
returns text
language sql
immutable
return case
    when coalesce(
        gateway_ref ~ '[[:cntrl:]]' or length(gateway_ref) not between 1 and 255 or btrim(gateway_ref) = '', true
    ) then 'a gateway reference is printable, 1 to 255 characters'
end;

comment on function ledger.gateway_ref_problem(text) is
    'Guard. What is malformed about a gateway reference, or null. Refuses nothing.';
