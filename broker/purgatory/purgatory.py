"""Watches delayed operations by key, with a timer for each operation.

Mirrors Kafka's `DelayedOperationPurgatory`. An operation is watched under every key that may
complete it: a delayed fetch of three partitions under three keys. Code that changes the state of a
key calls `check_and_complete(key)`.

An operation that is completed through one key, or expires, stays in the watch lists of its other
keys. Completed entries are purged when their list is checked; when there are too many of them, all
lists are purged. The threshold grows with the number of delayed entries: a purge has a constant
amortized cost per operation, and completed entries never take more memory than delayed ones (or
than `purge_interval` entries).
"""

import logging
from collections.abc import Hashable, Iterable, Iterator
from typing import Generic, TypeVar

from ottla.broker.purgatory.operation import DelayedOperation
from ottla.broker.runtime.timer import DelayQueue
from ottla.protocol.steps import Turn

logger = logging.getLogger("ottla.purgatory")

Operation = TypeVar("Operation", bound=DelayedOperation)


class Purgatory(Generic[Operation]):
    """Delayed operations of one kind. Loop thread only; nothing in here awaits."""

    def __init__(self, name: str, timer: DelayQueue, *, purge_interval: int = 1000) -> None:
        """`purge_interval`: how many completed entries are allowed before all lists are purged
        (Kafka's `*.purgatory.purge.interval.requests`)."""
        self.name = name
        self.expired_total = 0
        self._timer = timer
        self._purge_interval = purge_interval
        #: The operations that are watched, by key. Only the purgatory changes it.
        self.watchers: dict[Hashable, list[Operation]] = {}
        # Keys with a check in several turns of the loop, and whether to check them again after it.
        self._unfinished: dict[Hashable, bool] = {}
        self._is_purging = False
        self._delayed = 0
        self._entries = 0  # in all lists, completed ones included
        self._delayed_entries = 0

    @property
    def delayed(self) -> int:
        """How many operations are delayed (Kafka's NumDelayedOperations)."""
        return self._delayed

    @property
    def watched(self) -> int:
        """The entries of all watch lists, completed ones included (Kafka's PurgatorySize)."""
        return self._entries

    @property
    def watched_keys(self) -> int:
        """How many keys have a watch list."""
        return len(self.watchers)

    def try_complete_else_watch(self, operation: Operation, keys: Iterable[Hashable]) -> bool:
        """Completes the operation if its condition is met, else watches it under all `keys`.

        Returns whether it is completed. The delay starts when it is watched. One check is enough:
        nothing awaits between check and watch, so no change can be missed.
        """
        if operation.is_completed or operation.try_complete():
            return True
        watchers = self.watchers
        count = 0
        for key in keys:
            watching = watchers.get(key)
            if watching is None:
                watchers[key] = [operation]
            else:
                watching.append(operation)
            count += 1
        self._entries += count
        self._delayed_entries += count
        self._delayed += 1
        operation._watched_keys = count
        operation._purgatory = self
        operation._timer_task = self._timer.schedule(operation.delay_ms, operation.expire)
        return False

    def check_and_complete(self, key: Hashable) -> int:
        """Check the operations watched under `key`. Return how many were completed.

        The completion of an operation may call back into the purgatory, also for the same key. An
        operation whose check raises an exception is logged and stays until it expires: the caller
        handles another request and cannot handle the error.

        Those that do not fit into a turn are checked in later iterations of the loop. When the key
        is checked again meanwhile, all are checked once more afterwards.
        """
        watching = self.watchers.get(key)
        if watching is None:
            return 0
        if key in self._unfinished:
            self._unfinished[key] = True
            return 0
        return self._check(key, iter(tuple(watching)))

    def _check(self, key: Hashable, operations: Iterator[Operation]) -> int:
        """Check the operations of one turn, and schedule the check of the others."""
        completed, turn = 0, Turn()
        for operation in operations:
            if operation._completed:
                continue
            try:
                if operation.try_complete_for(key):
                    completed += 1
            except Exception:
                logger.exception("Purgatory %s: check of %r failed", self.name, operation)
            if turn.is_over:
                self._check_later(key, operations)
                return completed
        watching = self.watchers.get(key)
        if watching is not None:
            self._purge_completed(key, watching)
        return completed

    def _check_later(self, key: Hashable, operations: Iterator[Operation]) -> None:
        if key in self._unfinished:
            self._unfinished[key] = True  # a check in a callback was interrupted before this one
        else:
            self._unfinished[key] = False
            self._timer.schedule(0, lambda: self._check_rest(key, operations))

    def _check_rest(self, key: Hashable, operations: Iterator[Operation]) -> None:
        changed = self._unfinished.pop(key)
        self._check(key, operations)
        if key in self._unfinished:  # interrupted again
            self._unfinished[key] |= changed
        elif changed:
            self.check_and_complete(key)

    def leave(self, operation: DelayedOperation) -> None:
        """The operation is completed. Only `DelayedOperation.force_complete` calls this."""
        timer_task, operation._timer_task = operation._timer_task, None
        if timer_task is not None:
            timer_task.cancel()
        self._delayed -= 1
        self._delayed_entries -= operation._watched_keys
        completed = self._entries - self._delayed_entries
        if (
            completed > self._purge_interval
            and completed > self._delayed_entries
            and not self._is_purging
        ):
            self._is_purging = True
            self._purge(iter(list(self.watchers)))

    def _purge(self, keys: Iterator[Hashable]) -> None:
        """Purge the lists of one turn, and schedule the others."""
        turn = Turn()
        for key in keys:
            watching = self.watchers.get(key)
            if watching is not None:
                self._purge_completed(key, watching)
            if turn.is_over:
                self._timer.schedule(0, lambda: self._purge(keys))
                return
        self._is_purging = False

    def _purge_completed(self, key: Hashable, watching: list[Operation]) -> None:
        if len(watching) == 1 and watching[0]._completed:  # as usual
            self._entries -= 1
            del self.watchers[key]
            return
        delayed = [operation for operation in watching if not operation._completed]
        self._entries -= len(watching) - len(delayed)
        if delayed:
            watching[:] = delayed
        else:
            del self.watchers[key]
