-- Make sure that a person's act says who acts and why.

create or replace function ledger.check_person(call jsonb, actor text, reason text)
returns void
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
begin
    if coalesce(btrim(actor), '') = '' or coalesce(btrim(reason), '') = '' then
        perform ledger.refuse_argument(
            call, 'actor and reason are needed, as arguments or as ledger.actor and ledger.reason'
        );
    end if;
end;
$$;

comment on function ledger.check_person(jsonb, text, text) is
    'Guard. Actor and reason are given. Refuses by refuse_argument.';
