-- A worker dies after its claim, perhaps after its call. Whoever takes over is told so, and asks the gateway first.
\set SHOW_CONTEXT never

select outcome from ledger.add_refund('m_4471', 'r_815', 7025, 'EUR');

select ledger.draw_token('settle:m_4471') as a \gset
select ledger.activate_token('settle:m_4471', :a, 'worker-a/1/aaaaaaaaaaaaaaaa');
select outcome from ledger.claim_refund('m_4471', 'r_815', :a);

-- A is gone. The refund is open, in sending, under a token that is about to be void.
select ledger.draw_token('settle:m_4471') as b \gset
select ledger.activate_token('settle:m_4471', :b, 'worker-b/2/bbbbbbbbbbbbbbbb');

-- taken_over, not claimed: a call may be out. The key is the same for the refund's whole life.
select refund_id, outcome, attempt, previous_state, previous_token, idempotency_key
from ledger.claim_refunds('m_4471', :b, 10);

-- B asked the gateway for m_4471/r_815. It wasn't certain, and said so: that is a state, too.
select outcome, state, maybe_sent from ledger.mark_unknown('m_4471', 'r_815', :b, 'the gateway timed out');

-- Such a refund can't be cancelled, for its money may have moved.
select outcome from ledger.cancel_refund('m_4471', 'r_815', 'carol', 'the customer called', '{"ticket": 4471}');
\echo :LAST_ERROR_SQLSTATE

-- C takes over, asks again, and learns that A's call had arrived.
select ledger.draw_token('settle:m_4471') as c \gset
select ledger.activate_token('settle:m_4471', :c, 'worker-c/3/cccccccccccccccc');
select outcome, previous_state, previous_token from ledger.claim_refund('m_4471', 'r_815', :c);
select outcome, state from ledger.confirm_refund('m_4471', 'r_815', :c, 're_815');

select number, from_state, to_state, token, holder, attempts, maybe_sent
from ledger.history
where merchant_id = 'm_4471' and refund_id = 'r_815';
