-- Ask for a retry: this transaction's snapshot is too old to say whether the token was drawn.

create or replace function ledger.refuse_old_snapshot(call jsonb)
returns void
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
begin
    raise exception using
        errcode = 'serialization_failure',
        message = format(
            '%s: token %s isn''t visible in this transaction''s snapshot; nothing was changed',
            ledger.refused_call(call), call ->> 'token'
        ),
        detail = ledger.refusal_detail(call, '{}'),
        hint = 'Roll back and try again in a new transaction.';
end;
$$;

comment on function ledger.refuse_old_snapshot(jsonb) is
    'Guard. Refuses: 40001, the snapshot is too old to judge the token.';
