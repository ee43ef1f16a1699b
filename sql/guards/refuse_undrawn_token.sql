-- Refuse a number that nobody drew for this resource.

create or replace function ledger.refuse_undrawn_token(call jsonb, facts jsonb)
returns void
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
begin
    raise exception using
        errcode = 'LG102',
        message = format(
            '%s: token %s was never drawn for it; nothing was changed',
            ledger.refused_call(call), coalesce(call ->> 'token', 'null')
        ),
        detail = ledger.refusal_detail(call, facts),
        hint = 'Draw one with ledger.draw_token(resource) and activate it. A token of a transaction that rolled back '
            'was never drawn.';
end;
$$;

comment on function ledger.refuse_undrawn_token(jsonb, jsonb) is
    'Guard. Refuses: LG102 TokenNotDrawn.';
