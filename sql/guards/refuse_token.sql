-- Refuse a token that didn't pass the gate, under the code that judge_token decides on.
--
-- Refuses, first match wins:
--   LG102 TokenNotDrawn    null, zero or negative
--   LG101 StaleToken       up to the barrier: superseded if it was active once, else voided
--   LG105 TokenNotActive   drawn, and not activated yet
--   LG102 TokenNotDrawn    nobody drew it; said only when certain
--   40001                  the snapshot is older than the answer

create or replace function ledger.refuse_token(call jsonb, resource text, token bigint, gate ledger.gate_pass)
returns void
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
    -- The active token, under another holder, is as good as superseded.
    verdict text := coalesce(ledger.judge_token(resource, token, gate), 'LG101 superseded');
    facts jsonb := jsonb_build_object(
        'resource', resource, 'active', gate.active, 'active_holder', gate.holder
    );
    own_holder text;
begin
    if verdict like 'LG101%' then
        select e.holder into own_holder
        from ledger.event as e
        where e.resource = refuse_token.resource and e.token = refuse_token.token and e.event = 'activated';

        perform ledger.refuse_stale_token(
            call, split_part(verdict, ' ', 2), gate.active, gate.holder, gate.activated_at,
            jsonb_build_object(
                'resource', resource, 'holder', coalesce(call ->> 'holder', own_holder), 'barrier', gate.barrier
            )
        );
    elsif verdict = 'LG105' then
        perform ledger.refuse_inactive_token(call, facts);
    elsif verdict = '40001' then
        perform ledger.refuse_old_snapshot(call);
    else
        perform ledger.refuse_undrawn_token(call, facts);
    end if;
end;
$$;

comment on function ledger.refuse_token(jsonb, text, bigint, ledger.gate_pass) is
    'Guard. Refuses a token by the guard that fits: LG101, LG102, LG105 or 40001.';
