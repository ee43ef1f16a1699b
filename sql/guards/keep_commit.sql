-- Make this transaction durable before its caller hears of it.
--
-- With synchronous_commit off, a crash hands a token out twice. A setting attached to a function would be
-- undone before the commit, so it is set from inside.

create or replace function ledger.keep_commit()
returns void
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
begin
    if current_setting('synchronous_commit') in ('off', 'local', 'remote_write') then
        perform set_config('synchronous_commit', 'on', true);
    end if;
end;
$$;

comment on function ledger.keep_commit() is
    'Guard. Raises synchronous_commit to on for this transaction. Refuses nothing.';
