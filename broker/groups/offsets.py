"""The committed offsets of one group; only the replay of records changes them.

An offset is visible when its record is committed. Until then the commit counts as pending, and
OffsetFetch requests that require stable offsets get UNSTABLE_OFFSET_COMMIT. Offsets of an ongoing
transaction are kept apart until the marker of the transaction is replayed.
"""

from collections.abc import Iterable
from collections.abc import Set as AbstractSet
from itertools import chain
from typing import NamedTuple

from ottla.protocol.topics import TopicPartition

NO_TIMESTAMP = -1

#: A log offset after every known record, for one that is committed late and has none here.
AFTER_ALL = 2**63 - 1


class CommittedOffset(NamedTuple):
    """The committed offset of one partition.

    `expire_timestamp_ms` is set by clients that send a retention time (OffsetCommit v2 to v4),
    otherwise NO_TIMESTAMP. `appended_at` is the log offset of the record.
    """

    offset: int
    leader_epoch: int
    metadata: str
    commit_timestamp_ms: int
    expire_timestamp_ms: int = NO_TIMESTAMP
    appended_at: int = -1


class GroupOffsets:
    """Committed, pending and transactional offsets."""

    __slots__ = ("committed", "deleted", "pending", "pending_transactional", "transactional")

    def __init__(self) -> None:
        self.committed: dict[TopicPartition, CommittedOffset] = {}
        self.pending: dict[TopicPartition, int] = {}
        # The tombstones of partitions whose commits were pending: the results of appends that are
        # committed together come in several turns of the loop.
        self.deleted: dict[TopicPartition, int] = {}
        # By producer id: the offsets of its ongoing transaction, and those being appended.
        self.transactional: dict[int, dict[TopicPartition, CommittedOffset]] = {}
        self.pending_transactional: dict[int, dict[TopicPartition, int]] = {}

    def __bool__(self) -> bool:
        return bool(
            self.committed or self.pending or self.transactional or self.pending_transactional
        )

    # Replay of records, after an append and while loading.

    def replay(self, partition: TopicPartition, value: CommittedOffset | None, at: int) -> None:
        """Replay a commit outside of transactions (or its tombstone) at log offset `at`.

        A tombstone also removes what was committed before it in transactions that are ongoing:
        compaction removes their records, too.
        """
        if value is None:
            for offsets in self.transactional.values():
                if partition in offsets and offsets[partition].appended_at < at:
                    del offsets[partition]
            if at != AFTER_ALL and self._is_pending(partition):
                self.deleted[partition] = max(at, self.deleted.get(partition, -1))
        elif self.deleted and self._is_deleted(partition, at):
            return
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
        """Replay a commit in a transaction; a commit marker makes it visible."""
        if value is not None:
            if not (self.deleted and self._is_deleted(partition, value.appended_at)):
                self.transactional.setdefault(producer_id, {})[partition] = value
        elif producer_id in self.transactional:
            self.transactional[producer_id].pop(partition, None)

    def replay_marker(self, producer_id: int, committed: bool) -> None:
        """The transaction of this producer ended: its offsets are committed or discarded."""
        for partition, value in self.transactional.pop(producer_id, {}).items():
            if committed:
                self.replay(partition, value, value.appended_at)

    def _is_deleted(self, partition: TopicPartition, at: int) -> bool:
        """Return whether the tombstone of a commit at log offset `at` was replayed before it."""
        deleted_at = self.deleted.get(partition)
        if deleted_at is None:
            return False
        if not self._is_pending(partition):
            del self.deleted[partition]  # this is the last one
        return deleted_at > at

    # Commits whose record is being appended.

    def begin(self, partitions: Iterable[TopicPartition], producer_id: int | None = None) -> None:
        pending = self._pending_of(producer_id)
        for partition in partitions:
            pending[partition] = pending.get(partition, 0) + 1

    def finish(self, partitions: Iterable[TopicPartition], producer_id: int | None = None) -> None:
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

    # Queries.

    def has_transaction(self, producer_id: int) -> bool:
        """Return whether a transaction of this producer has offsets or pending commits."""
        return producer_id in self.transactional or producer_id in self.pending_transactional

    def partitions(self) -> AbstractSet[TopicPartition]:
        """Return the partitions with an offset, in a transaction or pending commit too.

        The order is the same in each run.
        """
        in_transactions: list[Iterable[TopicPartition]] = [*self.transactional.values()]
        in_transactions += self.pending_transactional.values()
        return dict.fromkeys(chain(self.committed, self.pending, *in_transactions)).keys()

    def among(self, partitions: AbstractSet[TopicPartition]) -> set[TopicPartition]:
        """Return the partitions that have offsets, also in ongoing transactions or pending."""
        found = (self.committed.keys() & partitions) | (self.pending.keys() & partitions)
        for offsets in self.transactional.values():
            found |= offsets.keys() & partitions
        for pending in self.pending_transactional.values():
            found |= pending.keys() & partitions
        return found

    def before(
        self, partitions: AbstractSet[TopicPartition], end_offset: int
    ) -> tuple[list[TopicPartition], bool]:
        """Return the partitions whose offsets are all of records below `end_offset`.

        The offsets include those in ongoing transactions. The second value is whether more
        partitions may follow when pending commits and ongoing transactions end.
        """
        before = []
        is_pending = False
        for partition in self.among(partitions):
            is_before = [value.appended_at < end_offset for value in self.values_of(partition)]
            if self._is_pending(partition) or (any(is_before) and not all(is_before)):
                committed = self.committed.get(partition)
                # What was committed later replaces all that was before.
                is_pending |= committed is None or committed.appended_at < end_offset
            elif all(is_before):
                before.append(partition)
        return before, is_pending

    def _is_pending(self, partition: TopicPartition) -> bool:
        return partition in self.pending or any(
            partition in offsets for offsets in self.pending_transactional.values()
        )

    def values_of(self, partition: TopicPartition) -> list[CommittedOffset]:
        """Return the offset of the partition, and those in ongoing transactions."""
        found = [offsets.get(partition) for offsets in self.transactional.values()]
        return [value for value in (self.committed.get(partition), *found) if value is not None]

    def is_unstable(self, partition: TopicPartition) -> bool:
        """Return whether a commit of this partition is pending or in an ongoing transaction."""
        return self._is_pending(partition) or any(
            partition in offsets for offsets in self.transactional.values()
        )

    def expired(
        self,
        now_ms: int,
        retention_ms: int,
        *,
        base_timestamp_ms: int | None,
        subscribed_topics: frozenset[str],
        partitions: Iterable[TopicPartition] | None = None,
    ) -> list[TopicPartition]:
        """Return the partitions whose offset has expired and whose topic has no subscription.

        Without `partitions`, all are checked.

        The age counts from `base_timestamp_ms` (when the group became empty) or, when that is
        None, from each commit. An expiry time of the client overrides the broker's retention.
        """
        found = []
        for partition in self.committed if partitions is None else partitions:
            value = self.committed.get(partition)
            if value is None or partition.topic in subscribed_topics or self.is_unstable(partition):
                continue
            if value.expire_timestamp_ms != NO_TIMESTAMP:
                is_expired = now_ms >= value.expire_timestamp_ms
            else:
                base = value.commit_timestamp_ms if base_timestamp_ms is None else base_timestamp_ms
                is_expired = now_ms - base >= retention_ms
            if is_expired:
                found.append(partition)
        return found
