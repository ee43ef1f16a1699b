-- Refuse a token that is drawn but not activated yet.

create or replace function ledger.refuse_inactive_token(call jsonb, facts jsonb)
returns void
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
begin
    raise exception using
        errcode = 'LG105',
        message = format(
            '%s: token %s is drawn but not activated; nothing was changed',
            ledger.refused_call(call), call ->> 'token'
        ),
        detail = ledger.refusal_detail(call, facts),
        hint = 'Call ledger.activate_token(resource, token, holder) first, and commit it.';
end;
$$;

comment on function ledger.refuse_inactive_token(jsonb, jsonb) is
    'Guard. Refuses: LG105 TokenNotActive.';
