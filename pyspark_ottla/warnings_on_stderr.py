"""Warnings of the connector as lines of Spark's own form, where logging is not configured.

Spark's Python processes have no log handler by default. Python then prints the bare text of a
warning, which does not look like one among Spark's lines.
"""

from __future__ import annotations

import logging


class StderrHandler(logging.StreamHandler):  # type: ignore[type-arg]
    """Writes to the standard error unless the root logger has handlers, which get the record."""

    def __init__(self) -> None:
        super().__init__()
        self.setLevel(logging.WARNING)
        self.setFormatter(
            logging.Formatter(
                "%(asctime)s %(levelname)s %(name)s: %(message)s", "%y/%m/%d %H:%M:%S"
            )
        )

    def emit(self, record: logging.LogRecord) -> None:
        if not logging.getLogger().handlers:
            super().emit(record)


def spark_logger() -> logging.Logger:
    """The logger of the connector, `ottla.spark`."""
    logger = logging.getLogger("ottla.spark")
    if not any(isinstance(handler, StderrHandler) for handler in logger.handlers):
        logger.addHandler(StderrHandler())
    return logger


def is_handled(logger: logging.Logger) -> bool:
    """As `hasHandlers`, without the handler of this module."""
    current: logging.Logger | None = logger
    while current is not None:
        if any(not isinstance(handler, StderrHandler) for handler in current.handlers):
            return True
        current = current.parent if current.propagate else None
    return False
