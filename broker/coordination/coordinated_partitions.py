"""Which partitions of a coordinator's topic this broker leads, and loading them.

A partition is unknown, loading, or active. While it loads, nobody is answered from it, so nobody
is ever given older state than the last that was committed. Loading runs in short slices between
the other work of the loop, one partition after the other.
"""

import gc
import logging
from collections import deque
from collections.abc import Callable, Iterator
from typing import Generic, Protocol, TypeVar

from ottla.broker.coordination.ports import CoordinatorLog, Defer, partition_for_key
from ottla.broker.runtime.clock import Clock
from ottla.protocol.errors import ErrorCode

logger = logging.getLogger("ottla.coordinators")

SLICE_SECONDS = 0.01  # how long loading may keep the loop from its other work


class CoordinatedPartition(Protocol):
    """The state of one partition, for one term of leadership."""

    @property
    def index(self) -> int: ...

    @property
    def leader_epoch(self) -> int: ...

    def replay_log(self, chunks: Iterator[memoryview]) -> Iterator[None]:
        """Take in the whole log; yields often, so that the caller can pause."""
        ...

    @property
    def is_empty(self) -> bool: ...

    def describe(self) -> str:
        """What is in it, in words, for the log line when it was loaded or unloaded."""
        ...


P = TypeVar("P", bound=CoordinatedPartition)


class CoordinatedPartitions(Generic[P]):
    """The partitions of one topic, by index, as far as this broker leads them. Loop only."""

    def __init__(
        self,
        topic: str,
        partition_count: int,
        log: CoordinatorLog,
        clock: Clock,
        defer: Defer,
        create: Callable[[int, int], P],
    ) -> None:
        """`create` makes the state of a partition from its index and leader epoch."""
        self.topic = topic
        self.partition_count = partition_count
        self._log = log
        self._clock = clock
        self._defer = defer
        self._create = create
        self._active: dict[int, P] = {}
        self._loading: dict[int, P] = {}
        self._epochs: dict[int, int] = {}
        self._queue: deque[P] = deque()
        self._current: tuple[P, Iterator[None], float] | None = None
        self._is_scheduled = False
        self._is_running = True
        # Set by the coordinator: what to do with a partition that was loaded or has to go.
        self.on_loaded: Callable[[P], None] = lambda partition: None
        self.on_unloaded: Callable[[P], None] = lambda partition: None

    # Questions.

    def partition_for(self, key: str) -> int:
        return partition_for_key(key, self.partition_count)

    def status_of(self, key: str) -> int:
        """The error code to answer with when this key is not served here now, else 0."""
        if not self._is_running:
            return ErrorCode.COORDINATOR_NOT_AVAILABLE
        index = self.partition_for(key)
        if index in self._active:
            return ErrorCode.NONE
        if index in self._loading:
            return ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
        return ErrorCode.NOT_COORDINATOR

    def home_of(self, key: str) -> P | None:
        """The active partition of a key, None when it is not here (any more)."""
        return self._active.get(self.partition_for(key))

    def get_active(self, index: int) -> P | None:
        return self._active.get(index)

    def is_active(self, partition: P) -> bool:
        """Whether this term of leadership still lasts."""
        return self._active.get(partition.index) is partition

    @property
    def active(self) -> list[P]:
        return list(self._active.values())

    @property
    def is_loading(self) -> bool:
        return bool(self._loading)

    @property
    def is_running(self) -> bool:
        return self._is_running

    # Leadership.

    def elect(self, index: int, leader_epoch: int) -> None:
        """This broker leads the partition from `leader_epoch` on: load it."""
        known_epoch = self._epochs.get(index, -1)
        if leader_epoch < known_epoch or (
            leader_epoch == known_epoch and (index in self._active or index in self._loading)
        ):
            return
        self._epochs[index] = leader_epoch
        self._drop(index)
        partition = self._create(index, leader_epoch)
        self._loading[index] = partition
        self._queue.append(partition)
        if not self._is_scheduled:
            self._is_scheduled = True
            self._defer(self._load_slice)

    def resign(self, index: int, leader_epoch: int | None = None) -> None:
        """Another broker leads from `leader_epoch` on (None: the partition goes away here)."""
        if leader_epoch is not None:
            if leader_epoch < self._epochs.get(index, -1):
                return
            self._epochs[index] = leader_epoch
        self._drop(index)

    def _drop(self, index: int) -> None:
        self._loading.pop(index, None)
        partition = self._active.pop(index, None)
        if partition is not None:
            self.on_unloaded(partition)
            level = logging.DEBUG if partition.is_empty else logging.INFO
            logger.log(
                level,
                "%s-%d unloaded: %s",
                self.topic,
                index,
                partition.describe(),
                extra={"topic": self.topic, "partition": index},
            )

    def stop(self) -> None:
        """The broker goes down: refuse everything, forget everything."""
        self._is_running = False
        self._queue.clear()
        self._current = None
        self._loading.clear()
        for index in list(self._active):
            self._drop(index)

    # Loading.

    def _load_slice(self) -> None:
        """Load for a moment, as many partitions as fit; then let others have their turn."""
        # Loading makes objects by the million, and none of them is garbage: the collector would
        # look through them all again and again, for half of the time that loading takes.
        collects = gc.isenabled()
        gc.disable()
        try:
            deadline = self._clock.monotonic() + SLICE_SECONDS
            while self._has_work() and self._clock.monotonic() < deadline:
                self._go_on(deadline)
        finally:
            if collects:
                gc.enable()
        self._is_scheduled = self._has_work()
        if self._is_scheduled:
            self._defer(self._load_slice)

    def _has_work(self) -> bool:
        """Whether something is left to load; begins with the next partition in line."""
        if self._current is not None and self._is_wanted(self._current[0]):
            return True
        self._current = None
        while self._queue:
            partition = self._queue.popleft()
            if self._is_wanted(partition):  # else resigned, or elected anew, before its turn
                self._current = (partition, self._replay(partition), self._clock.monotonic())
                return True
        return False

    def _replay(self, partition: P) -> Iterator[None]:
        yield from partition.replay_log(self._log.read_batches(partition.index))

    def _is_wanted(self, partition: P) -> bool:
        return self._loading.get(partition.index) is partition

    def _go_on(self, deadline: float) -> None:
        """Go on with the present partition until it is loaded or time is up."""
        assert self._current is not None
        partition, steps, started_at = self._current
        try:
            if not all(self._clock.monotonic() < deadline for _ in steps):
                return
        except Exception:
            # Serving what was read so far could serve older state than was committed. The
            # partition stays in loading; its next election tries again.
            logger.exception(
                "%s-%d cannot be loaded",
                self.topic,
                partition.index,
                extra={"topic": self.topic, "partition": partition.index},
            )
        else:
            del self._loading[partition.index]
            self._active[partition.index] = partition
            self.on_loaded(partition)
            logger.log(
                logging.DEBUG if partition.is_empty else logging.INFO,
                "%s-%d loaded in %.3f s: %s",
                self.topic,
                partition.index,
                self._clock.monotonic() - started_at,
                partition.describe(),
                extra={"topic": self.topic, "partition": partition.index},
            )
        self._current = None
