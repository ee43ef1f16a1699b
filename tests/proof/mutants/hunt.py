"""Find a test that fails with a mutant in the database and passes without it."""

from __future__ import annotations

import hashlib
import re
import threading
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import PurePath

from tests.proof.mutants import generate
from tests.proof.mutants.bench import Bench
from tests.proof.mutants.reach import Reach

GENERALISTS = 8  # tests that killed the most, whatever the function

# Which tests are about which sort of mutants.
ABOUT = (
    (r":attribute:", r"test_house_rules"),
    (r":(unlocked|lock|lock none):", r"test_races|test_gate"),
    (r"pause", r"test_pause"),
    (r"settled_at is null|unordered", r"test_plans"),
    (r"keep_commit|synchronous_commit|:'?(off|local|remote_write|on)'?$", r"test_durable"),
    (r"limit|setting_ms|max_attempts|key_window", r"test_limits|test_set_kind"),
    (r"session_ended|ended|activate_token:not inserted:3|insert into ledger.event", r"test_frozen|event|remember"),
    (
        r":(unset|not inserted|word|number|null):",
        r"what_is_written|with_all_that|numbered|rebuilds|each_way|money_moved",
    ),
    (r"^trigger:", r"test_security"),
    (r"^constraint:", r"test_constraints"),
)


@dataclass
class Found:
    """What became of a mutant: who killed it in each setting."""

    mutant: generate.Mutant
    killers: dict[str, str] = field(default_factory=dict)
    broken: str | None = None

    @property
    def survived(self) -> bool:
        """Whether no test killed it, in one setting at least."""
        return bool(self.broken) or set(self.killers) != set(self.mutant.settings)

    @property
    def status(self) -> str:
        """Where it lives."""
        if self.broken:
            return f"BROKEN, no SQL at all: {self.broken}"
        return "ALIVE, guard triggers " + " and ".join(s for s in self.mutant.settings if s not in self.killers)


class Hunt:
    """The killers that are known, and the search for more, in the order in which tests have killed before."""

    def __init__(self, remembered: dict[tuple[str, str], str], *, update: bool, tries: int) -> None:
        self._remembered = remembered
        self.updates = update
        self._tries = tries
        self.reach: Reach | None = None
        self._called_by: dict[str, frozenset[str]] = {}
        self._sound: dict[tuple[str, str], bool] = {}
        self._kills: defaultdict[str, Counter[str]] = defaultdict(Counter)
        for (mutant, _), test in remembered.items():
            self._kills[mutant.partition(":")[0]][test] += 1
            self._kills[""][test] += 1
        self._lock = threading.Lock()

    def kill(self, bench: Bench, mutant: generate.Mutant) -> Found:
        """Try the killer that is known; else, where it was asked for, look for one."""
        found = Found(mutant)
        for setting in mutant.settings:
            for test in self._candidates(bench, mutant, setting, found):
                answer = bench.run(test, mutant, setting)
                if answer["broken"]:
                    found.broken = answer["broken"]
                    return found
                if answer["failed"] and (not self.updates or self._is_sound(bench, test, setting)):
                    found.killers[setting] = test
                    with self._lock:
                        self._kills[mutant.function][test] += 1
                        self._kills[""][test] += 1
                    break
            else:
                break  # one life is enough
        return found

    def _candidates(self, bench: Bench, mutant: generate.Mutant, setting: str, found: Found) -> Iterator[str]:
        """The known killer, that of the other setting, those of the same function, its own tests, then the others; of
        all only those that come to what is broken."""
        known = self._remembered.get((mutant.id, setting))
        first = [test for test in (known, *found.killers.values()) if test in bench.tests]
        if not self.updates:
            yield from first[:1]
            return
        with self._lock:
            kills = [test for test, _ in self._kills[mutant.function].most_common()]
            kills += [test for test, _ in self._kills[""].most_common(GENERALISTS)]
        tests = self.reach and self.reach.tests(mutant)
        tests = frozenset(bench.tests) if tests is None else tests & frozenset(bench.tests)
        likely = [test for test in dict.fromkeys([*first, *kills]) if test in tests]
        yield from likely
        left = sorted(tests - set(likely), key=_shuffled)
        firsts = set({test.partition("[")[0]: test for test in reversed(left)}.values())
        others = sorted(left, key=lambda test: self._nearness(test, mutant, test in firsts))
        yield from others[: self._tries - len(likely)] if len(likely) < self._tries else ()

    def _nearness(self, test: str, mutant: generate.Mutant, is_first: bool) -> tuple[bool, bool, int]:
        """The tests that are about this sort of mutant, those of the function itself, of functions that call it, and
        others; after all of them those that run a test once more with another value."""
        file = test.partition("::")[0]
        subject = PurePath(file).stem.removeprefix("test_")
        about = any(re.search(sort, mutant.id) and re.search(tests, test) for sort, tests in ABOUT)
        if subject == mutant.function:
            distance = 0
        elif subject in self._callers(mutant.function):
            distance = 1
        else:
            distance = 2
        return (not about, not is_first, distance)

    def _callers(self, function: str) -> frozenset[str]:
        """The functions that call this one, however deep."""
        if function not in self._called_by:
            self._called_by[function] = generate.callers(function)
        return self._called_by[function]

    def _is_sound(self, bench: Bench, test: str, setting: str) -> bool:
        """Whether the test passes on the SQL as it is."""
        if (test, setting) not in self._sound:
            self._sound[test, setting] = not bench.run(test, None, setting)["failed"]
        return self._sound[test, setting]


def _shuffled(test: str) -> str:
    """The same order each time, but not file by file: neighbours show the same."""
    return hashlib.sha256(test.encode()).hexdigest()
