-- What a promotion or a restore that may have lost commits asks for: the sequence, every active token and every
-- barrier lifted above anything that can have been handed out, and every open refund marked, so that the gateway is
-- asked before any is sent. Returns the number lifted to.

create or replace function ledger.lift_tokens(highest bigint, actor text, reason text)
returns bigint
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
    -- So far ahead that no draw beside this one passes it between the look and the lift.
    lifted bigint := highest + 1048576;
begin
    perform setval('ledger.token_seq', lifted);
    delete from ledger.draw;
    update ledger.fence as f
    set active = lifted,
        barrier = lifted,
        holder = 'recovery',
        activated_at = clock_timestamp();

    insert into ledger.journal (
        merchant_id, refund_id, number, attempts, at, maybe_sent, from_state, to_state, actor, reason
    )
    select
        r.merchant_id, r.refund_id, r.journal_number + 1, r.attempts, now(), true, r.state, r.state, actor, reason
    from ledger.refund as r
    where r.settled_at is null and not r.maybe_sent;

    update ledger.refund as r
    set maybe_sent = true,
        first_claimed_at = coalesce(r.first_claimed_at, r.added_at),
        changed_at = now(),
        journal_number = r.journal_number + 1
    where r.settled_at is null and not r.maybe_sent;
    return lifted;
end;
$$;

comment on function ledger.lift_tokens(bigint, text, text) is
    'Guard. Lifts tokens and marks open refunds after a loss. Refuses nothing.';
