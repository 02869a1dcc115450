"""Reads partitions from given offsets, in rounds of one fetch for each leader."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager

from ottla.cli.offsets import local_log_start
from ottla.cli.output import Failure
from ottla.cli.session import Session, check
from ottla.protocol.client.operations import LeaderOf, Versions
from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages.fetch import (
    FetchPartition,
    FetchRequest,
    FetchResponse,
    FetchTopic,
    PartitionData,
)
from ottla.protocol.records.batch import BatchHeader
from ottla.protocol.records.errors import RecordsError
from ottla.protocol.records.reader import iterate_entries, read_entry
from ottla.protocol.records.record import Record
from ottla.protocol.topics import TopicPartition

MAX_WAIT_MS = 500
MAX_BYTES = 16 * 1024 * 1024
PARTITION_MAX_BYTES = 1024 * 1024

# The versions with topic names; later ones have topic ids.
_WITH_NAMES = Versions(4, 12)

# The leader moved, or has just started: the next round fetches from the one of new metadata, which
# fails if the topic is deleted.
_MOVED = (
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    ErrorCode.NOT_LEADER_OR_FOLLOWER,
    ErrorCode.FENCED_LEADER_EPOCH,
    ErrorCode.UNKNOWN_LEADER_EPOCH,
    ErrorCode.REPLICA_NOT_AVAILABLE,
    ErrorCode.OFFSET_NOT_AVAILABLE,
)
_MOVED_PAUSE_SECONDS = 0.1


class IdleTimer:
    """Whether no record has come for `seconds`; never over without them."""

    def __init__(self, seconds: float | None) -> None:
        self._seconds = seconds
        self.restart()

    def restart(self) -> None:
        """Count from now on."""
        self._since = time.monotonic()

    @property
    def is_over(self) -> bool:
        """Whether the time has passed since the last `restart`."""
        return self._seconds is not None and time.monotonic() - self._since >= self._seconds


class TopicReader:
    """Reads until `stops` (exclusive offsets), or without end if that is None.

    `positions` are the offsets to read next; the caller can change them between records.
    """

    def __init__(
        self,
        session: Session,
        positions: dict[TopicPartition, int],
        stops: dict[TopicPartition, int] | None,
        *,
        read_committed: bool = False,
    ) -> None:
        self.positions = positions
        self.at_end_of_response = False
        self._session = session
        self._stops = stops
        self._read_committed = read_committed
        self._moved_since: dict[TopicPartition, float] = {}

    def records(self, idle_seconds: float | None = None) -> Iterator[tuple[TopicPartition, Record]]:
        """All records, in order of offsets within each partition, until none comes for so long."""
        idle = IdleTimer(idle_seconds)
        while (open_partitions := self._open()) and not idle.is_over:
            for each in self._round(open_partitions):
                yield each
                idle.restart()

    def one_round(self) -> Iterator[tuple[TopicPartition, Record]]:
        """The records of one fetch from each leader; none if none arrive in time."""
        open_partitions = self._open()
        if open_partitions:
            yield from self._round(open_partitions)

    @contextmanager
    def processing(self, partition: TopicPartition, record: Record) -> Iterator[None]:
        """Around what is done with a record: one that Ctrl-C interrupts is not read yet."""
        try:
            yield
        except KeyboardInterrupt:
            self.positions[partition] = record.offset
            raise

    def _round(
        self, open_partitions: list[TopicPartition]
    ) -> Iterator[tuple[TopicPartition, Record]]:
        by_leader: dict[int, list[TopicPartition]] = defaultdict(list)
        for partition in open_partitions:
            by_leader[self._session.leader(partition).node_id].append(partition)
        wait_ms = MAX_WAIT_MS // len(by_leader) if self._stops is None else MAX_WAIT_MS
        for partitions in by_leader.values():
            yield from self._fetch(partitions, wait_ms)

    def _open(self) -> list[TopicPartition]:
        if self._stops is None:
            return list(self.positions)
        return [p for p, position in self.positions.items() if position < self._stops[p]]

    def _fetch(
        self, partitions: list[TopicPartition], wait_ms: int
    ) -> Iterator[tuple[TopicPartition, Record]]:
        by_topic: dict[str, list[FetchPartition]] = defaultdict(list)
        for item in partitions:
            row = FetchPartition(
                partition=item.partition,
                fetch_offset=self.positions[item],
                partition_max_bytes=PARTITION_MAX_BYTES,
            )
            by_topic[item.topic].append(row)
        request = FetchRequest(
            max_wait_ms=wait_ms,
            min_bytes=1,
            max_bytes=MAX_BYTES,
            isolation_level=int(self._read_committed),
            topics=[FetchTopic(topic=topic, partitions=rows) for topic, rows in by_topic.items()],
        )
        response = self._session.call(
            FetchResponse, request, LeaderOf(partitions[0]), versions=_WITH_NAMES
        )
        check(response.error_code, "fetch")
        for topic in response.responses:
            for data in topic.partitions:
                partition = TopicPartition(topic.topic, data.partition_index)
                if data.error_code in _MOVED and self._may_wait(partition):
                    self._session.client.forget_leader(partition)
                    time.sleep(_MOVED_PAUSE_SECONDS)
                    continue
                where = f"{partition} at offset {self.positions[partition]}"
                check(data.error_code, where)
                self._moved_since.pop(partition, None)
                try:
                    yield from self._decode(partition, data)
                except RecordsError as error:
                    raise Failure(f"{where} or after it cannot be read: {error}.") from None
                if not data.records and not response.throttle_time_ms:
                    self._end_if_nothing_is_left(partition, data)

    def _may_wait(self, partition: TopicPartition) -> bool:
        """Whether a leader may still appear; who reads to an end waits for the request timeout."""
        now = time.monotonic()
        waited = now - self._moved_since.setdefault(partition, now)
        return self._stops is None or waited < self._session.timeout_ms / 1000

    def _decode(
        self, partition: TopicPartition, data: PartitionData
    ) -> Iterator[tuple[TopicPartition, Record]]:
        start = self.positions[partition]
        stop = None if self._stops is None else self._stops[partition]
        reached = start
        found: list[Record] = []
        buffer = data.records
        assert buffer is None or isinstance(buffer, (bytes, bytearray, memoryview))
        aborted = _AbortedTransactions(data)
        for position, header in iterate_entries(buffer or b""):
            last = header.last_offset if isinstance(header, BatchHeader) else None
            if isinstance(header, BatchHeader) and (aborted.hides(header) or header.is_control):
                reached = max(reached, header.last_offset + 1)
                continue
            records = read_entry(buffer or b"", position, header)
            found.extend(record for record in records if record.offset >= start)
            if last is None and records:
                last = records[-1].offset
            reached = max(reached, (last if last is not None else start) + 1)
        if stop is not None:
            found = [record for record in found if record.offset < stop]
        for number, record in enumerate(found, 1):
            self.at_end_of_response = number == len(found)
            self.positions[partition] = record.offset + 1
            yield partition, record
        # After the last record there can be markers and compacted offsets.
        if stop is not None:
            reached = min(reached, stop)
        self.positions[partition] = max(self.positions[partition], reached)

    def _end_if_nothing_is_left(self, partition: TopicPartition, data: PartitionData) -> None:
        """Goes to the end if no record is left below it: compaction can remove the last ones.

        A response is also empty while a read of tiered storage takes long, so that only what is on
        the leader's own disk counts.
        """
        if self._stops is None:
            return
        known = data.last_stable_offset if self._read_committed else data.high_watermark
        stop, position = self._stops[partition], self.positions[partition]
        if position < stop <= known:
            first = local_log_start(self._session, partition)
            if first is not None and first <= position:
                self.positions[partition] = stop


class _AbortedTransactions:
    """The batches of one fetch response that belong to aborted transactions (KIP-98)."""

    def __init__(self, data: PartitionData) -> None:
        rows = data.aborted_transactions or []
        self._not_started = sorted((row.first_offset, row.producer_id) for row in rows)
        self._active: set[int] = set()

    def hides(self, header: BatchHeader) -> bool:
        """Whether a read_committed consumer skips this batch; called in order of offsets."""
        while self._not_started and self._not_started[0][0] <= header.last_offset:
            self._active.add(self._not_started.pop(0)[1])
        if header.producer_id not in self._active:
            return False
        if header.is_control:
            self._active.discard(header.producer_id)
        return header.is_transactional
