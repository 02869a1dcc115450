"""What the broker says: one line an event, in words, on standard error.

As text, or with `ottla.log.format=json` one JSON object a line for programs. The levels of loggers
change at run time (`ottla configs set logger`, Kafka's broker loggers). Plain logging: a library
for structured events would take longer to import than the rest of a start's settings.
"""

from __future__ import annotations

import logging
import sys
from time import monotonic
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from broker.config import BrokerConfig

TEXT = "text"

# ZooKeeper's client tries again several times a second and says the same thing each time.
_CHATTY = ("ottla.zookeeper.client", "kazoo")
_QUIET_SECONDS = 30.0
# Its messages carry addresses and errors: there are few of them, this is only a bound.
_REMEMBERED = 64


class JsonFormatter(logging.Formatter):
    """{"time", "level", "logger", "event"} and, after a failure of ours, "error"."""

    def format(self, record: logging.LogRecord) -> str:
        import json
        from datetime import UTC, datetime

        moment = datetime.fromtimestamp(record.created, UTC)
        line = {
            "time": moment.isoformat(timespec="milliseconds").replace("+00:00", "Z"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "event": record.getMessage(),
        }
        if record.exc_info:
            line["error"] = self.formatException(record.exc_info)
        return json.dumps(line, ensure_ascii=False)


class RepeatFilter(logging.Filter):
    """Lets the same message through once in a while only."""

    def __init__(self) -> None:
        super().__init__()
        self._last: dict[str, float] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        text, now = record.getMessage(), monotonic()
        last = self._last.get(text)
        if last is not None and now - last < _QUIET_SECONDS:
            return False
        if len(self._last) >= _REMEMBERED:
            self._last.clear()
        self._last[text] = now
        return True


def configure_logging(config: BrokerConfig) -> None:
    """Sets up the root logger of a process that runs one broker."""
    handler = logging.StreamHandler(sys.stderr)
    if config.ottla_log_format == TEXT:
        handler.setFormatter(
            logging.Formatter("%(asctime)s %(levelname)-7s %(name)s  %(message)s", "%H:%M:%S")
        )
    else:
        handler.setFormatter(JsonFormatter())
    root = logging.getLogger()
    root.addHandler(handler)
    root.setLevel(config.ottla_log_level)
    for name in _CHATTY:
        logger = logging.getLogger(name)
        logger.addFilter(RepeatFilter())
        if config.ottla_log_level != "DEBUG":
            logger.setLevel(logging.WARNING)
