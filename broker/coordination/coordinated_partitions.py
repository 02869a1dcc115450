"""The partitions of an internal topic that this broker leads, and their loading.

Mirrors the partition states of Kafka's `CoordinatorRuntime`. A partition is unknown, loading, or
active. While it is loading, requests get COORDINATOR_LOAD_IN_PROGRESS, so no request sees a state
older than the last committed one. Partitions are loaded one after the other, in turns.

A batch with a damaged header does not tell where the next one begins, but the next segment does. If
there is none, a new one is started, so that the next load can read what is appended from now on.
Kafka's coordinators end each load at the damaged batch, with what was read before.
"""

import gc
import logging
from collections import deque
from collections.abc import Callable, Iterator
from functools import partial
from typing import Generic, Protocol, TypeVar

from ottla.broker.coordination.ports import CoordinatorLog, Defer, WallClock, partition_for_key
from ottla.broker.runtime.clock import Clock
from ottla.broker.runtime.timer import DelayQueue
from ottla.protocol.errors import ErrorCode
from ottla.protocol.records.errors import RecordsError
from ottla.protocol.records.reader import iterate_entries
from ottla.protocol.steps import Turn
from ottla.storage.errors import StorageError

logger = logging.getLogger("ottla.coordinators")

# A load that failed is retried after this, and after twice as long each time that it fails again:
# descriptors come back within seconds, but a log that stays unreadable must not keep a core busy.
FIRST_RETRY_MS = 1_000
MAX_RETRY_MS = 60_000


class CoordinatedPartition(Protocol):
    """The state of one partition while this broker leads it."""

    leader_epoch: int

    @property
    def index(self) -> int: ...

    def replay_log(self, chunks: Iterator[memoryview]) -> Iterator[None]:
        """Replay the next part of the log; yield after each record or batch.

        All of the part has been replayed when the iteration ends.
        """
        ...

    @property
    def is_empty(self) -> bool: ...

    def describe(self) -> str:
        """Return a summary of the state for the log line when it was loaded or unloaded."""
        ...


P = TypeVar("P", bound=CoordinatedPartition)


