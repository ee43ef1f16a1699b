-- Take the ledger away: functions, views, types and tables, with everything in them.
--
-- Locks        ACCESS EXCLUSIVE on every table of the schema; milliseconds, once the calls under way have ended.
-- Rewrites     nothing.
-- Transaction  runs inside one.
-- Reversible   no. Refuses while tables of other people are protected, and while there are refunds, unless
--              ledger.discard is set to on: that setting says that the record of the money may go.
-- Needs        membership in ledger_owner and ledger_fn.

set local search_path = pg_catalog, pg_temp;
set local lock_timeout = '1s';
set local statement_timeout = '60s';
set local role ledger_owner;

do $$
declare
    dropped record;
begin
    if coalesce(current_setting('ledger.discard', true), '') <> 'on'
        and (exists (select from ledger.refund) or exists (select from ledger.archived_refund))
    then
        raise exception 'the ledger holds refunds; nothing was changed'
            using hint = 'Dump the schema first. Then set ledger.discard to on for this session, and try again.';
    end if;

    if exists (select from ledger.protected_table) then
        raise exception 'tables are still protected: %; nothing was changed',
            (select string_agg(p.relation::text, ', ') from ledger.protected_table as p)
            using hint = 'Their owners run select ledger.unprotect_table(table) first.';
    end if;

    for dropped in
        select t.tgrelid::regclass as relation, t.tgname as name
        from pg_trigger as t
        join pg_class as c on c.oid = t.tgrelid
        where c.relnamespace = 'ledger'::regnamespace and not t.tgisinternal
    loop
        execute format('drop trigger %I on %s', dropped.name, dropped.relation);
    end loop;
end;
$$;

set local role ledger_fn;

do $$
declare
    dropped record;
begin
    for dropped in
        select p.oid::regprocedure as signature
        from pg_proc as p
        where p.pronamespace = 'ledger'::regnamespace
    loop
        execute format('drop function %s', dropped.signature);
    end loop;
end;
$$;

set local role ledger_owner;

drop view ledger.history, ledger.balance, ledger.refund_from_journal, ledger.metrics;
drop type
    ledger.gate_pass, ledger.claim, ledger.move, ledger.row_outcome, ledger.added, ledger.open_count, ledger.finding,
    ledger.kind_limits, ledger.attempt, ledger.archived, ledger.pruned;
drop table
    ledger.archived_refund, ledger.archived_journal, ledger.carried_balance,
    ledger.work, ledger.pause, ledger.exemption, ledger.protected_table, ledger.refusal, ledger.event, ledger.journal,
    ledger.refund, ledger.draw, ledger.fence, ledger.kind, ledger.server, ledger.transition, ledger.currency;
drop domain ledger.state, ledger.amount;
drop sequence ledger.token_seq, ledger.refusal_seq;
revoke usage on schema ledger from ledger_fn, ledger_worker, ledger_operator, ledger_reader;

reset role;
