-- Write one move of a locked refund that a person or a webhook makes. The same again is a no-op that says so.
--
-- Never on a refund that is sending: its holder may be at the gateway now, and must be fenced out first.
--
-- Refuses, first match wins:
--   LG303 GatewayRefConflict   it is recorded with another reference
--   LG202 RefundFinished       it reached a final state that this move doesn't start from
--   LG204 IllegalTransition    the table transition doesn't list the move for a person

create or replace function ledger.move_by_person(
    call jsonb,
    refund ledger.refund,
    to_state text,
    gateway_ref text,
    actor text,
    reason text,
    evidence jsonb
)
returns ledger.move
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
    callers_actor text := current_setting('ledger.actor', true);
    move ledger.move;
begin
    if refund.gateway_ref <> gateway_ref and refund.state in ('sent', 'returned', 'accepted', 'review') then
        perform ledger.refuse_gateway_ref(call, refund);
    end if;
    if refund.state = to_state then
        return ledger.refund_as_move(
            refund, to_state, 'already_' || to_state, refund.fence, refund.gateway_ref, null, refund.changed_at
        );
    end if;
    if not exists (
        select
        from ledger.transition as t
        where t.from_state = refund.state and t.to_state = move_by_person.to_state and t.person
    ) then
        if refund.settled_at is not null then
            perform ledger.refuse_finished_refund(call, refund);
        end if;
        perform ledger.refuse_transition(call, refund);
    end if;

    perform set_config('ledger.actor', actor, true);
    move := ledger.move_refund(call, refund, to_state, to_state, gateway_ref, reason, evidence);
    perform set_config('ledger.actor', callers_actor, true);
    return move;
end;
$$;

comment on function ledger.move_by_person(jsonb, ledger.refund, text, text, text, text, jsonb) is
    'Guard. Writes a person''s move. Refuses by refuse_gateway_ref, refuse_finished_refund and refuse_transition.';
