"""Facts as they happen: each has one name and its fields, and goes to the log and to whoever asked to be told.

    import ledger.observe
    ledger.observe.add(lambda name, fields: print(name, fields))

docs/metrics.md lists the facts.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

Observer: TypeAlias = Callable[[str, Mapping[str, Any]], None]
"""Is told a fact's name and its fields. Called from any thread, in the middle of the work: it must be quick."""

_observers: tuple[Observer, ...] = ()


def add(observer: Observer) -> None:
    """Tell this one of every fact from now on."""
    global _observers  # noqa: PLW0603 (replaced whole, so that telling needs no lock)
    if observer not in _observers:
        _observers = (*_observers, observer)


def remove(observer: Observer) -> None:
    """Tell it no more."""
    global _observers  # noqa: PLW0603
    _observers = tuple(one for one in _observers if one != observer)


def is_heard(log: logging.Logger, level: int) -> bool:
    """Whether anybody hears a fact of this level: what happens to every refund isn't put into words for nobody."""
    return bool(_observers) or log.isEnabledFor(level)


def fact(
    log: logging.Logger, level: int, name: str, *, exc_info: BaseException | bool | None = None, **fields: Any
) -> None:
    """Log a fact, its fields as `extra`, and tell the observers. What an observer raises is logged, and that's all."""
    if log.isEnabledFor(level):
        log.log(level, name, exc_info=exc_info, extra=fields, stacklevel=2)
    for observer in _observers:
        try:
            observer(name, fields)
        except Exception:  # whoever watches mustn't disturb the work
            log.exception("observer_failed", extra={"fact": name})
