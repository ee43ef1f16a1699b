-- What there is to say of a token that isn't the active one: the code and the finer reason, as "LG101 superseded".
-- Null for the active one. The one decision behind every refusal of a token, whether it is raised or, in shadow
-- mode, only recorded.
--
-- Null, zero or negative: LG102. Up to the barrier: LG101, superseded if it was active once, else voided. Drawn and not
-- activated yet: LG105. Nobody drew it: LG102, said only when certain; else 40001, for the snapshot is older than the
-- answer.

create or replace function ledger.judge_token(resource text, token bigint, gate ledger.gate_pass)
returns text
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
    last_drawn bigint;
begin
    if token = gate.active then
        return null;
    end if;
    if coalesce(token, 0) <= 0 then
        return 'LG102';
    end if;
    if token <= gate.barrier then
        return case
            when exists (
                select
                from ledger.event as e
                where e.resource = judge_token.resource and e.token = judge_token.token and e.event = 'activated'
            ) then 'LG101 superseded'
            else 'LG101 voided'
        end;
    end if;
    if exists (
        select from ledger.draw as d where d.resource = judge_token.resource and d.token = judge_token.token
    ) then
        return 'LG105';
    end if;

    select s.last_value into last_drawn from ledger.token_seq as s;
    if current_setting('transaction_isolation') = 'read committed' or token > last_drawn then
        return 'LG102';
    end if;
    return '40001';
end;
$$;

comment on function ledger.judge_token(text, bigint, ledger.gate_pass) is
    'Guard. The code that a token other than the active one deserves. Refuses nothing.';
