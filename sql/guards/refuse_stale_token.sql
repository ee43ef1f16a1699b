-- Refuse a token that isn't the active one: superseded, voided, or behind the row.

create or replace function ledger.refuse_stale_token(
    call jsonb,
    reason text,
    active bigint,
    active_holder text,
    active_since timestamptz,
    facts jsonb
)
returns void
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
begin
    raise exception using
        errcode = 'LG101',
        message = format(
            '%s: token %s is %s; %s is active, held by %s since %s; nothing was changed',
            ledger.refused_call(call),
            call ->> 'token',
            case
                when (call ->> 'token')::bigint = active and reason = 'superseded' then 'another holder''s'
                when reason = 'superseded' then 'superseded'
                when reason = 'voided' then 'void, for a newer activation passed it by'
                else 'behind the row, which carries a newer one'
            end,
            active, active_holder, active_since
        ),
        detail = ledger.refusal_detail(call, facts || jsonb_build_object(
            'reason', reason, 'active', active, 'active_holder', active_holder, 'active_since', active_since
        )),
        hint = case reason
            when 'row' then 'Stop. A row ahead of its fence means a restore: run select * from ledger.verify().'
            else 'Stop this batch: another holder has taken over. Draw a new token to try again.'
        end;
end;
$$;

comment on function ledger.refuse_stale_token(jsonb, text, bigint, text, timestamptz, jsonb) is
    'Guard. Refuses: LG101 StaleToken.';
