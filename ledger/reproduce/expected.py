"""What must happen in each cell, and why. A cell that comes out otherwise, better or worse, is an error."""

from __future__ import annotations

from dataclasses import dataclass

from ledger.reproduce.words import FENCED, MOMENTS, RENEWED


@dataclass(frozen=True, slots=True)
class Counts:
    """Refunds, counted.

    sent_twice     the gateway moved money for it more than once
    wrong          the movements that the database names aren't those that the gateway has
    written_over   of the wrong ones: the database named one of them, and another worker's write removed it
    """

    sent_twice: int = 0
    wrong: int = 0
    written_over: int = 0

    def __add__(self, other: Counts) -> Counts:
        return Counts(
            self.sent_twice + other.sent_twice, self.wrong + other.wrong, self.written_over + other.written_over
        )

    def __str__(self) -> str:
        return f"sent twice {self.sent_twice}, recorded wrongly {self.wrong}, written over {self.written_over}"


@dataclass(frozen=True, slots=True)
class Expected:
    """What a run must come to, and the reason."""

    counts: Counts
    reason: str


NOTHING = Counts()
BOTH_TWICE = Counts(sent_twice=2, wrong=2, written_over=2)
BOTH_TWICE_UNRECORDED = Counts(sent_twice=2, wrong=2)
ONE_TWICE = Counts(sent_twice=1, wrong=1)
ONE_TWICE_WRITTEN_OVER = Counts(sent_twice=1, wrong=1, written_over=1)
ONE_TWICE_RECORDED = Counts(sent_twice=1)

KEY = Expected(NOTHING, "Both calls carry one key, so the gateway moves once; a stale write is refused.")
OUTLASTED = Expected(NOTHING, "The watchdog keeps the lock for as long as the call takes; the other worker waits.")
SLOW = Expected(
    BOTH_TWICE,
    "The other worker begins while the call is out and finds the row unsent. Neither learns of the other: both send "
    "both refunds, and the late one writes over what the other recorded.",
)
GOES_ON = Expected(
    BOTH_TWICE,
    "The lock is gone and its former holder doesn't look. It sends what the next one sends too, writes over what that "
    "one recorded, and goes on to the next refund.",
)
LOOKED_BEFORE_CALL = Expected(
    ONE_TWICE,
    "It had looked before it froze, and sends. Its look before the write stops it: nobody records what it sent.",
)
LOOKED_BEFORE_RECORD = Expected(
    ONE_TWICE_WRITTEN_OVER,
    "It had looked before it froze, and writes over what the next worker recorded. Its next look stops it.",
)
LOOKED_TOO_LATE = Expected(
    ONE_TWICE,
    "Its call was out before the lock was lost. Its look before the write stops it: nobody records what it sent.",
)
ROW_ALONE = Expected(
    BOTH_TWICE_UNRECORDED,
    "The row refuses the lower number, and nobody records what its worker sent. The next row, where no newer number "
    "was yet, lets it go on; the next worker can't tell a takeover from a first claim, and sends again.",
)
COUNTER_LOST = Expected(
    BOTH_TWICE,
    "The counter went with the data, so that both workers have number 1: the row lets each write over the other.",
)
CALLED_LATE = Expected(
    ONE_TWICE_RECORDED,
    "It had looked at its lease before it froze, and calls the gateway, which isn't fenced. Its record is refused "
    "(LG101) and kept with the reference; the next refund isn't touched.",
)
CALL_WAS_OUT = Expected(
    ONE_TWICE_RECORDED,
    "The next worker asks the gateway first, which has nothing yet, and sends; then the first call arrives. Its record "
    "is refused (LG101) and kept with the reference; the next refund isn't touched.",
)
TOLD_BY_GATEWAY = Expected(
    NOTHING,
    "The claim says that an earlier worker may have sent it; the next one asks the gateway and records that movement.",
)
SENT_AGAIN = Expected(
    ONE_TWICE,
    "Nothing tells the next worker that money may have moved. It sends again and records its own movement alone.",
)
DIED_CALL_OUT = Expected(
    ONE_TWICE,
    "The next worker sends while the dead one's call is still on its way. Nobody is left to record that one.",
)
DIED_CALL_OUT_FENCED = Expected(
    ONE_TWICE,
    "The next worker asks the gateway first, which has nothing yet, and sends; then the dead one's call arrives, and "
    "nobody is left to record it. The row stays marked as maybe sent before.",
)


def expected(protection: str, fault: str, moment: str) -> Expected:
    """What a run must come to."""
    if protection == "fence+key":
        return OUTLASTED if fault == "slow" else TOLD_BY_GATEWAY if _is_told(fault, moment) else KEY
    match fault:
        case "slow":
            return OUTLASTED if protection in RENEWED else SLOW
        case "lost-reply":
            return TOLD_BY_GATEWAY if protection in FENCED else SENT_AGAIN
        case "kill":
            return _killed(protection, moment)
    return _overtaken(protection, fault, moment)


def of_cell(protection: str, fault: str) -> Counts:
    """What a cell must come to: the sum over the moments of its fault."""
    return sum((expected(protection, fault, moment).counts for moment in MOMENTS[fault]), Counts())


def _is_told(fault: str, moment: str) -> bool:
    """Whether the gateway can tell the next worker of the movement when it is asked."""
    return fault == "lost-reply" or (fault in {"pause", "kill"} and moment == "before_record")


def _killed(protection: str, moment: str) -> Expected:
    if protection in FENCED:
        return DIED_CALL_OUT_FENCED if moment == "call_out" else TOLD_BY_GATEWAY
    return DIED_CALL_OUT if moment == "call_out" else SENT_AGAIN


def _overtaken(protection: str, fault: str, moment: str) -> Expected:
    """The first worker loses the lock, lives on, and comes back after the next one."""
    match protection, moment:
        case "check", "before_call":
            return LOOKED_BEFORE_CALL
        case "check", "before_record":
            return LOOKED_BEFORE_RECORD
        case "check", _:
            return LOOKED_TOO_LATE
        case "row-fence", _:
            return COUNTER_LOST if fault.startswith("redis-") else ROW_ALONE
        case "fence", "before_call":
            return CALLED_LATE
        case "fence", "before_record":
            return TOLD_BY_GATEWAY
        case "fence", _:
            return CALL_WAS_OUT
    return SLOW if protection == "none" else GOES_ON
