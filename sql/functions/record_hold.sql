-- Keep a record of how long a lease was held, how often it was renewed and how often that was late: what the advice on
-- its time limit rests on (ledger lease advise). Called when a lease is given back; once for each token.
--
-- Refuses, first match wins:
--   LG304 BadArgument   a duration or a count is missing or negative, or the token was never activated for the resource

create or replace function ledger.record_hold(
    resource text,
    token bigint,
    held interval,
    renewals integer,
    late integer
)
returns void
language plpgsql
security definer
set search_path = pg_catalog, pg_temp
as $$
declare
    call jsonb := jsonb_build_object('function', 'record_hold', 'resource', resource, 'token', token);
    holder text;
begin
    perform ledger.check_resource(call, resource);
    if coalesce(held < interval '0' or renewals < 0 or late < 0, true) then
        perform ledger.refuse_argument(call, 'held, renewals and late are from zero');
    end if;
    select e.holder into holder
    from ledger.event as e
    where e.resource = record_hold.resource and e.token = record_hold.token and e.event = 'activated';
    if not found then
        perform ledger.refuse_argument(call, 'that token was never activated for that resource');
    end if;

    if exists (
        select
        from ledger.event as e
        where e.resource = record_hold.resource and e.token = record_hold.token and e.event = 'held'
    ) then
        return;
    end if;
    insert into ledger.event (event, kind, resource, token, holder, detail)
    values (
        'held', split_part(resource, ':', 1), resource, token, holder,
        jsonb_build_object('seconds', round(extract(epoch from held), 3), 'renewals', renewals, 'late', late)
    );
end;
$$;

comment on function ledger.record_hold(text, bigint, interval, integer, integer) is
    'Keep a record of how long a lease was held. Refuses: LG304.';
