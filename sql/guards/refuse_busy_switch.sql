-- End a wait at a switch that ran out: an exempt transaction, or a change of mode, holds it.

create or replace function ledger.refuse_busy_switch(call jsonb, key bigint)
returns void
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
    holders jsonb := ledger.lock_holders(key, 1::smallint);
begin
    raise exception using
        errcode = 'lock_not_available',
        message = format(
            '%s: %s holds it up; nothing was changed',
            ledger.refused_call(call),
            coalesce(ledger.session_names(holders), 'a session that has just gone')
        ),
        detail = ledger.refusal_detail(call, jsonb_build_object('held_by', coalesce(holders, '[]'))),
        hint = 'Try again when those transactions have ended.';
end;
$$;

comment on function ledger.refuse_busy_switch(jsonb, bigint) is
    'Guard. Refuses: 55P03, a switch is held and the wait ran out.';
