-- Fence a table of one's own: from now on only transactions that presented the active token write to it.
\set SHOW_CONTEXT never

create table charge (org_id text, month date, amount_minor bigint, primary key (org_id, month));

-- Run by the table's owner. Each row's resource is monthly-charges:<org_id>; no column is added, no row rewritten.
select ledger.protect_table('charge', kind => 'monthly-charges', column_name => 'org_id');
select relation, kind, column_name, stamp from ledger.protected_table;

-- A write without a token.
insert into charge values ('org_7', '2026-11-01', 4900);
\echo :LAST_ERROR_SQLSTATE

-- A token for one organisation, presented in the transaction that writes.
select ledger.draw_token('monthly-charges:org_7') as token \gset
select ledger.activate_token('monthly-charges:org_7', :token, 'example/1/0123456789abcdef');
begin;
select ledger.present_token('monthly-charges:org_7', :token);
insert into charge values ('org_7', '2026-11-01', 4900);
commit;

-- It is for that organisation alone.
begin;
select ledger.present_token('monthly-charges:org_7', :token);
insert into charge values ('org_8', '2026-11-01', 4900);
rollback;
\echo :LAST_ERROR_SQLSTATE

-- A newer holder: the older token may not even be presented.
select ledger.draw_token('monthly-charges:org_7') as newer \gset
select ledger.activate_token('monthly-charges:org_7', :newer, 'example/2/fedcba9876543210');
select ledger.present_token('monthly-charges:org_7', :token);
\echo :LAST_ERROR_SQLSTATE

-- A migration of data, by an operator, on record.
begin;
select ledger.exempt_transaction('charge', 'carol', 'ticket 812: charges of November');
update charge set amount_minor = 5900;
commit;
select relation, actor, reason from ledger.exemption;

-- And back to an ordinary table.
select ledger.unprotect_table('charge');
update charge set amount_minor = 4900;
