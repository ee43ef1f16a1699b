-- Change how a kind's protected tables are checked: off (not at all), shadow (decide and record, let through) or
-- enforce. Takes effect with the next call of every process, and waits for the transactions under way that go
-- unchecked, so that none slips past the switch.
--
-- To enforce is refused while would-be refusals of the last 24 hours (quiet_for) are on record, unless forced; DETAIL
-- tells of them. How refund functions check can't be changed: they always enforce.
--
-- Refuses, first match wins:
--   LG304 BadArgument   the kind is settle or malformed, the mode isn't one, actor or reason is missing, the
--                       transaction isn't READ COMMITTED, or there are would-be refusals and it isn't forced
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
    before text;
    would_be jsonb;
begin
    perform ledger.check_person(call, who, why);
    if coalesce(mode not in ('off', 'shadow', 'enforce'), true) then
        perform ledger.refuse_argument(call, 'mode is off, shadow or enforce');
    end if;
    if kind = 'settle' then
        perform ledger.refuse_argument(call, 'refund functions always enforce; modes are for protected tables');
    end if;
    perform ledger.check_kind(call, kind);
    if coalesce(quiet_for < '0', true) then
        perform ledger.refuse_argument(call, 'quiet_for is zero or more');
    end if;
    if current_setting('transaction_isolation') <> 'read committed' then
        -- Its snapshot would miss what was recorded while it waited.
        perform ledger.refuse_argument(call, 'a mode is changed under READ COMMITTED');
    end if;

    before := ledger.close_switch(call, kind);
    if before = mode then
        return ledger.kind_or_defaults(kind);
    end if;

    if mode = 'enforce' and not coalesce(forced, false) then
        would_be := ledger.would_be_refusals(kind, quiet_for);
        if would_be is not null then
            perform ledger.refuse_argument(
                call || jsonb_build_object('would_be_refusals', would_be),
                format(
                    'writes of the last %s would have been refused, by %s; look at them with ledger refusals, '
                    'or force it with forced => true',
                    quiet_for, (select string_agg(distinct w ->> 'user', ', ') from jsonb_array_elements(would_be) as w)
                )
            );
        end if;
    end if;

    perform ledger.keep_commit();
    update ledger.kind as k set mode = set_mode.mode where k.kind = set_mode.kind;
    insert into ledger.event (event, kind, actor, reason, detail)
    values (
        'mode_set', kind, who, why,
        jsonb_build_object('before', before, 'after', mode, 'forced', coalesce(forced, false))
    );
    return ledger.kind_or_defaults(kind);
end;
$$;

comment on function ledger.set_mode(text, text, text, text, boolean, interval) is
    'Change how a kind''s protected tables are checked. Refuses: LG304, 55P03.';
