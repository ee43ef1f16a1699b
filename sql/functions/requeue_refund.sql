-- Put a refund in review back to work, since the gateway has nothing under its key; by a person.
--
-- The evidence must say so: {"not_at_gateway": true, ...}. Its attempts begin again, and so does the key window, for a
-- person has looked. One that was ever claimed is marked: the next holder asks the gateway before it sends.
--
-- outcome    requeued          recorded now
--            already_pending   it was before; nothing was changed
--
-- Refuses, first match wins:
--   LG304 BadArgument         an id, the actor, the reason or that evidence is missing
--   LG106 RecoveryNeeded      the server was promoted or restored
--   LG201 NoSuchRefund        there is no such refund
--   LG202 RefundFinished      it reached a final state
--   LG204 IllegalTransition   it isn't in review

create or replace function ledger.requeue_refund(
    merchant_id text,
    refund_id text,
    actor text default null,
    reason text default null,
    evidence jsonb default null
)
returns ledger.move
language plpgsql
security definer
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
set jit = off
as $$
declare
    call jsonb := jsonb_build_object(
        'function', 'requeue_refund', 'merchant_id', merchant_id, 'refund_id', refund_id
    );
    who text := coalesce(actor, nullif(current_setting('ledger.actor', true), ''));
    why text := coalesce(reason, nullif(current_setting('ledger.reason', true), ''));
    refund ledger.refund;
    move ledger.move;
begin
    if coalesce(evidence -> 'not_at_gateway' <> 'true'::jsonb, true) then
        perform ledger.refuse_argument(call, 'evidence must say {"not_at_gateway": true}: look there first');
    end if;
    refund := ledger.lock_by_person(call, who, why, evidence);
    if refund.state = 'pending' then
        return ledger.refund_as_move(
            refund, 'pending', 'already_pending', refund.fence, refund.gateway_ref, null, refund.changed_at
        );
    end if;

    refund.attempts := 0;
    refund.maybe_sent := refund.maybe_sent or refund.first_claimed_at is not null;
    move := ledger.move_by_person(call, refund, 'pending', null, who, why, evidence);
    update ledger.refund as r
    set attempts = 0,
        first_claimed_at = case when r.first_claimed_at is not null then move.changed_at end
    where r.merchant_id = requeue_refund.merchant_id and r.refund_id = requeue_refund.refund_id;
    move.outcome := 'requeued';
    return move;
end;
$$;

comment on function ledger.requeue_refund(text, text, text, text, jsonb) is
    'Put a refund in review back to work; the gateway has nothing. Refuses: LG304, LG106, LG201, LG202, LG204.';
