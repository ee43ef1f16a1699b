-- Write one move of a locked refund: the row, and the journal entry with the money it moves.
--
-- The accounts come from the table transition; a move it doesn't list is refused here even if the caller forgot to.
-- What moves money is final, and nothing else is. What a holder leaves without a final word and doesn't give back,
-- unknown, accepted or in review, is marked: its request is out.
--
-- Refuses, first match wins:
--   LG204 IllegalTransition   the move isn't in the table transition

create or replace function ledger.move_refund(
    call jsonb,
    refund ledger.refund,
    to_state text,
    outcome text,
    gateway_ref text,
    reason text,
    evidence jsonb
)
returns ledger.move
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
    transition ledger.transition;
    token bigint := (call ->> 'token')::bigint;
    at timestamptz := clock_timestamp();
    recorded_ref text := coalesce(gateway_ref, refund.gateway_ref);
begin
    select t.* into transition
    from ledger.transition as t
    where t.from_state = refund.state and t.to_state = move_refund.to_state;
    if not found then
        perform ledger.refuse_transition(call, refund);
    end if;

    refund.maybe_sent := refund.maybe_sent
        or (token is not null and transition.debit is null and to_state <> 'pending');

    update ledger.refund as r
    set state = move_refund.to_state,
        fence = coalesce(token, r.fence),
        maybe_sent = refund.maybe_sent,
        gateway_ref = recorded_ref,
        changed_at = at,
        settled_at = case when transition.debit is not null then coalesce(r.settled_at, at) end,
        journal_number = r.journal_number + 1
    where r.merchant_id = refund.merchant_id and r.refund_id = refund.refund_id;

    insert into ledger.journal (
        merchant_id, refund_id, number, attempts, at, token, amount_minor, maybe_sent, from_state, to_state,
        currency, debit, credit, gateway_ref, reason, evidence
    )
    values (
        refund.merchant_id, refund.refund_id, refund.journal_number + 1, refund.attempts, at, token,
        case when transition.debit is not null then refund.amount_minor end, refund.maybe_sent,
        refund.state, move_refund.to_state,
        case when transition.debit is not null then refund.currency end, transition.debit, transition.credit,
        move_refund.gateway_ref,
        coalesce(move_refund.reason, nullif(current_setting('ledger.reason', true), '')),
        move_refund.evidence
    );

    return ledger.refund_as_move(refund, to_state, outcome, coalesce(token, refund.fence), recorded_ref, reason, at);
end;
$$;

comment on function ledger.move_refund(jsonb, ledger.refund, text, text, text, text, jsonb) is
    'Guard. Writes a move and its journal entry. Refuses by refuse_transition.';
