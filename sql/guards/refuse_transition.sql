-- Refuse a move that the table transition doesn't list, or the cancellation of what may have been sent, and list the
-- moves from its state.

create or replace function ledger.refuse_transition(call jsonb, refund ledger.refund)
returns void
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
    legal jsonb := (
        select coalesce(jsonb_agg(
            jsonb_build_object(
                'to', t.to_state,
                'by', array_remove(array[
                    case when t.on_claim then 'claim' end,
                    case when t.own_token then 'own token' end,
                    case when t.active_token then 'active token' end,
                    case when t.person then 'person' end
                ], null)
            ) order by t.to_state
        ), '[]')
        from ledger.transition as t
        where t.from_state = refund.state and not (t.to_state = 'cancelled' and refund.maybe_sent)
    );
begin
    raise exception using
        errcode = 'LG204',
        message = format(
            '%s: a refund that is %s can''t make that move by this call; moves from there: %s; nothing was changed',
            ledger.refused_call(call), refund.state,
            coalesce((select string_agg(m ->> 'to', ', ') from jsonb_array_elements(legal) as m), 'none')
        ),
        detail = ledger.refusal_detail(
            call, jsonb_build_object('state', refund.state, 'row_token', refund.fence, 'legal', legal)
        ),
        hint = case
            when refund.state = 'unknown' and call ? 'token'
                then 'This token recorded the outcome as unknown. Draw and activate a new token, then claim it again.'
            when refund.state = 'sending'
                then 'Its holder may be at the gateway now. Fence it out first: claim the refund under a new token.'
            when refund.state = 'accepted' and call ? 'token'
                then 'The gateway has it. Record its final word with confirm, fail or mark_unknown.'
            when refund.maybe_sent and not call ? 'token'
                then 'It may have been sent. Look at the gateway, then record what it did: review_refund, if it isn''t '
                    'in review yet, and resolve_refund.'
            else 'Skip this refund; a person decides.'
        end;
end;
$$;

comment on function ledger.refuse_transition(jsonb, ledger.refund) is
    'Guard. Refuses: LG204 IllegalTransition.';
