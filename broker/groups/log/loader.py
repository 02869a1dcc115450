"""Replays the records of `__consumer_offsets` into memory, after an append and while loading.

Mirrors the replay methods of Kafka's `GroupCoordinatorShard`.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import TYPE_CHECKING

from ottla.broker.coordination.ports import WallClock
from ottla.broker.groups.log.records import (
    GroupKey,
    OffsetKey,
    UnreadableRecord,
    read_group_value,
    read_key,
    read_offset_value,
)
from ottla.protocol.records.batch import (
    BATCH_OVERHEAD,
    CODEC_MASK,
    CONTROL_MASK,
    HEADER,
    LOG_OVERHEAD,
    MAGIC_POSITION,
    TRANSACTIONAL_MASK,
    BatchHeader,
)
from ottla.protocol.records.control import ABORT, COMMIT, control_type
from ottla.protocol.records.errors import RecordsError
from ottla.protocol.records.reader import iterate_entries, read_entry
from ottla.protocol.records.section import decode_section
from ottla.protocol.steps import run_at_once
from ottla.protocol.topics import TopicPartition

if TYPE_CHECKING:
    from ottla.broker.groups.log.partition import GroupPartition

logger = logging.getLogger("ottla.groups")

FIRST_CONSUMER_KEY = 3
LAST_CONSUMER_KEY = 8
FIRST_SHARE_KEY = 10
LAST_SHARE_KEY = 15

MAX_PREFIXES = 10_000  # a few megabytes
_MAX_SKIPPED_LOGGED = 10  # log lines about skipped records in one load
_NOT_PLAIN = CODEC_MASK | TRANSACTIONAL_MASK | CONTROL_MASK


class GroupLoader:
    """Replays the log of one partition, with pauses.

    Keys repeat, and only the last record of a key matters. So plain records are collected by their
    raw keys, and decoded and replayed at the end. The order does not matter, because the replay
    compares log offsets, except for a transaction marker: all records before it come first.
    """

    def __init__(self, partition: GroupPartition, clock: WallClock) -> None:
        self._partition = partition
        self._clock = clock
        self._latest: dict[bytes | None, tuple[bytes | None, int]] = {}
        self._prefixes: dict[bytes, OffsetKey] = {}

    def run(self, chunks: Iterator[memoryview]) -> Iterator[None]:
        """Replay the whole log; yield after each batch, and after each record that is replayed."""
        for chunk in chunks:
            try:
                yield from self._collect(bytes(chunk))
            except RecordsError as problem:
                self._skip(f"the rest of a chunk is corrupt: {problem}")
        yield from self._flush()

    def _collect(self, data: bytes) -> Iterator[None]:
        """Collect the records of one chunk of whole batches."""
        latest = self._latest
        unpack = HEADER.unpack_from
        size = len(data)
        position = 0
        while size - position > MAGIC_POSITION:
            is_plain = data[position + MAGIC_POSITION] == 2 and size - position > BATCH_OVERHEAD
            if is_plain:
                base_offset, length, _, _, _, attributes, _, _, _, _, _, _, count = unpack(
                    data, position
                )
                is_plain = not attributes & _NOT_PLAIN
            if is_plain:
                end = position + LOG_OVERHEAD + length
                section = decode_section(data, position + BATCH_OVERHEAD, end, count)
                for key, value in zip(section.keys, section.values, strict=True):
                    latest[key] = (value, base_offset)
                position = end
            else:
                end = self._find_end(data, position)
                yield from self._replay_special(data[position:end])
                position = end
            yield

    @staticmethod
    def _find_end(data: bytes, position: int) -> int:
        for start, header in iterate_entries(data, position):
            return start + header.size_in_bytes
        return len(data)  # an incomplete batch at the end

    def _replay_special(self, data: bytes) -> Iterator[None]:
        """Replay a batch that is compressed, transactional, a control batch or of magic 0 or 1."""
        for position, header in iterate_entries(data):
            records = read_entry(data, position, header, check_crc=False)
            if not isinstance(header, BatchHeader):
                for record in records:
                    self._latest[record.key] = (record.value, record.offset)
            elif header.is_control:
                yield from self._flush()  # the marker applies to the records before it
                for record in records:
                    kind = control_type(record.key)
                    if kind in (ABORT, COMMIT):
                        self._partition.replay_marker(header.producer_id, kind == COMMIT)
            elif header.is_transactional:
                for record in records:
                    self._replay(record.key, record.value, header.base_offset, header.producer_id)
            else:
                for record in records:
                    self._latest[record.key] = (record.value, header.base_offset)

    def _flush(self) -> Iterator[None]:
        """Replay the collected records."""
        latest, self._latest = self._latest, {}
        of_consumer_groups = []
        for key, (value, at) in latest.items():
            if key is not None and is_of_consumer_group(key):
                of_consumer_groups.append((key, value, at))
            else:
                self._replay(key, value, at, None)
            yield
        # The subscription of a member is added before its assignment, and removed after it.
        of_consumer_groups.sort(key=_consumer_group_order)
        for key, value, at in of_consumer_groups:
            self._replay(key, value, at, None)
            yield

    def _replay(
        self, key: bytes | None, value: bytes | None, at: int, producer_id: int | None
    ) -> None:
        try:
            if key is None:
                raise UnreadableRecord("the record has no key")
            parsed = self._read_key(key)
            replay_record(self._partition, key, value, at, producer_id, self._clock, parsed)
        except UnreadableRecord as problem:
            self._skip(str(problem))

    def _read_key(self, key: bytes) -> OffsetKey | GroupKey | None:
        """As `read_key`; the common prefix of the keys of one group and topic is decoded once."""
        known = self._prefixes.get(key[:-4])
        if known is not None:
            partition = TopicPartition(known.partition.topic, int.from_bytes(key[-4:], signed=True))
            return OffsetKey(known.group_id, partition)
        if is_of_consumer_group(key):
            return None
        parsed = read_key(key)
        if isinstance(parsed, OffsetKey):
            if len(self._prefixes) >= MAX_PREFIXES:
                self._prefixes.clear()
            self._prefixes[key[:-4]] = parsed
        return parsed

    def _skip(self, problem: str) -> None:
        self._partition.records_skipped += 1
        if self._partition.records_skipped <= _MAX_SKIPPED_LOGGED:
            logger.warning(
                "Loading group metadata from __consumer_offsets-%d: skipping a record: %s",
                self._partition.index,
                problem,
                extra={"topic": "__consumer_offsets", "partition": self._partition.index},
            )


def _consumer_group_order(record: tuple[bytes, bytes | None, int]) -> tuple[bool, int]:
    """Sort values by the version of their keys, then tombstones in reverse; the order of equal
    ones does not matter."""
    key, value, _ = record
    return (True, -key[1]) if value is None else (False, key[1])


def is_of_consumer_group(key: bytes) -> bool:
    """Return whether it is the key of a consumer group (KIP-848) or share group (KIP-932)."""
    return len(key) > 1 and key[0] == 0 and FIRST_CONSUMER_KEY <= key[1] <= LAST_SHARE_KEY


def replay_record(
    partition: GroupPartition,
    key: bytes,
    value: bytes | None,
    at: int,
    producer_id: int | None,
    clock: WallClock,
    parsed: OffsetKey | GroupKey | None = None,
) -> None:
    """Replay one record at log offset `at`. Raises UnreadableRecord.

    `parsed` is the key, when the caller has decoded it already.
    """
    if parsed is None and not is_of_consumer_group(key):
        parsed = read_key(key)
    if isinstance(parsed, OffsetKey):
        partition.replay_offset(
            parsed.group_id,
            parsed.partition,
            None if value is None else read_offset_value(value, at),
            at,
            producer_id,
        )
    elif isinstance(parsed, GroupKey):
        group_id = parsed.group_id
        partition.replay_group(
            group_id,
            None if value is None else run_at_once(read_group_value(group_id, value, clock())),
        )
    elif (
        len(key) > 1 and FIRST_SHARE_KEY <= key[1] <= LAST_SHARE_KEY and partition.has_share_groups
    ):
        from ottla.broker.groups.share.records import UnreadableShareRecord, read_share_record

        try:
            partition.replay_share_group(read_share_record(key, value))
        except UnreadableShareRecord as problem:
            raise UnreadableRecord(str(problem)) from None
    elif (
        is_of_consumer_group(key) and key[1] <= LAST_CONSUMER_KEY and partition.has_consumer_groups
    ):
        # Imported late: most brokers serve no consumer groups.
        from ottla.broker.groups.consumer.records import UnreadableGroupRecord, decode_record

        try:
            partition.replay_consumer_group(decode_record(key, value))
        except UnreadableGroupRecord as problem:
            raise UnreadableRecord(str(problem)) from None
    else:
        raise UnreadableRecord(f"unknown key version {int.from_bytes(key[:2])}")
