-- What shadow mode recorded of a kind lately, as a report: by whom, from where, by which statement, how often and how
-- late; the 20 most frequent. Null when there is nothing.

create or replace function ledger.would_be_refusals(kind text, quiet_for interval)
returns jsonb
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
begin
    return (
        select jsonb_agg(jsonb_strip_nulls(to_jsonb(w)) order by w.refusals desc, w.latest desc)
        from (
            select
                r.code, r.reason, r.table_name as "table",
                r.database_user as "user", r.client_address as host, r.application_name as application,
                count(*) as refusals,
                max(r.at) as latest,
                max((r.detail ->> 'late_seconds')::numeric) as late_seconds,
                min(r.detail ->> 'statement') as statement,
                min(r.resource) as resource
            from ledger.refusal as r
            where r.kind = would_be_refusals.kind and r.mode = 'shadow' and r.at > clock_timestamp() - quiet_for
            group by 1, 2, 3, 4, 5, 6
            order by refusals desc, latest desc
            limit 20
        ) as w
    );
end;
$$;

comment on function ledger.would_be_refusals(text, interval) is
    'Guard. Reports what shadow mode recorded. Refuses nothing.';
