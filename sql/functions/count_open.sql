-- How many of a merchant's refunds are open, by state, and which of them a claim under a token could take.
--
-- The end of a settlement is when none is claimable: claims pass over rows that somebody has locked, so a short
-- answer doesn't say it. Reads the open refunds alone.
--
-- Refuses nothing.

create or replace function ledger.count_open(merchant_id text, token bigint default null)
returns setof ledger.open_count
language plpgsql
stable
security definer
set search_path = pg_catalog, pg_temp
as $$
begin
    return query
    select
        r.state::text,
        r.state = 'pending' or coalesce(r.state in ('sending', 'unknown') and r.fence < count_open.token, false),
        count(*)
    from ledger.refund as r
    where r.merchant_id = count_open.merchant_id and r.settled_at is null
    group by 1, 2
    order by 1, 2;
end;
$$;

comment on function ledger.count_open(text, bigint) is
    'A merchant''s open refunds by state, and whether a token could claim them. Refuses nothing.';
