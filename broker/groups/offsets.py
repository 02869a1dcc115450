"""The committed offsets of one group: a pure store that is changed by replaying records only.

An offset gets into memory when its record is committed, not when the request comes in. Until
then it is counted as pending, so that a reader who requires stable offsets can be told to wait.
Offsets of an open transaction are kept apart until the transaction's marker arrives.
"""

from typing import NamedTuple

from ottla.protocol.topics import TopicPartition

NO_TIMESTAMP = -1


class CommittedOffset(NamedTuple):
    """What a group committed for one partition.

    `expire_timestamp_ms` is set only by clients that choose their own retention (OffsetCommit v2
    to v4), otherwise NO_TIMESTAMP. `appended_at` is the log offset of the record.
    """

    offset: int
    leader_epoch: int
    metadata: str
    commit_timestamp_ms: int
    expire_timestamp_ms: int = NO_TIMESTAMP
    appended_at: int = -1


class GroupOffsets:
    """Offsets of one group, committed, pending and transactional."""

    __slots__ = ("committed", "pending", "pending_transactional", "transactional")

    def __init__(self) -> None:
        self.committed: dict[TopicPartition, CommittedOffset] = {}
        self.pending: dict[TopicPartition, int] = {}
        # Per producer id: what its open transaction committed, and what is still being appended.
        self.transactional: dict[int, dict[TopicPartition, CommittedOffset]] = {}
        self.pending_transactional: dict[int, dict[TopicPartition, int]] = {}

    def __bool__(self) -> bool:
        return bool(
            self.committed or self.pending or self.transactional or self.pending_transactional
        )

    # Changes that come from records, while running and while loading.

    def replay(self, partition: TopicPartition, value: CommittedOffset | None, at: int) -> None:
        """Take over a plain commit (or its tombstone) found at log offset `at`."""
        current = self.committed.get(partition)
        if current is not None and current.appended_at > at:
            return
        if value is not None:
            self.committed[partition] = value
        elif current is not None:
            del self.committed[partition]

    def replay_transactional(
        self, producer_id: int, partition: TopicPartition, value: CommittedOffset | None
    ) -> None:
        """Take over a commit inside a transaction; it counts when the marker says so."""
        if value is not None:
            self.transactional.setdefault(producer_id, {})[partition] = value
        elif producer_id in self.transactional:
            self.transactional[producer_id].pop(partition, None)

    def replay_marker(self, producer_id: int, committed: bool) -> None:
        """The transaction of this producer ended: its offsets count now, or never."""
        for partition, value in self.transactional.pop(producer_id, {}).items():
            if committed:
                self.replay(partition, value, value.appended_at)

    # What is between the append and the commit of its record.

    def begin(self, partitions: list[TopicPartition], producer_id: int | None = None) -> None:
        pending = self._pending_of(producer_id)
        for partition in partitions:
            pending[partition] = pending.get(partition, 0) + 1

    def finish(self, partitions: list[TopicPartition], producer_id: int | None = None) -> None:
        pending = self._pending_of(producer_id)
        for partition in partitions:
            left = pending.get(partition, 0) - 1
            if left > 0:
                pending[partition] = left
            else:
                pending.pop(partition, None)
        if producer_id is not None and not pending:
            self.pending_transactional.pop(producer_id, None)

    def _pending_of(self, producer_id: int | None) -> dict[TopicPartition, int]:
        if producer_id is None:
            return self.pending
        return self.pending_transactional.setdefault(producer_id, {})

    # Questions.

    def is_unstable(self, partition: TopicPartition) -> bool:
        """Whether a newer offset of this partition is under way or in an open transaction."""
        return (
            partition in self.pending
            or any(partition in offsets for offsets in self.transactional.values())
            or any(partition in offsets for offsets in self.pending_transactional.values())
        )

    def expired(
        self,
        now_ms: int,
        retention_ms: int,
        *,
        base_timestamp_ms: int | None,
        subscribed_topics: frozenset[str],
    ) -> list[TopicPartition]:
        """Partitions whose offset outlived the retention and whose topic nobody subscribes to.

        The age counts from `base_timestamp_ms` (when the group became empty) or, when that is
        None, from each commit. A client's own expiry time goes before the broker's retention.
        """
        found = []
        for partition, value in self.committed.items():
            if partition.topic in subscribed_topics or partition in self.pending:
                continue
            if value.expire_timestamp_ms != NO_TIMESTAMP:
                is_expired = now_ms >= value.expire_timestamp_ms
            else:
                base = value.commit_timestamp_ms if base_timestamp_ms is None else base_timestamp_ms
                is_expired = now_ms - base >= retention_ms
            if is_expired:
                found.append(partition)
        return found
