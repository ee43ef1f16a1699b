-- How a kind's protected tables are checked by this transaction: off, shadow or enforce.
--
-- While it is off or shadow, the kind's switch is held shared until the transaction ends, so that a change of mode
-- waits for it; while a change is under way, enforce. Under REPEATABLE READ and SERIALIZABLE the kind's row is locked
-- as well: a transaction whose snapshot is older than the change gets 40001 and never slips past it.

create or replace function ledger.checked_mode(kind text)
returns text
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
    mode text;
begin
    select k.mode into mode from ledger.kind as k where k.kind = checked_mode.kind;
    if coalesce(mode, 'enforce') = 'enforce'
        or not pg_try_advisory_xact_lock_shared(hashtextextended(kind, 4))
    then
        return 'enforce';
    end if;

    if current_setting('transaction_isolation') <> 'read committed'
        and current_setting('transaction_read_only') = 'off'
    then
        perform from ledger.kind as k where k.kind = checked_mode.kind for share skip locked;
        if not found then
            return 'enforce';
        end if;
    end if;
    select k.mode into mode from ledger.kind as k where k.kind = checked_mode.kind;
    return mode;
end;
$$;

comment on function ledger.checked_mode(text) is
    'Guard. off, shadow or enforce for a kind, in this transaction. Refuses nothing.';
