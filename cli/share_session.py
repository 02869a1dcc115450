"""A share session with the leader of some share partitions: ShareFetch and ShareAcknowledge.

Mirrors the parts of Kafka's `ShareSessionHandler` that one thread needs. Each request carries the
next epoch of the session; after an error of the session the next fetch begins a new one, and what
was acquired in the old one is available again when its lock ends.
"""

from __future__ import annotations

from enum import IntEnum
from typing import NamedTuple

from ottla.cli.output import Failure
from ottla.cli.reader import MAX_BYTES
from ottla.cli.session import Session, check
from ottla.protocol.client.operations import Node
from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages import share_acknowledge as acknowledging
from ottla.protocol.messages import share_fetch as fetching
from ottla.protocol.records.batch import BatchHeader
from ottla.protocol.records.errors import RecordsError
from ottla.protocol.records.reader import iterate_entries, read_entry
from ottla.protocol.records.record import Record

# Maximum number of records that one fetch acquires, as Kafka's max.poll.records.
MAX_RECORDS = 500
_RECORD_LIMIT = 1  # acquire no more records than requested (KIP-1206)
_FINAL_EPOCH = -1
_MAX_EPOCH = 2**31 - 1

# The session is gone: the next fetch begins a new one.
_SESSION_ERRORS = frozenset(
    (ErrorCode.SHARE_SESSION_NOT_FOUND, ErrorCode.INVALID_SHARE_SESSION_EPOCH)
)
# The partition has moved, or is loaded by a new leader.
_MOVED = frozenset(
    (
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.FENCED_LEADER_EPOCH,
        ErrorCode.UNKNOWN_LEADER_EPOCH,
        ErrorCode.UNKNOWN_TOPIC_ID,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.KAFKA_STORAGE_ERROR,
    )
)


class AcknowledgeType(IntEnum):
    """The types of the protocol; GAP is an offset without a record."""

    GAP = 0
    ACCEPT = 1
    RELEASE = 2
    REJECT = 3


class SharePartition(NamedTuple):
    """A partition by the id of its topic."""

    topic_id: bytes
    partition: int


class AcquiredRecord(NamedTuple):
    """One record that this member has acquired."""

    where: SharePartition
    record: Record
    delivery_count: int


class _AcquiredBatch(NamedTuple):
    """Acquired offsets; `types` has the acknowledgement of each, RELEASE until it is set."""

    first_offset: int
    types: list[int]


