-- The token that this transaction presented for a resource, as text in the setting ledger.tokens; null if none.
--
-- Anybody can set it: it is input, not proof. What isn't a token reads as null.

create or replace function ledger.presented_token(resource text)
returns bigint
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
begin
    return ledger.as_number(nullif(current_setting('ledger.tokens', true), '')::jsonb -> resource);
exception
    when invalid_text_representation then
        return null;
end;
$$;

comment on function ledger.presented_token(text) is
    'Guard. The token that this transaction presented for a resource, or null. Refuses nothing.';
