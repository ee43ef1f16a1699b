-- Refuse a token that didn't pass the gate, under the code that fits it.
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
    own_holder text;
    last_drawn bigint;
begin
    if coalesce(token, 0) <= 0 then
        perform ledger.refuse_undrawn_token(call, '{}');
    end if;

    if token <= gate.barrier then
        select e.holder into own_holder
        from ledger.event as e
        where e.resource = refuse_token.resource and e.token = refuse_token.token and e.event = 'activated';

        perform ledger.refuse_stale_token(
            call,
            case when own_holder is null then 'voided' else 'superseded' end,
            gate.active, gate.holder, gate.activated_at,
            jsonb_build_object(
                'resource', resource, 'holder', coalesce(call ->> 'holder', own_holder), 'barrier', gate.barrier
            )
        );
    end if;

    if exists (
        select from ledger.draw as d where d.resource = refuse_token.resource and d.token = refuse_token.token
    ) then
        perform ledger.refuse_inactive_token(
            call, jsonb_build_object('resource', resource, 'active', gate.active, 'active_holder', gate.holder)
        );
    end if;

    select s.last_value into last_drawn from ledger.token_seq as s;
    if current_setting('transaction_isolation') = 'read committed' or token > last_drawn then
        perform ledger.refuse_undrawn_token(
            call, jsonb_build_object('resource', resource, 'active', gate.active, 'active_holder', gate.holder)
        );
    end if;
    perform ledger.refuse_old_snapshot(call);
end;
$$;

comment on function ledger.refuse_token(jsonb, text, bigint, ledger.gate_pass) is
    'Guard. Refuses a token by the guard that fits: LG101, LG102, LG105 or 40001.';
