-- Let this transaction write to a protected table without a token: for an operator's data migration.
--
-- It is on record, with actor and reason, and fenced writers to the table are kept out until it ends. It waits for
-- those under way two seconds at most. A partitioned table is exempt with the partitions it has; where one partition
-- is named, only writes by its own name are.
--
-- Refuses, first match wins:
--   LG304 BadArgument   actor or reason is missing, or the table isn't protected
--   55P03               fenced writers are under way

create or replace function ledger.exempt_transaction(
    relation regclass,
    actor text default null,
    reason text default null
)
returns void
language plpgsql
security definer
set search_path = pg_catalog, pg_temp
as $$
declare
    call jsonb := jsonb_build_object('function', 'exempt_transaction', 'relation', relation);
    who text := coalesce(actor, nullif(current_setting('ledger.actor', true), ''));
    why text := coalesce(reason, nullif(current_setting('ledger.reason', true), ''));
    callers_limit text := current_setting('lock_timeout');
    deadline timestamptz := clock_timestamp()
        + least(interval '2 seconds', nullif(callers_limit::interval, interval '0'));
    protection ledger.protected_table;
    part oid;
begin
    perform ledger.check_person(call, who, why);
    select p.* into protection
    from ledger.protected_table as p
    where p.relation = exempt_transaction.relation or p.relation = pg_partition_root(exempt_transaction.relation);
    if not found then
        perform ledger.refuse_argument(call, 'the table is not protected');
    end if;

    -- Parents too: statements that name them write to the partition.
    for part in
        select relation::oid
        union
        select a.relid::oid from pg_partition_ancestors(relation) as a
        union
        select t.relid::oid from pg_partition_tree(relation) as t
        order by 1
    loop
        begin
            perform set_config(
                'lock_timeout',
                greatest(1, (extract(epoch from deadline - clock_timestamp()) * 1000)::integer)::text, true
            );
            perform pg_advisory_xact_lock(hashtextextended(part::text, 5));
            perform set_config('lock_timeout', callers_limit, true);
        exception
            when lock_not_available then
                perform ledger.refuse_busy(call, 'switch', hashtextextended(part::text, 5), null);
        end;
    end loop;

    insert into ledger.exemption (transaction, relation, actor, reason)
    select pg_current_xact_id(), t.relid, who, why
    from (select relation as relid union select p.relid from pg_partition_tree(relation) as p) as t
    on conflict do nothing;

    insert into ledger.event (event, kind, resource, actor, reason, detail)
    values (
        'exempted', protection.kind, protection.resource, who, why,
        jsonb_build_object('table', relation::text, 'transaction', pg_current_xact_id()::text)
    );
end;
$$;

comment on function ledger.exempt_transaction(regclass, text, text) is
    'Let this transaction write to a protected table without a token, on record. Refuses: LG304, 55P03.';
