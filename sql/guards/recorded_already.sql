-- What a settling call finds when it was recorded before: the same move, under the same token.
--
-- Looked at before the token is called stale, so that a holder whose reply was lost isn't told that it was
-- refused, even after a newer token. It writes nothing. A refund that was never claimed carries 0, which is no
-- token.

create or replace function ledger.recorded_already(
    refund ledger.refund,
    token bigint,
    states text[],
    gateway_ref text
)
returns boolean
language plpgsql
immutable
set search_path = pg_catalog, pg_temp
as $$
begin
    return token > 0
        and refund.fence = token
        and refund.state = any(states)
        and (gateway_ref is null or refund.gateway_ref = gateway_ref);
end;
$$;

comment on function ledger.recorded_already(ledger.refund, bigint, text[], text) is
    'Guard. Whether the row carries this token, one of these states and this reference. Refuses nothing.';
