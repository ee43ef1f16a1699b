-- Change how a kind's protected tables are checked: off (not at all), shadow (decide and record, let through) or
-- enforce. Takes effect with the next call of every process, and waits for the transactions under way that go
-- unchecked, so that none slips past the switch.
--
-- To enforce is refused while would-be refusals of the last 24 hours (quiet_for) are on record, unless forced. How
-- refund functions check can't be changed: they always enforce.
--
-- Refuses, first match wins:
--   LG304 BadArgument   the kind is settle or unknown, the mode isn't one, actor or reason is missing, or there are
--                       recent would-be refusals and it isn't forced
--   55P03               transactions that go unchecked are under way for longer than two seconds

create or replace function ledger.set_mode(
    kind text,
    mode text,
    actor text default null,
    reason text default null,
    forced boolean default false,
    quiet_for interval default '24 hours'
)
returns ledger.kind_limits
language plpgsql
security definer
set search_path = pg_catalog, pg_temp
as $$
declare
    call jsonb := jsonb_build_object('function', 'set_mode', 'kind', kind, 'mode', mode);
    who text := coalesce(actor, nullif(current_setting('ledger.actor', true), ''));
    why text := coalesce(reason, nullif(current_setting('ledger.reason', true), ''));
    key bigint := hashtextextended(kind, 4);
    callers_limit text := current_setting('lock_timeout');
    callers_ms integer := nullif(ledger.setting_ms('lock_timeout'), 0);
    before text;
    would_be bigint;
begin
    perform ledger.check_person(call, who, why);
    if coalesce(mode not in ('off', 'shadow', 'enforce'), true) then
        perform ledger.refuse_argument(call, 'mode is off, shadow or enforce');
    end if;
    if kind = 'settle' then
        perform ledger.refuse_argument(call, 'refund functions always enforce; modes are for protected tables');
    end if;
    perform ledger.check_resource(call, kind || ':x');

    perform set_config('lock_timeout', least(2000, callers_ms)::text, true);
    begin
        perform pg_advisory_xact_lock(key);
    exception
        when lock_not_available then
            perform ledger.refuse_busy(call, 'switch', key, null);
    end;

    perform ledger.ensure_kind(kind, 'advisory');
    select k.mode into before from ledger.kind as k where k.kind = set_mode.kind for update;
    perform set_config('lock_timeout', callers_limit, true);
    if before = mode then
        return ledger.kind_or_defaults(kind);
    end if;

    if mode = 'enforce' and before = 'shadow' and not coalesce(forced, false) then
        select count(*) into would_be
        from ledger.refusal as r
        where r.kind = set_mode.kind and r.mode = 'shadow' and r.at > clock_timestamp() - quiet_for;
        if would_be > 0 then
            perform ledger.refuse_argument(
                call || jsonb_build_object('would_be_refusals', would_be),
                format(
                    '%s writes of the last %s would have been refused; look at them with ledger refusals, or force it',
                    would_be, quiet_for
                )
            );
        end if;
    end if;

    update ledger.kind as k set mode = set_mode.mode where k.kind = set_mode.kind;
    update ledger.fence as f set mode = set_mode.mode where f.kind = set_mode.kind;
    insert into ledger.event (event, kind, actor, reason, detail)
    values ('mode_set', kind, who, why, jsonb_build_object('before', before, 'after', mode, 'forced', forced));
    return ledger.kind_or_defaults(kind);
end;
$$;

comment on function ledger.set_mode(text, text, text, text, boolean, interval) is
    'Change how a kind''s protected tables are checked. Refuses: LG304, 55P03.';
