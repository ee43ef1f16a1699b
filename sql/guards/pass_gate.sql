-- Take the gate of a resource, shared, until the end of the transaction, and judge a token.
--
-- Activation takes the same gate exclusively. So while this transaction lasts no newer token can become active,
-- and one that is becoming active is waited for: that holds for rows that don't exist yet, too.
--
-- The fence is read in a statement after the one that took the gate, or it might be read from before. Under
-- REPEATABLE READ and SERIALIZABLE every statement sees the transaction's first snapshot, so the row is locked
-- as well: a call that lost the race gets 40001, never a stale success.
--
-- The token's verdict is returned and not raised: a repeated confirm is recognised before it is called stale.
--
-- Refuses, first match wins:
--   55P03                  an activation holds the gate longer than the limit
--   LG106 RecoveryNeeded   the server was promoted or restored

create or replace function ledger.pass_gate(function text, resource text, token bigint)
returns ledger.gate_pass
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
    gate ledger.gate_pass;
begin
    if not pg_try_advisory_xact_lock_shared(hashtextextended(resource, 0)) then
        perform ledger.wait_at_gate(
            jsonb_build_object('function', function, 'resource', resource, 'token', token)
        );
    end if;

    if current_setting('transaction_isolation') <> 'read committed' then
        perform from ledger.fence as f where f.resource = pass_gate.resource for share;
    end if;

    -- One statement for all of it, the settings of the transaction too: each further one costs as much again.
    select
        case when f.active = pass_gate.token then null else 'refused' end,
        f.active,
        f.barrier,
        f.holder,
        f.activated_at,
        exists (
            select from ledger.pause as p where p.target in (pass_gate.resource, split_part(pass_gate.resource, ':', 1))
        ),
        f.max_attempts,
        f.key_window,
        s.started_at = pg_postmaster_start_time()
            and s.timeline = substr(pg_walfile_name(pg_current_wal_lsn()), 1, 8),
        f.transaction_limit_ms,
        case
            when f.active = pass_gate.token then concat_ws(
                ' ',
                case
                    when current_setting('synchronous_commit') in ('off', 'local', 'remote_write')
                        then set_config('synchronous_commit', 'on', true)
                end,
                case
                    when extract(epoch from current_setting('idle_in_transaction_session_timeout')::interval) * 1000
                            not between 1 and f.idle_limit_ms
                        then set_config('idle_in_transaction_session_timeout', f.idle_limit_ms::text, true)
                end
            )
        end
    into gate
    from ledger.server as s
    left join ledger.fence as f on f.resource = pass_gate.resource;

    if gate.is_known_server is not true then
        perform ledger.check_server(
            jsonb_build_object('function', function, 'resource', resource, 'token', token)
        );
        -- Where the setting failover is lift, that may just have lifted every fence.
        select f.active, f.barrier, f.holder, f.activated_at
        into gate.active, gate.barrier, gate.holder, gate.activated_at
        from ledger.fence as f
        where f.resource = pass_gate.resource;
        if gate.active is distinct from token then
            gate.verdict := 'refused';
        end if;
    end if;
    if gate.transaction_limit_ms is not null and gate.verdict is null then
        perform ledger.limit_transaction(null, gate.transaction_limit_ms);
    end if;
    return gate;
end;
$$;

comment on function ledger.pass_gate(text, text, bigint) is
    'Guard. Takes the shared gate and judges a token. Refuses by refuse_busy and refuse_new_timeline.';
