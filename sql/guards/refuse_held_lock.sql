-- Refuse a job whose lock another session holds, and name that session.

create or replace function ledger.refuse_held_lock(call jsonb, holders jsonb)
returns void
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
begin
    raise exception using
        errcode = 'LG104',
        message = format(
            '%s: its lock is held by %s; nothing was changed',
            ledger.refused_call(call),
            coalesce(ledger.session_names(holders), 'a session that has just gone')
        ),
        detail = ledger.refusal_detail(call, jsonb_build_object('held_by', holders)),
        hint = 'The job is running already. Try again when it has ended.';
end;
$$;

comment on function ledger.refuse_held_lock(jsonb, jsonb) is
    'Guard. Refuses: LG104 LockHeld.';
