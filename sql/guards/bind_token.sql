-- Remember, until the end of the transaction, which token was presented for a resource. A savepoint that rolls back
-- forgets it.

create or replace function ledger.bind_token(resource text, token bigint)
returns void
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
begin
    perform set_config(
        'ledger.tokens',
        (ledger.setting_object('ledger.tokens') || jsonb_build_object(resource, token))::text,
        true
    );
end;
$$;

comment on function ledger.bind_token(text, bigint) is
    'Guard. Binds a token to this transaction. Refuses nothing.';
