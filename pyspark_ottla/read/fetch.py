"""Fetching a range of offsets of one partition, with every retry under a deadline.

`PartitionFetch.responses` fetches from the start to the end of the range and yields what the
brokers sent. Offsets without a record are skipped only where a response proves that there is none:

- a batch with a higher offset (compaction, transaction markers and aborted transactions);
- a log start offset above the position (retention, DeleteRecords): reported as the option
  failOnDataLoss is set;
- an empty response of the leader, read from its own disk, with a high watermark (for read_committed
  the last stable offset) at or beyond the end of the range. Tiered storage returns empty responses
  while the remote read takes long, so the position must not be below the local log start offset.

Any other empty response is waited out. If nothing comes within the timeout, the task fails with
FETCH_TIMEOUT, and no record is skipped.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import NamedTuple, Protocol

from ottla.protocol.client.errors import ClientError
from ottla.protocol.errors import RETRIABLE, ErrorCode, KafkaError, error_name
from ottla.protocol.message import Records
from ottla.protocol.messages.fetch import PartitionData
from ottla.protocol.records.reader import iterate_entries
from ottla.protocol.topics import TopicPartition
from pyspark_ottla import errors
from pyspark_ottla.cluster.fetch_source import FetchSource
from pyspark_ottla.errors import ConnectorError
from pyspark_ottla.offsets import EARLIEST, LATEST, OffsetRange, Offsets, describe
from pyspark_ottla.read.planning import LossReport
from pyspark_ottla.read.read_replica import ReadReplica
from pyspark_ottla.read.task_metrics import TaskMetrics

PAUSE_FIRST_SECONDS = 0.05
PAUSE_MAX_SECONDS = 1.0
# A planned partition that brokers do not know was deleted, or the broker has just started and has
# no metadata of it yet. It gets them within this time, counted from the first such response, or
# the metadata of the cluster still has the partition.
UNKNOWN_PARTITION_TIMEOUT_SECONDS = 10.0
# The size of the first fetch of a range; later ones are sized by what the rest should take.
FIRST_FETCH_BYTES = 1 << 20

_FORBIDDEN = (ErrorCode.TOPIC_AUTHORIZATION_FAILED, ErrorCode.CLUSTER_AUTHORIZATION_FAILED)
_UNKNOWN = (
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    ErrorCode.UNKNOWN_TOPIC_ID,
    ErrorCode.INCONSISTENT_TOPIC_ID,
)

# As Kafka's consumer: an unexpected error of the broker, such as a store of tiered segments that it
# cannot reach, may pass.
_RETRIABLE = RETRIABLE | {ErrorCode.UNKNOWN_SERVER_ERROR}


class FetchedData(NamedTuple):
    """What one fetch brought: bytes of whole batches, and (offset, producer) of aborted ones.

    The first batch may begin before `start`, the requested offset: records before it were
    read already, or are deleted.
    """

    start: int
    records: memoryview
    aborted: list[tuple[int, int]]
    #: The CRCs of the batches are verified already.
    is_verified: bool = False


class Brokers(Protocol):
    """What a fetch needs; the calls raise ClientError and KafkaError."""

    def fetch(
        self,
        partition: TopicPartition,
        offset: int,
        bytes_max: int,
        timeout_ms: int,
        source: FetchSource,
    ) -> tuple[PartitionData, int]:
        """One fetch, and the throttle time in ms."""

    def explain(self, error: Exception) -> str:
        """Why a fetch failed, as text for the user."""

    def forget_leader(self, partition: TopicPartition) -> None:
        """Makes the next fetch look the leader up again."""

    def offsets_at(self, wanted: dict[TopicPartition, int]) -> Offsets:
        """As `planning.Cluster.offsets_at`."""

    def has_partition(self, partition: TopicPartition, topic_id: str | None) -> bool:
        """Whether the metadata has it, of a topic with that id; raises ConnectorError."""

    def local_log_start(self, partition: TopicPartition) -> int | None:
        """The first offset on the leader's own disk (KIP-405); None if the leader does not say."""


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
        metrics: TaskMetrics | None = None,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._brokers = brokers
        self._wanted = wanted
        self._report = report
        self._fetch_bytes = fetch_bytes
        self._read_committed = read_committed
        self._timeout_seconds = timeout_ms / 1000
        self._metrics = metrics or TaskMetrics()
        self._clock = clock
        self._sleep = sleep
        self._replica = ReadReplica(clock)
        self._bytes_per_offset = 0.0
        self._unknown_since: float | None = None
        self._made_progress()

    def responses(self) -> Iterator[FetchedData]:
        """Responses until the range is read; raises ConnectorError when it cannot be."""
        position, end = self._wanted.start, self._wanted.end
        while position < end:
            bytes_max = self._next_size(end - position)
            try:
                data, throttle_ms = self._fetch(position, bytes_max)
                self._check(data.error_code)
            except (ClientError, KafkaError) as error:
                position = self._after_error(error, position)
                continue
            self._unknown_since = None
            records = memoryview(b"" if data.records is None else _as_buffer(data.records))
            self._metrics.fetched_bytes += len(records)
            following = end_of_last_batch(records)
            if following is None or following <= position:
                position = self._after_nothing(data, position, throttle_ms, len(records))
                continue
            self._bytes_per_offset = len(records) / max(1, following - position)
            aborted = [
                (row.first_offset, row.producer_id) for row in data.aborted_transactions or []
            ]
            response = FetchedData(position, records, aborted)
            position = following  # the first batch may begin before the requested offset
            yield response
            # Only now: how long the caller takes for what it has is no time without progress.
            self._made_progress()

    def _fetch(self, position: int, bytes_max: int) -> tuple[PartitionData, int]:
        timeout_ms = int((self._timeout_seconds - self._idle_seconds()) * 1000)
        node_id = self._replica.node_id
        if node_id is not None:
            timeout_ms //= 2  # a replica that does not respond leaves time for the leader
        source = FetchSource(node_id, self._replica.follows, self._wanted.topic_id)
        begin = self._clock()
        try:
            return self._brokers.fetch(
                self._wanted.partition, position, bytes_max, timeout_ms, source
            )
        finally:
            self._metrics.fetch_requests += 1
            self._metrics.fetch_seconds += self._clock() - begin

    def _made_progress(self) -> None:
        self._last_progress = self._clock()
        self._pause_seconds = PAUSE_FIRST_SECONDS
        self._is_only_unknown = True  # of the failures since then

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
        self._metrics.retries += 1
        if self._replica.node_id is not None:
            # Whatever the follower's reason is, the leader decides (KIP-392).
            self._replica.use_leader()
            return position
        name = describe(self._wanted.partition)
        if isinstance(error, KafkaError):
            if self._stays_unknown(error.code):
                self._lost(position, self._why_unknown())
                return self._wanted.end
            if error.code == ErrorCode.OFFSET_OUT_OF_RANGE:
                return self._after_out_of_range(position)
            if error.code in _FORBIDDEN:
                raise ConnectorError(
                    errors.NOT_AUTHORIZED,
                    f"Reading {name} from offset {position} is not allowed "
                    f"({error_name(error.code)})",
                    "Ask for READ on the topic",
                )
            retriable = error.code in _RETRIABLE
        else:
            self._failed_otherwise()
            retriable = error.retriable
        if not retriable:
            raise ConnectorError(
                errors.FETCH_FAILED, f"Fetching {name} from offset {position} failed: {error}"
            ) from None
        self._brokers.forget_leader(self._wanted.partition)
        self._pause(position, self._brokers.explain(error))
        return position

    def _stays_unknown(self, code: int) -> bool:
        """Whether brokers have not known the partition for long enough to believe them: for ten
        seconds, or until the time-out, if nothing else has failed. The metadata must not have it
        either: a broker that has just started may wait for the controller for longer."""
        if code not in _UNKNOWN:
            self._failed_otherwise()
            return False
        if self._unknown_since is None:
            self._unknown_since = self._clock()
        unknown_seconds = self._clock() - self._unknown_since + self._pause_seconds
        is_long = unknown_seconds > UNKNOWN_PARTITION_TIMEOUT_SECONDS or (
            self._is_only_unknown
            and self._idle_seconds() + self._pause_seconds > self._timeout_seconds
        )
        return is_long and not self._may_be_there()

    def _may_be_there(self) -> bool:
        try:
            return self._brokers.has_partition(self._wanted.partition, self._wanted.topic_id)
        except ConnectorError:
            return True  # no broker has metadata at the moment

    def _failed_otherwise(self) -> None:
        self._unknown_since, self._is_only_unknown = None, False

    def _why_unknown(self) -> str:
        name, topic_id = describe(self._wanted.partition), self._wanted.topic_id
        if topic_id is None:
            return f"{name} is not there any more"
        return (
            f"{name} of the topic id {topic_id} is not there any more; the topic was deleted, and "
            "may have been created again"
        )

    def _after_out_of_range(self, position: int) -> int:
        tp, end = self._wanted.partition, self._wanted.end
        name = describe(tp)
        ends = [self._brokers.offsets_at({tp: which}).get(tp) for which in (EARLIEST, LATEST)]
        first, last = ends
        if first is None or last is None:
            self._brokers.forget_leader(tp)
            self._pause(position, "the brokers do not know the partition")
        elif position < first:
            self._lost(position, f"{name} begins at offset {first} now", until=min(first, end))
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
        """A response without a batch that leads on: see the module for what it can mean."""
        if data.preferred_read_replica >= 0:
            self._follow(data.preferred_read_replica, position)
            return position
        known = data.high_watermark
        if self._read_committed and data.last_stable_offset >= 0:
            known = min(known, data.last_stable_offset)
        why = f"the response had no records, though the log reaches offset {known}"
        if size > 0:
            # Only brokers older than 0.10.1 cut off the first batch.
            self._bytes_per_offset = max(1.0, self._bytes_per_offset) * 2
            self._fetch_bytes = min(self._fetch_bytes * 2, (1 << 31) - 1)
        elif throttle_ms > 0:
            why = f"the broker throttled the response by {throttle_ms} ms"
        elif self._replica.node_id is not None:
            # Near the end of the range a follower may lag, and the leader does not.
            self._replica.use_leader()
            return position
        elif known <= position:
            why = f"the log reaches offset {known} only"
        elif known >= self._wanted.end and self._reads_locally(position):
            return self._wanted.end
        self._metrics.retries += 1
        self._pause(position, why)
        return position

    def _follow(self, node_id: int, position: int) -> None:
        """Fetches from the replica next. A leader that names one although the fetch did not name a
        rack has a selector that cannot be refused; that is done with a pause."""
        if self._replica.node_id is not None or not self._replica.follows:
            self._metrics.retries += 1
            self._pause(position, f"the broker named replica {node_id} once more")
        self._replica.prefer(node_id)

    def _reads_locally(self, position: int) -> bool:
        """Whether the leader has the position on its own disk, so that its response is complete."""
        try:
            first = self._brokers.local_log_start(self._wanted.partition)
        except (ClientError, KafkaError, ConnectorError):
            return False
        return first is not None and first <= position

    def _lost(self, position: int, why: str, until: int | None = None) -> None:
        tp, end = self._wanted.partition, self._wanted.end if until is None else until
        self._metrics.lost_offsets += end - position
        self._report.lost(
            errors.DATA_LOSS_RANGE,
            f"Offsets {position} to {end} of {describe(tp)} could not be read: {why}",
        )

    def _idle_seconds(self) -> float:
        return self._clock() - self._last_progress

    def _pause(self, position: int, why: str) -> None:
        """Waits a moment, longer each time; raises when no records come for too long."""
        if self._idle_seconds() + self._pause_seconds > self._timeout_seconds:
            raise ConnectorError(
                errors.FETCH_TIMEOUT,
                f"No record of {describe(self._wanted.partition)} from offset {position} on (the "
                f"range ends at {self._wanted.end}) came for {self._timeout_seconds:g} seconds; "
                f"the last reason was: {why}",
                "No record was skipped. Check the broker's log, or raise "
                "kafkaConsumer.pollTimeoutMs",
            )
        self._sleep(self._pause_seconds)
        self._pause_seconds = min(self._pause_seconds * 2, PAUSE_MAX_SECONDS)