class ShareSession:
    """The session of one member with one broker."""

    def __init__(self, session: Session, node_id: int, group: str, member_id: str) -> None:
        self._session = session
        self._node = Node(node_id)
        self._group = group
        self._member_id = member_id
        self._epoch = 0
        self._sent: frozenset[SharePartition] = frozenset()
        self._acquired: dict[SharePartition, list[_AcquiredBatch]] = {}

    def fetch(
        self, wanted: frozenset[SharePartition], max_records: int, max_wait_ms: int
    ) -> tuple[list[AcquiredRecord], set[SharePartition]]:
        """Acquires records of the partitions; also returns the partitions that have moved.

        Every record is released by the next `acknowledge` unless `set_type` is called.
        """
        request = fetching.ShareFetchRequest(
            self._group,
            self._member_id,
            self._epoch,
            max_wait_ms,
            1,
            MAX_BYTES,
            max_records,
            max_records,
            share_acquire_mode=_RECORD_LIMIT,
            topics=[
                fetching.FetchTopic(topic_id, [fetching.FetchPartition(index) for index in rows])
                for topic_id, rows in _by_topic(wanted - self._sent).items()
            ],
            forgotten_topics_data=[
                fetching.ForgottenTopic(topic_id, rows)
                for topic_id, rows in _by_topic(self._sent - wanted).items()
            ],
        )
        response = self._session.client.call_once(request, self._node)
        assert isinstance(response, fetching.ShareFetchResponse)
        if self._is_reset(response.error_code):
            return [], set()
        check(response.error_code, f"share group {self._group}", response.error_message)
        self._sent = wanted
        self._advance()
        records: list[AcquiredRecord] = []
        moved: set[SharePartition] = set()
        for topic in response.responses:
            for row in topic.partitions:
                where = SharePartition(topic.topic_id, row.partition_index)
                if row.error_code in _MOVED:
                    moved.add(where)
                    continue
                check(row.error_code, f"partition {row.partition_index}", row.error_message)
                try:
                    records += self._decode(where, row)
                except RecordsError as error:
                    raise Failure(
                        f"records of partition {row.partition_index} cannot be read: {error}."
                    ) from None
        return records, moved

    def _decode(self, where: SharePartition, row: fetching.PartitionData) -> list[AcquiredRecord]:
        """The acquired ones of the records of a response, which has whole batches."""
        buffer = row.records
        assert buffer is None or isinstance(buffer, (bytes, bytearray, memoryview))
        present: dict[int, Record] = {}
        for position, header in iterate_entries(buffer or b""):
            if isinstance(header, BatchHeader) and header.is_control:
                continue
            present |= {
                record.offset: record for record in read_entry(buffer or b"", position, header)
            }
        found: list[AcquiredRecord] = []
        batches = self._acquired.setdefault(where, [])
        for each in row.acquired_records:
            types: list[int] = []
            for offset in range(each.first_offset, each.last_offset + 1):
                record = present.get(offset)
                if record is None:
                    types.append(AcknowledgeType.GAP)
                    continue
                types.append(AcknowledgeType.RELEASE)
                found.append(AcquiredRecord(where, record, each.delivery_count))
            batches.append(_AcquiredBatch(each.first_offset, types))
        return found

    def set_type(self, item: AcquiredRecord, kind: AcknowledgeType) -> None:
        """Chooses how the next `acknowledge` acknowledges a record."""
        for batch in self._acquired.get(item.where, ()):
            index = item.record.offset - batch.first_offset
            if 0 <= index < len(batch.types):
                batch.types[index] = kind

    def acknowledge(self) -> int:
        """Acknowledges all that is acquired; returns how many records could not be acknowledged,
        because their lock has ended: they are delivered again."""
        acquired, self._acquired = self._acquired, {}
        if not any(acquired.values()):
            return 0
        request = acknowledging.ShareAcknowledgeRequest(
            self._group,
            self._member_id,
            self._epoch,
            topics=[
                acknowledging.AcknowledgeTopic(
                    topic_id,
                    [
                        acknowledging.AcknowledgePartition(
                            index, _rows(acquired[SharePartition(topic_id, index)])
                        )
                        for index in indexes
                    ],
                )
                for topic_id, indexes in _by_topic(
                    frozenset(where for where, batches in acquired.items() if batches)
                ).items()
            ],
        )
        response = self._session.client.call_once(request, self._node)
        assert isinstance(response, acknowledging.ShareAcknowledgeResponse)
        counts = {
            where: sum(len(batch.types) for batch in batches) for where, batches in acquired.items()
        }
        if self._is_reset(response.error_code):
            return sum(counts.values())
        check(response.error_code, f"share group {self._group}", response.error_message)
        self._advance()
        lost = 0
        for topic in response.responses:
            for row in topic.partitions:
                where = SharePartition(topic.topic_id, row.partition_index)
                if row.error_code == ErrorCode.INVALID_RECORD_STATE or row.error_code in _MOVED:
                    lost += counts[where]
                else:
                    check(row.error_code, f"partition {row.partition_index}", row.error_message)
        return lost

    def close(self) -> None:
        """Ends the session: the broker releases what is not acknowledged."""
        if self._epoch == 0:
            return
        request = acknowledging.ShareAcknowledgeRequest(self._group, self._member_id, _FINAL_EPOCH)
        self._session.client.call_once(request, self._node)
        self._epoch = 0

    def _advance(self) -> None:
        self._epoch = 1 if self._epoch == _MAX_EPOCH else self._epoch + 1

    def _is_reset(self, code: int) -> bool:
        if code not in _SESSION_ERRORS:
            return False
        self._epoch, self._sent, self._acquired = 0, frozenset(), {}
        return True


def _rows(batches: list[_AcquiredBatch]) -> list[acknowledging.AcknowledgementBatch]:
    """One type stands for all offsets of a batch."""
    return [
        acknowledging.AcknowledgementBatch(
            first, first + len(types) - 1, types[:1] if len(set(types)) == 1 else types
        )
        for first, types in sorted(batches)
    ]


def _by_topic(partitions: frozenset[SharePartition]) -> dict[bytes, list[int]]:
    found: dict[bytes, list[int]] = {}
    for topic_id, index in sorted(partitions):
        found.setdefault(topic_id, []).append(index)
    return found
