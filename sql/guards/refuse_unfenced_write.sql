-- Refuse a write that brought no token or went round the functions.
--
-- Security definer, for the trigger that calls it runs as whoever wrote.

create or replace function ledger.refuse_unfenced_write(call jsonb)
returns void
language plpgsql
security definer
set search_path = pg_catalog, pg_temp
as $$
begin
    raise exception using
        errcode = 'LG103',
        message = case
            when call ? 'resource' then format(
                '%s on %s by %s refused: no token was presented for %s; nothing was changed',
                call ->> 'operation', call ->> 'table', call ->> 'role', call ->> 'resource'
            )
            else format(
                '%s: %s on %s by %s goes round the ledger''s functions; nothing was changed',
                ledger.refused_call(call), call ->> 'operation', call ->> 'table', call ->> 'role'
            )
        end,
        detail = ledger.refusal_detail(call, '{}'),
        hint = case
            when call ? 'resource'
                then 'Call ledger.present_token(resource, token), or ledger.lock_job, first in the same transaction.'
            else 'Use the functions of schema ledger; docs/errors.md, LG103, names the one for each purpose.'
        end;
end;
$$;

comment on function ledger.refuse_unfenced_write(jsonb) is
    'Guard. Refuses: LG103 UnfencedWrite.';
