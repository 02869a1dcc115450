"""The broker's own log lines of the last while, for the console's page of events.

Log lines name no secrets (settings are masked before they are logged), and the controller logs
in them what it decided. Debug lines are left out.
"""

from __future__ import annotations

import json
import logging
import re
from collections import deque
from typing import Any

MAX_LINES = 1000
MAX_LINE_CHARACTERS = 500
MAX_KIND_CHARACTERS = 60
# How many are shown, newest first: 100 kB at the most.
MAX_ROWS = 200
# For the console of another broker: a string of the protocol has at most 32,767 bytes.
MAX_TEXT_BYTES = 32_000

_LOGGER = "ottla"
_DIRECTIVE = re.compile(r"%[-#0 +]*[\d.*]*[a-zA-Z]")


class EventLog(logging.Handler):
    """Keeps the newest lines of every logger of the broker."""

    def __init__(self) -> None:
        super().__init__(level=logging.INFO)
        self._lines: deque[dict[str, Any]] = deque(maxlen=MAX_LINES)

    def attach(self) -> None:
        logging.getLogger(_LOGGER).addHandler(self)

    def detach(self) -> None:
        logging.getLogger(_LOGGER).removeHandler(self)
        self.close()

    def emit(self, record: logging.LogRecord) -> None:
        """Called by `logging`, from any thread; a deque's append is atomic."""
        try:
            text = record.getMessage()
        except Exception:  # a wrong format string is not the console's business
            text = str(record.msg)
        if record.exc_info and record.exc_info[1] is not None:
            text = f"{text}: {record.exc_info[1]}"
        self._lines.append(
            {
                "time_ms": int(record.created * 1000),
                "level": record.levelname,
                "from": record.name.removeprefix(f"{_LOGGER}."),
                "text": _cut(text),
                "kind": _kind(record),
            }
        )

    def lines(self) -> list[dict[str, Any]]:
        """The newest lines, the newest first."""
        return list(reversed(self._lines))[:MAX_ROWS]

    def as_json(self) -> str:
        """The newest of them that fit into MAX_TEXT_BYTES, for the console of another broker, as a
        JSON list in ASCII."""
        rows: list[str] = []
        size = 2
        for line in self.lines():
            row = json.dumps(line, separators=(",", ":"))
            size += len(row) + 1
            if size > MAX_TEXT_BYTES:
                break
            rows.append(row)
        return f"[{','.join(rows)}]"


def _cut(text: str) -> str:
    return text if len(text) <= MAX_LINE_CHARACTERS else f"{text[: MAX_LINE_CHARACTERS - 1]}…"


def _kind(record: logging.LogRecord) -> str:
    """The text without what it names; empty if all of it is given, as with "%s"."""
    text = str(record.msg)
    words = _DIRECTIVE.sub("", text)
    if not record.args or not any(letter.isalpha() for letter in words):
        return ""
    return text[:MAX_KIND_CHARACTERS]
