-- Refuse every fenced call on a server that isn't the one that handed the tokens out.

create or replace function ledger.refuse_new_timeline(call jsonb, facts jsonb)
returns void
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
begin
    raise exception using
        errcode = 'LG106',
        message = format(
            '%s: this server was promoted or restored, and tokens handed out before are unknown here; nothing was '
            'changed',
            ledger.refused_call(call)
        ),
        detail = ledger.refusal_detail(call, facts),
        hint = 'An operator runs select ledger.recover_failover(...) once; docs/errors.md, LG106, says what it does.';
end;
$$;

comment on function ledger.refuse_new_timeline(jsonb, jsonb) is
    'Guard. Refuses: LG106 RecoveryNeeded.';
