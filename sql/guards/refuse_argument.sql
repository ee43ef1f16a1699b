-- Refuse an argument that is null, empty, too long or too many, or a call in the wrong order.

create or replace function ledger.refuse_argument(call jsonb, reason text)
returns void
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
begin
    raise exception using
        errcode = 'LG304',
        message = format('%s: %s; nothing was changed', ledger.refused_call(call), reason),
        detail = ledger.refusal_detail(call, jsonb_build_object('reason', reason)),
        hint = 'Mend the call. docs/errors.md, LG304, lists the bounds.';
end;
$$;

comment on function ledger.refuse_argument(jsonb, text) is
    'Guard. Refuses: LG304 BadArgument.';
