"""Which test kills which mutant, as killers.json remembers it, and which mutants no test kills.

Those are of two sorts. Spared: nobody could tell them from the SQL as it is. Open: no test was found that kills them,
which is a hole in the suite, or in the search.
"""

from __future__ import annotations

import json
import tomllib
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path

from tests.proof.mutants import generate
from tests.proof.mutants.hunt import Found

FOLDER = Path(__file__).parent
FILE = FOLDER / "killers.json"
OPEN = FOLDER / "open.json"
SPARED = FOLDER / "spared.toml"


def remembered() -> dict[tuple[str, str], str]:
    """The test for each mutant and setting. In the file a test comes first, then what it kills: `ID`, or `ID @off`
    where another test kills it when the guard triggers are off."""
    found: dict[tuple[str, str], str] = {}
    for test, names in json.loads(FILE.read_text(encoding="utf-8")).items():
        for name in names:
            mutant, _, setting = name.partition(" @")
            for each in (setting,) if setting else ("on", "off"):
                found[mutant, each] = test
    return found


def still_open() -> set[str]:
    """The mutants for which no test was found."""
    return set(json.loads(OPEN.read_text(encoding="utf-8")))


def spared() -> dict[str, str]:
    """The mutants that change nothing anybody could see, each with its reason."""
    return dict(tomllib.loads(SPARED.read_text(encoding="utf-8")))


def remember(found: Iterable[Found]) -> None:
    """Write down who killed what and what is alive; keep the rest, as far as there is such a mutant."""
    found = list(found)
    settings = {mutant.id: mutant.settings for mutant in generate.mutants()}
    known = remembered()
    for one in found:
        for setting in one.mutant.settings:
            known.pop((one.mutant.id, setting), None)
        known |= {(one.mutant.id, setting): test for setting, test in one.killers.items() if not one.survived}
    kills: defaultdict[str, list[str]] = defaultdict(list)
    for (mutant, setting), test in sorted(known.items()):
        if setting not in settings.get(mutant, ()):
            continue
        if len(settings[mutant]) == 1 or known.get((mutant, "on")) == known.get((mutant, "off")):
            kills[test] += [mutant] if setting == settings[mutant][0] else []
        else:
            kills[test].append(f"{mutant} @{setting}")
    _write(FILE, {test: sorted(kills[test]) for test in sorted(kills)})

    alive = still_open() - {one.mutant.id for one in found} | {one.mutant.id for one in found if one.survived}
    _write(OPEN, sorted(alive & set(settings) - set(spared())))


def _write(file: Path, what: object) -> None:
    file.write_text(json.dumps(what, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
