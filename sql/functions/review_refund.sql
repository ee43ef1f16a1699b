-- Take a refund out of the work until a person has looked at it.
--
-- Pending, unknown and accepted ones; never one that is sending: fence its holder out first.
--
-- outcome    review           recorded now
--            already_review   it was before; nothing was changed
--
-- Refuses, first match wins:
--   LG304 BadArgument         an id, the actor or the reason is missing, or the evidence isn't an object
--   LG106 RecoveryNeeded      the server was promoted or restored
--   LG201 NoSuchRefund        there is no such refund
--   LG202 RefundFinished      it reached a final state
--   LG204 IllegalTransition   it is sending

create or replace function ledger.review_refund(
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
        'function', 'review_refund', 'merchant_id', merchant_id, 'refund_id', refund_id
    );
    who text := coalesce(actor, nullif(current_setting('ledger.actor', true), ''));
    why text := coalesce(reason, nullif(current_setting('ledger.reason', true), ''));
begin
    return ledger.move_by_person(
        call, ledger.lock_by_person(call, who, why, evidence), 'review', null, who, why, evidence
    );
end;
$$;

comment on function ledger.review_refund(text, text, text, text, jsonb) is
    'Take a refund out of the work until a person has looked. Refuses: LG304, LG106, LG201, LG202, LG204.';
