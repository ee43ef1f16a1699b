-- One refund, from its arrival to its confirmation, as a worker does it.
\set SHOW_CONTEXT never

-- The refund arrives. Adding it again changes nothing and says so.
select outcome, state, idempotency_key from ledger.add_refund('m_4471', 'r_814', 7025, 'EUR');
select outcome, state from ledger.add_refund('m_4471', 'r_814', 7025, 'EUR');

-- A token: drawn before the lease is taken, activated after it. From here on it is the only one that writes.
select ledger.draw_token('settle:m_4471') as token \gset
select ledger.activate_token('settle:m_4471', :token, 'example/1/0123456789abcdef');
select resource, active, barrier, holder from ledger.fence;

-- The claim is committed (psql does so after each statement) before the gateway is called under the key it returns.
select outcome, attempt, amount_minor, currency, idempotency_key
from ledger.claim_refund('m_4471', 'r_814', :token);

-- The gateway has answered re_814. Said twice, because the first reply was lost, it is recorded once.
select outcome, previous_state, state, gateway_ref from ledger.confirm_refund('m_4471', 'r_814', :token, 're_814');
select outcome, state from ledger.confirm_refund('m_4471', 'r_814', :token, 're_814');

-- Every move is in the journal, with the money it moved.
select number, from_state, to_state, token, debit, credit, amount_minor
from ledger.history
where merchant_id = 'm_4471' and refund_id = 'r_814';

select account, balance_minor from ledger.balance where merchant_id = 'm_4471' order by account;

-- And what is written down twice agrees.
select * from ledger.verify('m_4471');
