-- Refuse a refund whose id or idempotency key exists with other content.

create or replace function ledger.refuse_conflicting_duplicate(call jsonb, facts jsonb)
returns void
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
begin
    raise exception using
        errcode = 'LG301',
        message = format(
            '%s: the same %s exists with other content (%s); nothing was changed',
            ledger.refused_call(call), facts ->> 'same', facts ->> 'differs'
        ),
        detail = ledger.refusal_detail(call, facts),
        hint = 'Stop and look which of the two is right. A recorded refund keeps its content; another one needs an id '
            'and a key of its own.';
end;
$$;

comment on function ledger.refuse_conflicting_duplicate(jsonb, jsonb) is
    'Guard. Refuses: LG301 ConflictingDuplicate.';
