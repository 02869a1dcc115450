"""Where delayed operations wait: watch lists by key, and a timer for each operation.

Mirrors Kafka's `DelayedOperationPurgatory`. An operation is watched under every key that may
complete it (a delayed fetch of three partitions: three keys). Whoever changes the state behind a
key calls `check_and_complete(key)`.

An operation that completes through one key, or by time, stays as a dead entry in the lists of its
other keys. Dead entries are dropped when their list is checked; when there are too many, all lists
are purged. The threshold grows with the number of living entries, so that a purge costs a constant
time per completed operation and dead entries never take more room than living ones (or than
`purge_interval` of them).
"""

import logging
from collections.abc import Hashable, Iterable
from typing import Generic, TypeVar

from ottla.broker.purgatory.operation import DelayedOperation
from ottla.broker.runtime.timer import DelayQueue

logger = logging.getLogger("ottla.purgatory")

# A check of a fetch, and its answer, takes up to 100 us: so many do not hold up the loop for long.
MAX_CHECKS_AT_ONCE = 256

Operation = TypeVar("Operation", bound=DelayedOperation)


class Purgatory(Generic[Operation]):
    """Waiting operations of one kind. Loop thread only; nothing in here awaits."""

    def __init__(self, name: str, timer: DelayQueue, *, purge_interval: int = 1000) -> None:
        """`purge_interval`: how many dead entries to allow at least before a purge of all lists
        (Kafka's `*.purgatory.purge.interval.requests`)."""
        self.name = name
        self.expired_total = 0
        self._timer = timer
        self._purge_interval = purge_interval
        self._watchers: dict[Hashable, list[Operation]] = {}
        # Keys of which very many operations are being checked, and whether once more after that.
        self._unfinished: dict[Hashable, bool] = {}
        self._delayed = 0
        self._entries = 0  # in all lists, living and dead
        self._living_entries = 0

    @property
    def delayed(self) -> int:
        """How many operations wait (Kafka's NumDelayedOperations)."""
        return self._delayed

    @property
    def watched(self) -> int:
        """How many entries the watch lists hold, dead ones included (Kafka's PurgatorySize)."""
        return self._entries

    @property
    def watched_keys(self) -> int:
        """How many keys have a watch list."""
        return len(self._watchers)

    def try_complete_else_watch(self, operation: Operation, keys: Iterable[Hashable]) -> bool:
        """Complete the operation if it can be, else let it wait under all `keys`.

        Returns whether it is complete now. From the moment it waits, its delay runs. One check is
        enough: without an await in between, no change can slip between check and watch.
        """
        if operation.is_completed or operation.try_complete():
            return True
        watchers = self._watchers
        count = 0
        for key in keys:
            watching = watchers.get(key)
            if watching is None:
                watchers[key] = [operation]
            else:
                watching.append(operation)
            count += 1
        self._entries += count
        self._living_entries += count
        self._delayed += 1
        operation._watched_keys = count
        operation._purgatory = self
        operation._timer_task = self._timer.schedule(operation.delay_ms, operation.expire)
        return False

    def check_and_complete(self, key: Hashable) -> int:
        """Let every operation under `key` check its condition. Returns how many completed.

        What an operation sets off may call back into the purgatory, also for the same key. An
        operation whose check fails with an exception is logged and stays until its time is up:
        the caller serves somebody else and cannot help it.

        Of very many operations only the first are checked at once, the others in later turns of
        the loop. The key may be checked again meanwhile: then they are all checked once more.
        """
        watching = self._watchers.get(key)
        if watching is None:
            return 0
        if len(watching) <= MAX_CHECKS_AT_ONCE and key not in self._unfinished:
            completed = self._check(tuple(watching))
            if self._watchers.get(key) is watching:
                self._purge_completed(key, watching)
            return completed
        if key in self._unfinished:
            self._unfinished[key] = True
            return 0
        self._unfinished[key] = False
        return self._check_some(key, tuple(watching), 0)

    def _check(self, operations: Iterable[Operation]) -> int:
        completed = 0
        for operation in operations:
            if operation._completed:
                continue
            try:
                if operation.try_complete():
                    completed += 1
            except Exception:
                logger.exception("purgatory %s: a check failed: %r", self.name, operation)
        return completed

    def _check_some(self, key: Hashable, operations: tuple[Operation, ...], start: int) -> int:
        """Check the next of very many operations, and see to it that the others follow."""
        end = start + MAX_CHECKS_AT_ONCE
        completed = self._check(operations[start:end])
        if end < len(operations):
            self._timer.schedule(0, lambda: self._check_some(key, operations, end))
            return completed
        watching = self._watchers.get(key)
        if watching is not None:
            self._purge_completed(key, watching)
        if self._unfinished.pop(key):
            self.check_and_complete(key)
        return completed

    def leave(self, operation: DelayedOperation) -> None:
        """The operation is complete. Only `DelayedOperation.force_complete` calls this."""
        timer_task, operation._timer_task = operation._timer_task, None
        if timer_task is not None:
            timer_task.cancel()
        self._delayed -= 1
        self._living_entries -= operation._watched_keys
        dead = self._entries - self._living_entries
        if dead > self._purge_interval and dead > self._living_entries:
            for key, watching in list(self._watchers.items()):
                self._purge_completed(key, watching)

    def _purge_completed(self, key: Hashable, watching: list[Operation]) -> None:
        living = [operation for operation in watching if not operation._completed]
        self._entries -= len(watching) - len(living)
        if living:
            watching[:] = living
        else:
            del self._watchers[key]
