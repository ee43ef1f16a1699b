-- A worker that was away for longer than its lease comes back. Its token is refused, and nothing is changed.
\set SHOW_CONTEXT never

select outcome from ledger.add_refund('m_4471', 'r_815', 7025, 'EUR');

-- A takes the resource and claims; then it is frozen, and its lease ends.
select ledger.draw_token('settle:m_4471') as a \gset
select ledger.activate_token('settle:m_4471', :a, 'worker-a/1/aaaaaaaaaaaaaaaa');
select outcome from ledger.claim_refund('m_4471', 'r_815', :a);

-- B takes the resource. Activating its token voids every number that was drawn before.
select ledger.draw_token('settle:m_4471') as b \gset
select ledger.activate_token('settle:m_4471', :b, 'worker-b/2/bbbbbbbbbbbbbbbb');

-- A wakes up and writes. DETAIL is JSON, with both tokens and both holders; HINT says what to do next.
select outcome from ledger.confirm_refund('m_4471', 'r_815', :a, 're_815');
\echo :LAST_ERROR_SQLSTATE

-- A number that nobody drew, however high, is refused as well.
select outcome from ledger.claim_refund('m_4471', 'r_815', 9000000000000000000);
\echo :LAST_ERROR_SQLSTATE

-- So is whoever goes round the functions: the owner, and a superuser, too.
set role ledger_owner;
update ledger.refund set state = 'sent' where refund_id = 'r_815';
\echo :LAST_ERROR_SQLSTATE
reset role;

select refund_id, state, fence from ledger.refund where merchant_id = 'm_4471';
