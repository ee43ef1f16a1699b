-- Make sure that evidence, where it is given, is a JSON object of a reasonable size.

create or replace function ledger.check_evidence(call jsonb, evidence jsonb)
returns void
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
begin
    if jsonb_typeof(evidence) <> 'object' then
        perform ledger.refuse_argument(call, 'evidence is a JSON object');
    end if;
    if octet_length(evidence::text) > 65536 then
        perform ledger.refuse_argument(call, 'evidence is at most 64 KiB');
    end if;
end;
$$;

comment on function ledger.check_evidence(jsonb, jsonb) is
    'Guard. Evidence is null or a JSON object of at most 64 KiB. Refuses by refuse_argument.';
