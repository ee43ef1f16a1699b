-- Keep a record of a refusal. A refusal takes its own transaction with it, so this is called on another connection,
-- with what the caller was told: SQLSTATE, message, and the DETAIL.
--
-- The same refusal, by its number, is recorded once. Ids may be as long as whoever was refused made them: the
-- columns, which are indexed, keep 300 characters and the detail all of them.
--
-- Refuses, first match wins:
--   LG304 BadArgument   the code isn't one of ours, or the detail isn't an object of at most 1 MiB

create or replace function ledger.record_refusal(code text, message text, detail jsonb)
returns bigint
language plpgsql
security definer
set search_path = pg_catalog, pg_temp
as $$
declare
    call jsonb := jsonb_build_object('function', 'record_refusal', 'code', code);
    resource text := coalesce(detail ->> 'resource', 'settle:' || (detail ->> 'merchant_id'));
    id bigint;
begin
    if coalesce(code !~ '^LG[1-3][0-9]{2}$', true) then
        perform ledger.refuse_argument(call, 'code is a SQLSTATE of the ledger, like LG101');
    end if;
    if coalesce(jsonb_typeof(detail) <> 'object' or octet_length(detail::text) > 1048576, true) then
        perform ledger.refuse_argument(call, 'detail is a JSON object of at most 1 MiB');
    end if;

    insert into ledger.refusal (
        number, code, reason, function, kind, resource, merchant_id, refund_id,
        token, active, holder, active_holder, table_name, message, detail
    )
    values (
        ledger.as_number(detail -> 'refusal'), code, detail ->> 'reason', detail ->> 'function',
        split_part(resource, ':', 1), resource, left(detail ->> 'merchant_id', 300), left(detail ->> 'refund_id', 300),
        ledger.as_number(detail -> 'token'), ledger.as_number(detail -> 'active'),
        detail ->> 'holder', detail ->> 'active_holder', detail ->> 'table', left(message, 4000), detail
    )
    on conflict on constraint refusal_is_recorded_once do nothing
    returning refusal_id into id;

    if id is null then
        select r.refusal_id into id
        from ledger.refusal as r
        where r.number = ledger.as_number(record_refusal.detail -> 'refusal');
    end if;
    return id;
end;
$$;

comment on function ledger.record_refusal(text, text, jsonb) is
    'Keep a record of a refusal that took its transaction with it. Refuses: LG304.';
