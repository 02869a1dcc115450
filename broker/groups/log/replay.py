"""Replays the records of `__consumer_offsets` into memory, after an append and while loading.

Mirrors the replay methods of Kafka's `GroupCoordinatorShard`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from ottla.broker.coordination.ports import WallClock
from ottla.broker.groups.classic.group import Group
from ottla.broker.groups.log.records import (
    GroupKey,
    OffsetKey,
    UnreadableRecord,
    read_group_value,
    read_key,
    read_offset_value,
)
from ottla.broker.groups.offsets import CommittedOffset
from ottla.protocol.topics import TopicPartition

if TYPE_CHECKING:
    from ottla.broker.groups.consumer.records import GroupRecord
    from ottla.broker.groups.share.records import ShareRecord

FIRST_CONSUMER_KEY = 3
LAST_CONSUMER_KEY = 8
FIRST_SHARE_KEY = 10
LAST_SHARE_KEY = 15


class ReplayedPartition(Protocol):
    """The groups of one partition of `__consumer_offsets`, as records change them."""

    index: int
    has_consumer_groups: bool
    records_skipped: int

    def replay_offset(
        self,
        group_id: str,
        partition: TopicPartition,
        value: CommittedOffset | None,
        at: int,
        producer_id: int | None = None,
    ) -> None: ...

    def replay_marker(self, producer_id: int, committed: bool) -> None: ...

    def replay_group(self, group_id: str, loaded: Group | None) -> None: ...

    def replay_consumer_group(self, record: GroupRecord) -> None: ...

    @property
    def has_share_groups(self) -> bool: ...

    def replay_share_group(self, record: ShareRecord) -> None: ...


def is_of_consumer_group(key: bytes) -> bool:
    """Whether it is the key of a record of a consumer group (KIP-848) or share group (KIP-932)."""
    return len(key) > 1 and key[0] == 0 and FIRST_CONSUMER_KEY <= key[1] <= LAST_SHARE_KEY


def replay_record(
    partition: ReplayedPartition,
    key: bytes,
    value: bytes | None,
    at: int,
    producer_id: int | None,
    clock: WallClock,
    parsed: OffsetKey | GroupKey | None = None,
) -> None:
    """Replays one record at log offset `at`; raises UnreadableRecord.

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
            group_id, None if value is None else read_group_value(group_id, value, clock())
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
