-- The DETAIL of a refusal: what was called, the facts against it, and the refusal's number.
--
-- The number comes from a sequence, which a rollback leaves alone: it counts refusals that took their
-- transaction with them, and joins the caller's error, the server's log and the table refusal.

create or replace function ledger.refusal_detail(call jsonb, facts jsonb)
returns text
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
begin
    return jsonb_strip_nulls(
        call || facts || jsonb_build_object('refusal', nextval('ledger.refusal_seq'))
    )::text;
end;
$$;

comment on function ledger.refusal_detail(jsonb, jsonb) is
    'Guard. The DETAIL of a refusal, numbered. Refuses nothing.';
