"""Which statements of the SQL each test comes to: one that doesn't come there can't kill what is broken there."""

from __future__ import annotations

import hashlib
import json
import threading
from collections import defaultdict
from collections.abc import Iterable
from functools import cache

from ledger import schema
from tests.proof.mutants import generate
from tests.proof.mutants.bench import ROOT, Bench, share_out
from tests.proof.mutants.instrument import owners
from tests.proof.mutants.tokens import Function

FILE = ROOT / "build" / "reach.json"
EVERYWHERE = "everywhere"  # what crashes its server can't be followed


class Reach:
    """For each place in the SQL the tests that come there; run once for each state of the SQL and of the tests."""

    def __init__(self, benches: Iterable[Bench]) -> None:
        benches = list(benches)
        seal = _seal(benches[0].tests)
        if not FILE.is_file() or json.loads(FILE.read_text(encoding="utf-8"))["seal"] != seal:
            FILE.parent.mkdir(exist_ok=True)
            FILE.write_text(json.dumps({"seal": seal, "places": _run(benches)}), encoding="utf-8")
        places = json.loads(FILE.read_text(encoding="utf-8"))["places"]
        self._tests = {place: frozenset(tests) for place, tests in places.items()}

    def tests(self, mutant: generate.Mutant) -> frozenset[str] | None:
        """Those that come to what the mutant breaks; None where that isn't in a function's body."""
        if mutant.replaces is None or ":attribute:" in mutant.id:
            return None
        return self._come_to(mutant.replaces, mutant.at)

    def _come_to(self, name: str, token: int) -> frozenset[str]:
        if statement := owners(name):
            return self._tests.get(f"{name}.{statement[token]}", frozenset()) | self._tests.get(EVERYWHERE, frozenset())
        calls = [(caller, i) for caller, places in _calls().items() for called, i in places if called == name]
        return frozenset().union(*(self._come_to(caller, i) for caller, i in calls))


def _run(benches: list[Bench]) -> dict[str, list[str]]:
    """Every test once."""
    places: defaultdict[str, list[str]] = defaultdict(list)
    lock = threading.Lock()

    def follow(bench: Bench, test: str) -> None:
        came = bench.run(test, None, "reach")["reached"]
        with lock:
            for place in came if came is not None else [EVERYWHERE]:
                places[place].append(test)

    share_out(benches[0].tests, benches, follow)
    return {place: sorted(tests) for place, tests in places.items()}


def _seal(tests: list[str]) -> str:
    texts = [path.read_text(encoding="utf-8") for path in schema.function_files()]
    return hashlib.sha256("\n".join([*texts, *tests]).encode()).hexdigest()


@cache
def _calls() -> dict[str, list[tuple[str, int]]]:
    """What each function calls, and at which token; a trigger's function is called by nobody."""
    return {
        path.stem: [
            (f.word(i).removeprefix("ledger."), i) for i in range(f.body, len(f.tokens)) if f.word(i + 1) == "("
        ]
        for path in schema.function_files()
        for f in [Function.read(path)]
    }
