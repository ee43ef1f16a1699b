"""A worker: takes the lock, sends two refunds and records them, and tells each step on stdout.

Run as `python -m ledger.reproduce.worker`. Its orders come as a line on stdin, for they may hold passwords, which
arguments would show to the whole machine; with the next line it begins.
"""

from __future__ import annotations

import os
import signal
import sys
import threading

from ledger.demo.story import say
from ledger.gateway import Sent
from ledger.reproduce.guards import PATIENCE, Guard, Stopped, guard
from ledger.reproduce.orders import Orders
from ledger.reproduce.words import REFUNDS
from ledger.sandbox import SandboxGateway


def main(orders: Orders) -> None:
    """Work as ordered."""
    with SandboxGateway(orders.gateway_url) as gateway:
        mine = guard(orders, gateway)
        say("ready")
        sys.stdin.readline()
        mine.take()
        try:
            for refund_id in REFUNDS:
                _settle(orders, mine, gateway, refund_id)
        except Stopped as stopped:
            say("stopped", text=str(stopped), code=stopped.code)
        mine.give_back()
    sys.stdout.flush()
    os._exit(0)  # there is nothing left to tidy up, and an interpreter takes a second to do it


def _settle(orders: Orders, mine: Guard, gateway: SandboxGateway, refund_id: str) -> None:
    _reach(orders, "next", refund_id)
    row = mine.claim(refund_id)
    if row is None:
        return
    mine.look()
    _reach(orders, "before_call", refund_id)
    say("calls", refund_id, text=f"calls the gateway about {refund_id}")
    answer = gateway.refund(row, mine.token, PATIENCE)
    if not isinstance(answer, Sent):
        mine.no_answer(row)
        return
    say("answered", refund_id, text=f"hears from the gateway that {refund_id} was sent: {answer.ref}")
    mine.look_again()
    _reach(orders, "before_record", refund_id)
    mine.record(row, answer.ref)


def _reach(orders: Orders, point: str, refund_id: str) -> None:
    if orders.freeze_at == (point, refund_id):
        say("freezes", refund_id)
        # To this very thread: another one might take the signal, and this one get further than it should.
        signal.pthread_kill(threading.get_ident(), signal.SIGSTOP)
    if orders.stay_at == (point, refund_id):
        say("stays", refund_id)
        sys.stdin.readline()


if __name__ == "__main__":
    main(Orders.read(sys.stdin.readline()))
