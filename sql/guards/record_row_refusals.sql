-- Keep a record of the rows that a set-based call refused.
--
-- The call itself goes through, so the record can be written here and needs no second connection. An id that is
-- too long to be indexed must not stop it: the columns keep 300 characters, and the detail all of them.

create or replace function ledger.record_row_refusals(call jsonb, outcomes ledger.row_outcome[])
returns void
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
begin
    insert into ledger.refusal (
        number, code, reason, function, kind, resource, merchant_id, refund_id, token, message, detail
    )
    select
        nextval('ledger.refusal_seq'), o.outcome, o.reason, call ->> 'function', 'settle',
        'settle:' || (call ->> 'merchant_id'), call ->> 'merchant_id', left(o.refund_id, 300),
        (call ->> 'token')::bigint,
        format('row %s of %s', o.position, call ->> 'function'), jsonb_strip_nulls(call || to_jsonb(o))
    from unnest(outcomes) as o
    where o.outcome like 'LG%';
end;
$$;

comment on function ledger.record_row_refusals(jsonb, ledger.row_outcome[]) is
    'Guard. Records the rows that a set-based call refused. Refuses nothing.';