class CoordinatedPartitions(Generic[P]):
    """The partitions of one internal topic that this broker leads, by index. Loop only."""

    def __init__(
        self,
        topic: str,
        partition_count: int,
        log: CoordinatorLog,
        timer: DelayQueue,
        clock: Clock,
        defer: Defer,
        create: Callable[[int, int], P],
        on_loaded: Callable[[P], None],
        on_unloaded: Callable[[P], None],
    ) -> None:
        """`create` returns an empty state for a partition index and leader epoch.

        `on_loaded` is called after a partition was loaded, `on_unloaded` before it is dropped.
        """
        self.topic = topic
        self.partition_count = partition_count
        self._log = log
        self._reader = DamagedLogReader(topic, log, clock.now_ms)
        self._timer = timer
        self._clock = clock
        self._defer = defer
        self._create = create
        self._active: dict[int, P] = {}
        self._loading: dict[int, P] = {}
        self._damaged: set[int] = set()  # loaded without the batches that cannot be read
        self._retry_delays_ms: dict[int, int] = {}  # the next one, of each load that failed
        self._epochs: dict[int, int] = {}
        self._queue: deque[P] = deque()
        self._current: tuple[P, Iterator[None], float] | None = None
        self._is_scheduled = False
        self._is_running = True
        self._on_loaded = on_loaded
        self._on_unloaded = on_unloaded

    # State.

    def partition_for(self, key: str) -> int:
        return partition_for_key(key, self.partition_count)

    def status_of(self, key: str) -> int:
        """NONE if the partition of `key` is active, else the error code for the response."""
        if not self._is_running:
            return ErrorCode.COORDINATOR_NOT_AVAILABLE
        index = self.partition_for(key)
        if index in self._active:
            return ErrorCode.NONE
        if index in self._loading:
            return ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
        return ErrorCode.NOT_COORDINATOR

    def home_of(self, key: str) -> P | None:
        """Return the active partition of `key`, None when it is not active (any more)."""
        return self._active.get(self.partition_for(key))

    def get_active(self, index: int) -> P | None:
        return self._active.get(index)

    def is_active(self, partition: P) -> bool:
        """Return whether this broker has led the partition ever since it was loaded."""
        return self._active.get(partition.index) is partition

    @property
    def active(self) -> list[P]:
        return list(self._active.values())

    @property
    def is_loading(self) -> bool:
        return bool(self._loading)

    @property
    def load_failures(self) -> int:
        """How many partitions that this broker leads could not be loaded, or not completely."""
        return len(self._damaged | self._retry_delays_ms.keys())

    @property
    def is_running(self) -> bool:
        return self._is_running

    # Leadership.

    def elect(self, index: int, leader_epoch: int) -> None:
        """This broker became leader in `leader_epoch`: loads the partition.

        A stale leader epoch is ignored.
        """
        known_epoch = self._epochs.get(index, -1)
        if leader_epoch < known_epoch or (
            leader_epoch == known_epoch and (index in self._active or index in self._loading)
        ):
            return
        self._epochs[index] = leader_epoch
        self._drop(index)
        self._load(index)

    def _load(self, index: int) -> None:
        partition = self._create(index, self._epochs[index])
        self._loading[index] = partition
        self._queue.append(partition)
        if not self._is_scheduled:
            self._is_scheduled = True
            self._defer(self._load_turn)

    def advance_epoch(self, index: int, leader_epoch: int) -> None:
        """This broker is still the leader, in a higher leader epoch: a replica has left the ISR.

        No other broker has written to its log, so what was loaded stays valid, and pending requests
        stay pending; a load that failed is retried at once. A stale leader epoch is ignored.
        """
        if leader_epoch <= self._epochs.get(index, -1):
            return
        partition = self._active.get(index)
        if partition is None and index not in self._retry_delays_ms:
            partition = self._loading.get(index)
        if partition is None:
            self.elect(index, leader_epoch)
            return
        self._epochs[index] = leader_epoch
        partition.leader_epoch = leader_epoch

    def resign(self, index: int, leader_epoch: int | None = None) -> None:
        """Another broker became leader in `leader_epoch` (None: the replica is deleted here).

        A stale leader epoch is ignored. After a deletion any leader epoch is new: those of a topic
        that is created again begin at 0.
        """
        if leader_epoch is None:
            self._epochs.pop(index, None)
        else:
            if leader_epoch < self._epochs.get(index, -1):
                return
            self._epochs[index] = leader_epoch
        self._drop(index)

    def _drop(self, index: int) -> None:
        self._damaged.discard(index)
        self._retry_delays_ms.pop(index, None)
        self._loading.pop(index, None)
        partition = self._active.pop(index, None)
        if partition is not None:
            level = logging.DEBUG if partition.is_empty else logging.INFO
            logger.log(
                level,
                "Unloaded %s-%d: %s",
                self.topic,
                index,
                partition.describe(),
                extra={"topic": self.topic, "partition": index},
            )
            self._on_unloaded(partition)

    def stop(self) -> None:
        """Unload all partitions; later requests get COORDINATOR_NOT_AVAILABLE."""
        self._is_running = False
        self._queue.clear()
        self._current = None
        self._loading.clear()
        self._damaged.clear()
        self._retry_delays_ms.clear()
        for index in list(self._active):
            self._drop(index)

    # Loading.

    def _load_turn(self) -> None:
        """Load until the turn is over; continue in a later iteration of the loop."""
        # Loading creates millions of objects, none of them garbage: the garbage collector would
        # scan them all again and again, for half of the time that loading takes.
        collects = gc.isenabled()
        gc.disable()
        try:
            turn = Turn()
            while self._has_work() and self._load_current(turn):
                pass
        finally:  # also after an error of what is called when a partition is loaded
            if collects:
                gc.enable()
            self._is_scheduled = self._has_work()
            if self._is_scheduled:
                self._defer(self._load_turn)

    def _has_work(self) -> bool:
        """Return whether there is a partition to load; start the next one in the queue."""
        if self._current is not None and self._is_wanted(self._current[0]):
            return True
        self._current = None
        while self._queue:
            partition = self._queue.popleft()
            if self._is_wanted(partition):  # else resigned, or elected again, since then
                self._current = (partition, self._replay(partition), self._clock.monotonic())
                return True
        return False

    def _replay(self, partition: P) -> Iterator[None]:
        """Replay the log up to the log end offset at the time when this ends.

        No client request appends to a partition that is loading, but transaction markers come at
        any time. Coordinators apply those that are committed while the partition is active; those
        of before have to be replayed from the log. So there is no yield between the last look at
        the log end offset and the end of the iteration, when the caller makes the partition active.
        """
        index = partition.index
        on_damage = partial(self._damaged.add, index)
        position = 0
        while True:
            end = self._log.log_end_offset(index)
            yield from partition.replay_log(self._reader.read_batches(index, position, on_damage))
            if self._log.log_end_offset(index) == end:
                return
            position = end

    def _is_wanted(self, partition: P) -> bool:
        return self._loading.get(partition.index) is partition

    def _load_current(self, turn: Turn) -> bool:
        """Load the current partition; return False if the turn is over before it is complete."""
        assert self._current is not None
        partition, steps, started_at = self._current
        try:
            for _ in steps:
                if turn.is_over:
                    return False
        except Exception as error:
            self._retry_later(partition, error)
        else:
            del self._loading[partition.index]
            self._retry_delays_ms.pop(partition.index, None)
            self._active[partition.index] = partition
            self._on_loaded(partition)
            logger.log(
                logging.DEBUG if partition.is_empty else logging.INFO,
                "Finished loading of %s-%d in %.3f s: %s",
                self.topic,
                partition.index,
                self._clock.monotonic() - started_at,
                partition.describe(),
                extra={"topic": self.topic, "partition": partition.index},
            )
        self._current = None
        return not turn.is_over

    def _retry_later(self, partition: P, error: Exception) -> None:
        """Load a partition again after a back-off; it stays in loading.

        The records replayed so far may be older than the committed state, so they are not used.
        Skipping damaged batches is not a failure. The usual reasons are too few file descriptors,
        and a failed log directory, for which the controller elects another leader.
        """
        index = partition.index
        delay_ms = self._retry_delays_ms.get(index, FIRST_RETRY_MS)
        self._retry_delays_ms[index] = min(2 * delay_ms, MAX_RETRY_MS)
        logger.error(
            "Failed to load %s-%d, retrying in %d ms; its clients get "
            "COORDINATOR_LOAD_IN_PROGRESS until then: %s",
            self.topic,
            index,
            delay_ms,
            error,
            exc_info=None if isinstance(error, StorageError) else error,
            extra={"topic": self.topic, "partition": index},
        )

        def retry() -> None:
            if self._is_wanted(partition):  # else resigned, elected again or stopped since then
                self._load(index)

        self._timer.schedule(delay_ms, retry)


