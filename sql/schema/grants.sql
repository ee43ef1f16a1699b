-- Who may call what. New functions are executable by everybody, so that is taken back first, in the transaction
-- that creates them.
--
-- ledger_worker     what a worker needs: tokens, refunds, jobs
-- ledger_operator   the same, and what a person on call needs
-- ledger_reader     reads, and verifies

revoke all on all functions in schema ledger from public;

grant execute on function
    ledger.draw_token(text),
    ledger.activate_token(text, bigint, text),
    ledger.get_kind(text),
    ledger.lock_job(text, text),
    ledger.hold_job(text, interval),
    ledger.free_job(text),
    ledger.add_refund(text, text, bigint, text, text, text, text),
    ledger.add_refunds(text, text[], bigint[], text[], text[], text[], text[]),
    ledger.claim_refund(text, text, bigint),
    ledger.claim_refunds(text, bigint, integer, text, boolean),
    ledger.confirm_refund(text, text, bigint, text, jsonb),
    ledger.confirm_refunds(text, bigint, text[], text[]),
    ledger.fail_refund(text, text, bigint, text, jsonb),
    ledger.release_refund(text, text, bigint, text, jsonb),
    ledger.mark_unknown(text, text, bigint, text, jsonb),
    ledger.accept_refund(text, text, bigint, text, jsonb),
    ledger.record_refusal(text, text, jsonb),
    ledger.record_hold(text, bigint, interval, integer, integer),
    ledger.begin_attempt(text, text, bigint),
    ledger.end_attempt(text, text, bigint, text, text),
    ledger.present_token(text, bigint),
    ledger.present_tokens(jsonb),
    ledger.protect_table(regclass, text, text, text, boolean),
    ledger.register_table(regclass, text, text, text, boolean),
    ledger.missing_triggers(regclass),
    ledger.unprotect_table(regclass),
    ledger.unregister_table(regclass),
    ledger.check_write(),
    ledger.check_row(),
    ledger.stamp_row()
to ledger_worker, ledger_operator;

grant execute on function
    ledger.set_kind(text, text, interval, interval, interval, interval, integer, interval, text, text),
    ledger.set_mode(text, text, text, text, boolean, interval),
    ledger.exempt_transaction(regclass, text, text),
    ledger.cancel_refund(text, text, text, text, jsonb),
    ledger.review_refund(text, text, text, text, jsonb),
    ledger.resolve_refund(text, text, text, text, text, text, jsonb),
    ledger.return_refund(text, text, text, text, text, jsonb),
    ledger.requeue_refund(text, text, text, text, jsonb),
    ledger.break_lease(text, text, text, text),
    ledger.requeue_work(text, text, text, text),
    ledger.pause(text, text, text),
    ledger.resume(text, text, text),
    ledger.set_failover(text, text, text),
    ledger.archive_refunds(text, timestamptz, integer, text, text, text),
    ledger.prune_refusals(timestamptz, integer, text, text),
    ledger.prune_draws(timestamptz, integer, text, text),
    ledger.prune_events(timestamptz, integer, bigint, text, text),
    ledger.prune_work(timestamptz, integer, text, text),
    ledger.recover_failover(boolean, text, text)
to ledger_operator;

grant execute on function
    ledger.count_open(text, bigint),
    ledger.job_holders(text),
    ledger.verify(text)
to ledger_worker, ledger_operator, ledger_reader;

grant execute on function
    ledger.get_kind(text)
to ledger_reader;

-- The owner's own stray writes must reach the guard that refuses them.
grant execute on function
    ledger.guard_write(),
    ledger.guard_archive(),
    ledger.guard_pruning(),
    ledger.refuse_unfenced_write(jsonb)
to ledger_owner;
