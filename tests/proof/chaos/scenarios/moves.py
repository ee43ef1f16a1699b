"""Every legal move of a refund that a person, a webhook or a holder may make, each with a refund of its own."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any

from ledger.client import Ledger
from ledger.errors import Refused
from ledger.gateway import Accepted, Sent, Unknown
from ledger.lease import Lease
from ledger.sandbox import Fault, SandboxGateway
from tests.proof.chaos.scenario import scenario
from tests.proof.chaos.world import MERCHANT, PERSON, RESOURCE, World

EVIDENCE = {"seen": "the gateway's dashboard"}
ABSENT = {"not_at_gateway": True}


class Hand:
    """A person with an active token, a gateway and the truth."""

    def __init__(self, world: World, ledger: Ledger, gateway: SandboxGateway, token: int) -> None:
        self.world = world
        self.ledger = ledger
        self.gateway = gateway
        self.token = token

    def claim(self, refund_id: str) -> Any:
        return self.ledger.claim_refund(MERCHANT, refund_id, self.token)

    def send(self, refund_id: str, fault: Fault | None = None) -> Any:
        """Claim it and call the gateway; its answer."""
        claim = self.claim(refund_id)
        if fault is not None:
            self.world.gateway.engine.plan(claim.idempotency_key, fault)
        return self.gateway.refund(claim, self.token, 5.0)

    def accepted(self, refund_id: str) -> str:
        """It is at the gateway, and its final word comes later."""
        answer = self.send(refund_id, Fault.ACCEPT)
        assert isinstance(answer, Accepted), answer
        self.ledger.accept_refund(MERCHANT, refund_id, self.token, answer.ref)
        return answer.ref

    def final_word(self, refund_id: str, *, moved: bool) -> Any:
        return self.world.gateway.engine.complete(f"{MERCHANT}/{refund_id}", moved)

    def review(self, refund_id: str) -> None:
        self.ledger.review_refund(MERCHANT, refund_id, evidence=EVIDENCE, **PERSON)

    def resolve(self, refund_id: str, to_state: str, ref: str | None = None) -> None:
        self.ledger.resolve_refund(MERCHANT, refund_id, to_state, ref, evidence=EVIDENCE, **PERSON)


def accepted_then_sent(hand: Hand, refund_id: str) -> None:
    ref = hand.accepted(refund_id)
    hand.final_word(refund_id, moved=True)
    if hand.world.rng.random() < 0.5:
        hand.resolve(refund_id, "sent", ref)
    else:
        hand.ledger.confirm_refund(MERCHANT, refund_id, hand.token, ref)


def accepted_then_failed(hand: Hand, refund_id: str) -> None:
    hand.accepted(refund_id)
    hand.final_word(refund_id, moved=False)
    if hand.world.rng.random() < 0.5:
        hand.resolve(refund_id, "failed")
    else:
        hand.ledger.fail_refund(MERCHANT, refund_id, hand.token, "declined after all")


def accepted_then_unknown(hand: Hand, refund_id: str) -> None:
    hand.accepted(refund_id)
    hand.ledger.mark_unknown(MERCHANT, refund_id, hand.token, "the gateway is silent")
    hand.final_word(refund_id, moved=True)


def accepted_then_review(hand: Hand, refund_id: str) -> None:
    ref = hand.accepted(refund_id)
    hand.review(refund_id)
    hand.final_word(refund_id, moved=True)
    hand.resolve(refund_id, "sent", ref)


def review_then_back_to_work(hand: Hand, refund_id: str) -> None:
    hand.review(refund_id)
    hand.ledger.requeue_refund(MERCHANT, refund_id, evidence=ABSENT, **PERSON)


def unknown_then_review_then_failed(hand: Hand, refund_id: str) -> None:
    assert isinstance(hand.send(refund_id, Fault.ERROR), Unknown)
    hand.ledger.mark_unknown(MERCHANT, refund_id, hand.token, "a 500")
    hand.review(refund_id)
    hand.resolve(refund_id, "failed")


def review_then_cancelled(hand: Hand, refund_id: str) -> None:
    hand.review(refund_id)
    hand.ledger.cancel_refund(MERCHANT, refund_id, **PERSON)


def cancelled(hand: Hand, refund_id: str) -> None:
    hand.ledger.cancel_refund(MERCHANT, refund_id, **PERSON)


def sent_then_returned(hand: Hand, refund_id: str) -> None:
    sent = hand.send(refund_id)
    assert isinstance(sent, Sent), sent
    hand.ledger.confirm_refund(MERCHANT, refund_id, hand.token, sent.ref)
    hand.ledger.return_refund(MERCHANT, refund_id, evidence=EVIDENCE, **PERSON)


def another_amount_then_returned(hand: Hand, refund_id: str) -> None:
    sent = hand.send(refund_id)
    assert isinstance(sent, Sent), sent
    move = hand.ledger.confirm_refund(MERCHANT, refund_id, hand.token, sent.ref, {"amount_minor": 1})
    assert move.outcome == "review", move
    hand.resolve(refund_id, "returned", sent.ref)


def released(hand: Hand, refund_id: str) -> None:
    hand.claim(refund_id)
    hand.ledger.release_refund(MERCHANT, refund_id, hand.token, "claimed by mistake")


def declined(hand: Hand, refund_id: str) -> None:
    hand.send(refund_id, Fault.DECLINE)
    hand.ledger.fail_refund(MERCHANT, refund_id, hand.token, "declined for good")


def left_behind(hand: Hand, refund_id: str) -> None:
    hand.send(refund_id)


MOVES: tuple[Callable[[Hand, str], None], ...] = (
    accepted_then_sent, accepted_then_failed, accepted_then_unknown, accepted_then_review, review_then_back_to_work,
    unknown_then_review_then_failed, review_then_cancelled, cancelled, sent_then_returned, another_amount_then_returned,
    released, declined, left_behind,
)  # fmt: skip


@scenario("every-move", "People make every legal move by the functions, and lose their token in the middle of it")
def every_move(world: World) -> None:
    """Each move has a refund of its own; whoever is fenced out takes a new lease and goes on with what is left."""
    ids = world.refunds(len(MOVES))
    left = list(zip(ids, world.rng.sample(MOVES, len(MOVES)), strict=True))
    interrupted = world.rng.randint(1, len(MOVES) - 1)
    while left:
        with (
            Lease(RESOURCE, db=world.dsn("ledger_operator"), redis=world.servers.redis_url, wait=5.0) as lease,
            world.ledger() as ledger,
            SandboxGateway(world.gateway.url) as gateway,
            suppress(Refused),
        ):
            hand = Hand(world, ledger, gateway, lease.token)
            while left:
                refund_id, move = left.pop()
                if len(left) == interrupted:
                    interrupted = -1
                    token = ledger.break_lease(RESOURCE, lease.holder, **PERSON)
                    world.fault(f"token {lease.token} is fenced out by {token}")
                    left.append((refund_id, move))
                    world.tries(partial(hand.claim, refund_id))
                    break
                move(hand, refund_id)
                world.note(f"{refund_id}: {move.__name__}")
