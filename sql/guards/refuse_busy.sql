-- End a wait that ran out, and name whom it waited for: what is gate, or a switch between two ways of checking.
--
-- 55P03 is Postgres's own code for a lock that isn't available: nothing is wrong with the token.

create or replace function ledger.refuse_busy(call jsonb, what text, key bigint, ended jsonb)
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
            '%s: the %s is held by %s; nothing was changed',
            ledger.refused_call(call), what,
            coalesce(ledger.session_names(holders), 'a session that has just gone')
        ),
        detail = ledger.refusal_detail(call, jsonb_build_object(
            'held_by', coalesce(holders, '[]'), 'sessions_ended', ended
        )),
        hint = 'Try again. If it stays so, look at those sessions in pg_stat_activity and pg_prepared_xacts; '
            'docs/errors.md, 55P03, says which are ended by themselves.';
end;
$$;

comment on function ledger.refuse_busy(jsonb, text, bigint, jsonb) is
    'Guard. Refuses: 55P03, the lock is held and the wait ran out.';
