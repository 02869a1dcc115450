"""Fetching a range of offsets of one partition, with every retry under a deadline.

`PartitionFetch.responses` fetches from the start to the end of the range and yields what the
brokers sent. Gaps in the offsets (compaction, transaction markers) are not reported; records that
were deleted are reported as the option failOnDataLoss is set. `Prefetcher` fetches in a thread of
its own, so that the next response travels while the last one is decoded.
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Iterator
from typing import NamedTuple, Protocol, TypeVar

from ottla.protocol.client.errors import ClientError
from ottla.protocol.errors import RETRIABLE, ErrorCode, KafkaError, error_name
from ottla.protocol.message import Records
from ottla.protocol.messages.fetch import PartitionData
from ottla.protocol.records.reader import iterate_entries
from ottla.protocol.topics import TopicPartition
from pyspark_ottla import errors
from pyspark_ottla.errors import ConnectorError
from pyspark_ottla.offsets import EARLIEST, LATEST, OffsetRange, Offsets, describe
from pyspark_ottla.read.planning import LossReport

T = TypeVar("T")

PAUSE_FIRST_SECONDS = 0.05
PAUSE_MAX_SECONDS = 1.0
# A planned partition that brokers do not know was deleted, or the broker has just started and has
# no metadata of it yet; it gets them within this time.
UNKNOWN_PARTITION_TIMEOUT_SECONDS = 10.0
# The size of the first fetch of a range; later ones are sized by what the rest should take.
FIRST_FETCH_BYTES = 1 << 20
# Responses without records below the high watermark until that is taken as a gap.
EMPTY_RESPONSES_MAX = 2
# How long closing waits for a thread that is in the middle of a request.
JOIN_SECONDS = 2.0

_FORBIDDEN = (ErrorCode.TOPIC_AUTHORIZATION_FAILED, ErrorCode.CLUSTER_AUTHORIZATION_FAILED)


class FetchedData(NamedTuple):
    """What one fetch brought: bytes of whole batches, and (offset, producer) of aborted ones.

    The first batch may begin before `start`, the requested offset: records before it were
    read already, or are deleted.
    """

    start: int
    records: memoryview
    aborted: list[tuple[int, int]]


class Brokers(Protocol):
    """What a fetch needs; the calls raise ClientError and KafkaError."""

    def fetch(
        self, partition: TopicPartition, offset: int, bytes_max: int, timeout_ms: int
    ) -> tuple[PartitionData, int]:
        """One fetch from the leader as far as it is known, and the throttle time in ms."""

    def forget_leader(self, partition: TopicPartition) -> None:
        """Makes the next fetch look the leader up again."""

    def offsets_at(self, wanted: dict[TopicPartition, int]) -> Offsets:
        """As `planning.Cluster.offsets_at`."""


def end_of_last_batch(records: memoryview) -> int | None:
    """The offset after the last whole batch; None if there is no whole one."""
    following: int | None = None
    for _, header in iterate_entries(records):
        following = header.next_offset
    return following


def _as_buffer(records: Records) -> bytes | bytearray | memoryview:
    assert isinstance(records, (bytes, bytearray, memoryview))  # as in every decoded response
    return records


class PartitionFetch:
    """One walk over one range; not thread safe, used once."""

    def __init__(
        self,
        brokers: Brokers,
        wanted: OffsetRange,
        *,
        report: LossReport,
        fetch_bytes: int,
        read_committed: bool,
        timeout_ms: int,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._brokers = brokers
        self._wanted = wanted
        self._report = report
        self._fetch_bytes = fetch_bytes
        self._read_committed = read_committed
        self._timeout_seconds = timeout_ms / 1000
        self._clock = clock
        self._sleep = sleep
        self._bytes_per_offset = 0.0
        self._made_progress()

    def responses(self) -> Iterator[FetchedData]:
        """Responses until the range is read; raises ConnectorError when it cannot be."""
        tp, position, end = self._wanted
        while position < end:
            bytes_max = self._next_size(end - position)
            timeout_ms = int((self._timeout_seconds - self._idle_seconds()) * 1000)
            try:
                data, throttle_ms = self._brokers.fetch(tp, position, bytes_max, timeout_ms)
                self._check(data.error_code)
            except (ClientError, KafkaError) as error:
                position = self._after_error(error, position)
                continue
            records = memoryview(b"" if data.records is None else _as_buffer(data.records))
            following = end_of_last_batch(records)
            if following is None:
                position = self._after_nothing(data, position, throttle_ms, len(records))
                continue
            self._made_progress()
            self._bytes_per_offset = len(records) / max(1, following - position)
            aborted = [
                (row.first_offset, row.producer_id) for row in data.aborted_transactions or []
            ]
            response = FetchedData(position, records, aborted)
            # A batch may begin before the requested offset, but not end before it.
            position = max(position, following)
            yield response

    def _made_progress(self) -> None:
        self._last_progress = self._clock()
        self._pause_seconds = PAUSE_FIRST_SECONDS
        self._empty_responses = 0

    def _next_size(self, offsets_left: int) -> int:
        """No more than the rest of the range should take: the tail of a task is often short."""
        if not self._bytes_per_offset:
            return min(self._fetch_bytes, FIRST_FETCH_BYTES)
        guess = int(offsets_left * self._bytes_per_offset * 1.1) + (64 << 10)
        return min(self._fetch_bytes, guess)

    @staticmethod
    def _check(code: int) -> None:
        if code != ErrorCode.NONE:
            raise KafkaError(code)

    def _after_error(self, error: ClientError | KafkaError, position: int) -> int:
        """Where to go on after a failed fetch; raises when there is no going on."""
        name = describe(self._wanted.partition)
        if isinstance(error, KafkaError):
            if error.code == ErrorCode.OFFSET_OUT_OF_RANGE:
                return self._after_out_of_range(position)
            if error.code in _FORBIDDEN:
                raise ConnectorError(
                    errors.NOT_AUTHORIZED,
                    f"Reading {name} is not allowed ({error_name(error.code)})",
                    "Ask for READ on the topic",
                )
            if error.code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION and (
                self._idle_seconds() + self._pause_seconds
                > min(UNKNOWN_PARTITION_TIMEOUT_SECONDS, self._timeout_seconds)
            ):
                self._lost(position, f"{name} is not there any more")
                return self._wanted.end
            retriable = error.code in RETRIABLE
        else:
            retriable = error.retriable
        if not retriable:
            raise ConnectorError(
                errors.FETCH_FAILED, f"Fetching {name} from offset {position} failed: {error}"
            ) from None
        self._brokers.forget_leader(self._wanted.partition)
        self._pause(position, str(error))
        return position

    def _after_out_of_range(self, position: int) -> int:
        tp, _, end = self._wanted
        name = describe(tp)
        ends = [self._brokers.offsets_at({tp: which}).get(tp) for which in (EARLIEST, LATEST)]
        first, last = ends
        if first is None or last is None:
            self._brokers.forget_leader(tp)
            self._pause(position, "the brokers do not know the partition")
        elif position < first:
            self._lost(position, f"{name} begins at offset {first} now")
            position = min(first, end)
            self._made_progress()
        elif position > last:
            self._lost(position, f"{name} ends at offset {last} now")
            position = end
        else:
            self._pause(position, "the leader does not have the offset yet")
        return position

    def _after_nothing(
        self, data: PartitionData, position: int, throttle_ms: int, size: int
    ) -> int:
        """A response without a whole batch: a gap, a delay, or a batch larger than the request."""
        known = data.high_watermark
        if self._read_committed and data.last_stable_offset >= 0:
            known = min(known, data.last_stable_offset)
        if size > 0:
            # Only brokers older than 0.10.1 cut off the first batch.
            self._bytes_per_offset = max(1.0, self._bytes_per_offset) * 2
            self._fetch_bytes = min(self._fetch_bytes * 2, (1 << 31) - 1)
        elif throttle_ms == 0 and known > position:
            # The broker never holds back a batch it has. Compaction can take the very last
            # records of a log away; fetched twice to exclude a race.
            self._empty_responses += 1
            if self._empty_responses >= EMPTY_RESPONSES_MAX:
                self._made_progress()
                return min(known, self._wanted.end)
        self._pause(position, f"the response had no records, though the log reaches offset {known}")
        return position

    def _lost(self, position: int, why: str) -> None:
        tp, _, end = self._wanted
        self._report.lost(
            errors.DATA_LOSS_RANGE,
            f"Offsets {position} to {end} of {describe(tp)} could not be read: {why}",
        )

    def _idle_seconds(self) -> float:
        return self._clock() - self._last_progress

    def _pause(self, position: int, why: str) -> None:
        """Waits a moment, longer each time; raises when nothing has come for too long."""
        tp, _, end = self._wanted
        if self._idle_seconds() + self._pause_seconds > self._timeout_seconds:
            raise ConnectorError(
                errors.FETCH_TIMEOUT,
                f"Nothing came of {describe(tp)} from offset {position} (wanted to {end}) for "
                f"{self._timeout_seconds:g} seconds; the last reason was: {why}",
                "Look at the broker's log, or raise kafkaConsumer.pollTimeoutMs",
            )
        self._sleep(self._pause_seconds)
        self._pause_seconds = min(self._pause_seconds * 2, PAUSE_MAX_SECONDS)


class _Failure(NamedTuple):
    error: BaseException


class Prefetcher(Iterator[T]):
    """Runs `source` in a thread, at most `depth` items ahead of the caller that iterates."""

    def __init__(self, source: Iterator[T], depth: int, name: str) -> None:
        # The bound on memory: `depth` responses wait here, one is being fetched, one is in use.
        self._items: queue.Queue[T | _Failure | None] = queue.Queue(maxsize=max(1, depth))
        self._source = source
        self._stopped = threading.Event()
        self._finished = False
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        last: _Failure | None = None
        try:
            for item in self._source:
                if not self._put(item):
                    return
        except Exception as error:  # handed over and raised where the items are taken
            last = _Failure(error)
        self._put(last)

    def _put(self, item: T | _Failure | None) -> bool:
        while not self._stopped.is_set():
            try:
                self._items.put(item, timeout=0.1)
            except queue.Full:
                continue
            return True
        return False

    def __next__(self) -> T:
        if self._finished:
            raise StopIteration
        item = self._items.get()
        if item is None or isinstance(item, _Failure):
            self._finished = True
            if item is None:
                raise StopIteration
            raise item.error
        return item

    def close(self) -> bool:
        """Stops the thread; returns whether it has ended (it may be waiting for a response)."""
        self._stopped.set()
        self._thread.join(JOIN_SECONDS)
        return not self._thread.is_alive()
