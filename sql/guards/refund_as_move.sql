-- A refund as the row that a move returns.

create or replace function ledger.refund_as_move(
    refund ledger.refund,
    state text,
    outcome text,
    token bigint,
    gateway_ref text,
    reason text,
    changed_at timestamptz
)
returns ledger.move
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
begin
    return row(
        refund.merchant_id, refund.refund_id, outcome, reason, state, refund.state, token, refund.amount_minor,
        refund.currency, refund.idempotency_key, gateway_ref, refund.attempts, refund.maybe_sent, changed_at
    )::ledger.move;
end;
$$;

comment on function ledger.refund_as_move(
    ledger.refund, text, text, bigint, text, text, timestamptz
) is
    'Guard. A refund in the shape that a move returns. Refuses nothing.';