class DamagedLogReader:
    """The batches of the partitions of one internal topic."""

    def __init__(self, topic: str, log: CoordinatorLog, now_ms: WallClock) -> None:
        self._topic = topic
        self._log = log
        self._now_ms = now_ms

    def read_batches(
        self, partition: int, from_offset: int, on_damage: Callable[[], None]
    ) -> Iterator[memoryview]:
        """Read as `CoordinatorLog.read_batches` does, but skip damaged batches.

        Log an error and call `on_damage` for each part that is skipped.
        """
        position = from_offset
        last: memoryview | None = None
        while True:
            try:
                for batch in self._log.read_batches(partition, position):
                    last = batch
                    yield batch
            except RecordsError as problem:
                if last is not None:
                    position = max(position, _next_offset(last))
                end = self._log.segment_end_offset(partition, position)
                logger.error(
                    "Error loading %s-%d: skipping offsets %d to %d, which cannot be read: %s",
                    self._topic,
                    partition,
                    position,
                    end - 1,
                    problem,
                    extra={"topic": self._topic, "partition": partition},
                )
                on_damage()
                if end >= self._log.log_end_offset(partition):
                    self._log.roll_segment(partition, self._now_ms())
                if end <= position or end >= self._log.log_end_offset(partition):
                    return
                position = end
            else:
                return


def _next_offset(batch: memoryview) -> int:
    """Return the offset after a batch that was read."""
    next_offset = 0
    for _, header in iterate_entries(batch):
        next_offset = header.next_offset
    return next_offset
