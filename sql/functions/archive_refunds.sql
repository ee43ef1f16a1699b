-- Move a merchant's finished refunds that last changed before a time into the archive, each with its whole journal;
-- by a person. In the order of their ids, max_rows at most, after the cursor. One call is one small transaction.
--
-- What is open stays. So does a refund whose journal isn't whole: verify tells of it, and archiving must not hide it.
-- Keys stay taken: add_refund knows what is archived. Balances stay right: what was moved is carried forward.
-- The time must be at least the key window of kind settle ago: until then a gateway's answer may come.
--
-- Refuses, first match wins:
--   LG304 BadArgument   the merchant, the actor or the reason is missing, max_rows is out of bounds, or the time is too
--                       young

create or replace function ledger.archive_refunds(
    merchant_id text,
    before timestamptz,
    max_rows integer,
    after_refund_id text default '',
    actor text default null,
    reason text default null
)
returns ledger.archived
language plpgsql
security definer
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
set jit = off
as $$
declare
    call jsonb := jsonb_build_object('function', 'archive_refunds', 'merchant_id', merchant_id);
    who text := coalesce(actor, nullif(current_setting('ledger.actor', true), ''));
    why text := coalesce(reason, nullif(current_setting('ledger.reason', true), ''));
    moved_ids text[];
    refunds integer;
    entries integer;
begin
    perform ledger.check_ids(call, merchant_id, 'any');
    perform ledger.check_housekeeping(
        call, before, (ledger.kind_or_defaults('settle')).key_window, max_rows, who, why
    );

    select array_agg(f.refund_id order by f.refund_id) into moved_ids
    from (
        select r.refund_id
        from ledger.refund as r
        where r.merchant_id = archive_refunds.merchant_id
            and r.refund_id > coalesce(after_refund_id, '')
            and r.settled_at is not null
            and r.changed_at < before
            and r.journal_number = (
                select count(*)
                from ledger.journal as j
                where j.merchant_id = r.merchant_id and j.refund_id = r.refund_id
            )
        order by r.refund_id
        limit max_rows
        for update skip locked
    ) as f;
    if moved_ids is null then
        return row(0, 0, null)::ledger.archived;
    end if;

    insert into ledger.archived_refund
    select r.*
    from ledger.refund as r
    where r.merchant_id = archive_refunds.merchant_id and r.refund_id = any(moved_ids);

    insert into ledger.archived_journal
    select j.*
    from ledger.journal as j
    where j.merchant_id = archive_refunds.merchant_id and j.refund_id = any(moved_ids);

    insert into ledger.carried_balance as b (merchant_id, currency, account, balance_minor)
    select archive_refunds.merchant_id, j.currency, v.account, sum(v.minor)
    from ledger.journal as j
    cross join lateral (values (j.debit, -j.amount_minor), (j.credit, j.amount_minor)) as v (account, minor)
    where j.merchant_id = archive_refunds.merchant_id and j.refund_id = any(moved_ids) and j.debit is not null
    group by j.currency, v.account
    on conflict on constraint carried_balance_pkey do update
    set balance_minor = b.balance_minor + excluded.balance_minor;

    delete from ledger.journal as j
    where j.merchant_id = archive_refunds.merchant_id and j.refund_id = any(moved_ids);
    get diagnostics entries = row_count;
    delete from ledger.refund as r
    where r.merchant_id = archive_refunds.merchant_id and r.refund_id = any(moved_ids);
    get diagnostics refunds = row_count;

    insert into ledger.event (event, kind, resource, actor, reason, detail)
    values (
        'archived', 'settle', 'settle:' || merchant_id, who, why,
        jsonb_build_object(
            'refunds', refunds, 'entries', entries, 'before', before,
            'first', moved_ids[1], 'last', moved_ids[refunds]
        )
    );
    return row(refunds, entries, moved_ids[refunds])::ledger.archived;
end;
$$;

comment on function ledger.archive_refunds(text, timestamptz, integer, text, text, text) is
    'Move a merchant''s finished refunds into the archive, with their journal; by a person. Refuses: LG304.';
