"""Closing many logs. Most of the time goes into syncing, which disks do faster in parallel."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from ottla.storage.errors import StorageError

if TYPE_CHECKING:
    from ottla.storage.files.log_directory import LogDirectory
    from ottla.storage.log.flush import Flush
    from ottla.storage.log.log import Log

logger = logging.getLogger("ottla.storage")

# Runs all of the functions, possibly in worker threads, and returns when they are done.
RunAll = Callable[[Sequence[Callable[[], None]]], object]

# Each log keeps its files open while it is synced.
_LOGS_AT_ONCE = 64


def close_logs(logs: Sequence[Log], run_all: RunAll) -> set[LogDirectory]:
    """Closes all logs. A log that cannot be written is logged and does not stop the others.

    Returns the log directories of those that could not be closed: the next start recovers them.
    """
    unclean: set[LogDirectory] = set()
    for start in range(0, len(logs), _LOGS_AT_ONCE):
        begun: list[tuple[Log, Flush | None]] = []
        for log in logs[start : start + _LOGS_AT_ONCE]:
            try:
                begun.append((log, log.begin_close()))
            except StorageError as error:
                _log_failure(log, error)
                unclean.add(log.log_directory)
        run_all([flush.run for _, flush in begun if flush is not None])
        for log, flush in begun:
            try:
                log.finish_close(flush)
            except StorageError as error:
                _log_failure(log, error)
                unclean.add(log.log_directory)
    return unclean


def _log_failure(log: Log, error: StorageError) -> None:
    logger.error("%s: Could not close the log: %s", log.name, error)
