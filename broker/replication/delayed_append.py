"""A Produce request that waits for something in each of its partitions: a flush, or replication."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Hashable
from typing import Any, Generic, TypeVar

from ottla.broker.purgatory.operation import DelayedOperation
from ottla.protocol.errors import ErrorCode

Entry = TypeVar("Entry", bound="tuple[Any, ...]")


class DelayedAppend(DelayedOperation, Generic[Entry]):
    """Completes when no partition waits any more.

    The entries are tuples that begin with a partition and end with its row in the response. On
    timeout, those that still wait get REQUEST_TIMED_OUT. Every change is reported with the key of
    its partition: one fetch of a follower may advance hundreds of partitions, one by one.
    """

    __slots__ = ("_callback", "_waiting")

    def __init__(self, delay_ms: int, waiting: list[Entry], callback: Callable[[], None]) -> None:
        """`waiting` has one entry or more."""
        super().__init__(delay_ms)
        # By partition; the usual request has one.
        self._waiting: dict[Hashable, list[Entry]] = {waiting[0][0].key: waiting[:1]}
        for entry in waiting[1:]:
            self._waiting.setdefault(entry[0].key, []).append(entry)
        self._callback = callback

    @abstractmethod
    def _left(self, waiting: list[Entry]) -> list[Entry]:
        """The entries that still wait; sets the errors of the others."""

    def try_complete(self) -> bool:
        for key in tuple(self._waiting):
            self._check(key)
        return not self._waiting and self.force_complete()

    def try_complete_for(self, key: Hashable) -> bool:
        if key in self._waiting:
            self._check(key)
        return not self._waiting and self.force_complete()

    def _check(self, key: Hashable) -> None:
        left = self._left(self._waiting[key])
        if left:
            self._waiting[key] = left
        else:
            del self._waiting[key]

    def on_complete(self) -> None:
        for waiting in self._waiting.values():
            for entry in waiting:
                entry[-1].error_code = ErrorCode.REQUEST_TIMED_OUT
        self._callback()
