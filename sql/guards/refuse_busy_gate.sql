-- End a wait at the gate that ran out, and name whom it waited for.
--
-- 55P03 is Postgres's own code for a lock that isn't available: nothing is wrong with the token.

create or replace function ledger.refuse_busy_gate(call jsonb, ended jsonb)
returns void
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
    holders jsonb := ledger.lock_holders(hashtextextended(call ->> 'resource', 0), 1::smallint);
begin
    raise exception using
        errcode = 'lock_not_available',
        message = format(
            '%s: the gate is held by %s; nothing was changed',
            ledger.refused_call(call),
            coalesce(ledger.session_names(holders), 'a session that has just gone')
        ),
        detail = ledger.refusal_detail(call, jsonb_build_object(
            'held_by', coalesce(holders, '[]'), 'sessions_ended', ended
        )),
        hint = 'Try again. If it stays so, look at those sessions in pg_stat_activity and pg_prepared_xacts; '
            'docs/errors.md, 55P03, says which are ended by themselves.';
end;
$$;

comment on function ledger.refuse_busy_gate(jsonb, jsonb) is
    'Guard. Refuses: 55P03, the gate is held and the wait ran out.';
