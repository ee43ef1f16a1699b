"""Log records as lines: the fact's name, then its fields. For people, and as JSON for programs."""

from __future__ import annotations

import json
import logging
from datetime import UTC, datetime
from typing import Any

# The names of a record's own fields; whatever else it has was given as `extra`.
_OWN = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}


def fields(record: logging.LogRecord) -> dict[str, Any]:
    """What a record says beside its message."""
    return {name: value for name, value in vars(record).items() if name not in _OWN}


class JsonLines(logging.Formatter):
    """One JSON object a line: at, level, logger, event, then the fields; `exception` has a traceback."""

    def format(self, record: logging.LogRecord) -> str:
        """The line."""
        line = {
            "at": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "event": record.getMessage(),
            **fields(record),
        }
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return json.dumps(line, default=str)


class TextLines(logging.Formatter):
    """The same for people: `level: event: note name=value`. A traceback is shown from debug on alone."""

    def __init__(self, *, tracebacks: bool = False) -> None:
        super().__init__()
        self._tracebacks = tracebacks

    def format(self, record: logging.LogRecord) -> str:
        """The line."""
        said = fields(record)
        note = said.pop("note", None)
        pairs = [f"{name}={_value(value)}" for name, value in said.items() if value is not None]
        if record.exc_info and record.exc_info[1] is not None and "error" not in said:
            pairs.append(f"error={_value(record.exc_info[1])}")
        event = record.getMessage() + (f": {note}" if note else "")
        line = " ".join([f"{record.levelname.lower()}:", event, *pairs])
        if self._tracebacks and record.exc_info:
            line += "\n" + self.formatException(record.exc_info)
        return line


def _value(value: object) -> str:
    # Seconds to the millisecond; text that others wrote mustn't begin a line of its own.
    text = f"{value:.3f}" if isinstance(value, float) else str(value)
    return json.dumps(text, ensure_ascii=False) if not text or " " in text or not text.isprintable() else text
