-- Refuse to begin anything for a kind or resource that an operator paused.

create or replace function ledger.refuse_paused(call jsonb, pause ledger.pause)
returns void
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
begin
    raise exception using
        errcode = 'LG107',
        message = format(
            '%s: %s is paused by %s since %s: %s; nothing was changed',
            ledger.refused_call(call), pause.target, pause.actor, pause.paused_at, pause.reason
        ),
        detail = ledger.refusal_detail(call, jsonb_build_object(
            'paused', pause.target, 'paused_by', pause.actor, 'paused_since', pause.paused_at, 'reason', pause.reason
        )),
        hint = 'Confirm, fail and mark_unknown go on. An operator ends it with ledger.resume(target, ...).';
end;
$$;

comment on function ledger.refuse_paused(jsonb, ledger.pause) is
    'Guard. Refuses: LG107 Paused.';
