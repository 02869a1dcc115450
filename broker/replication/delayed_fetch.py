"""Reading one partition for a Fetch, and a Fetch that waits; mirrors Kafka's `DelayedFetch`."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator
from typing import TYPE_CHECKING, cast

from ottla.broker.purgatory.operation import DelayedOperation
from ottla.broker.replication.partition import (
    READ_COMMITTED,
    READ_LOG_END,
    READ_UNCOMMITTED,
    Partition,
)
from ottla.broker.replication.throttles import holds_back
from ottla.protocol.errors import KafkaError
from ottla.protocol.messages.fetch import AbortedTransaction, EpochEndOffset
from ottla.protocol.uuids import ZERO_UUID
from ottla.storage.errors import OffsetOutOfRange

if TYPE_CHECKING:
    from ottla.broker.quotas.replication_quotas import ReplicationQuota
    from ottla.broker.replication.fetch_sessions import FetchItem, PartitionKey
    from ottla.protocol.messages.fetch import PartitionData
    from ottla.storage.log.log import Log


class FetchParams:
    """The parameters of a Fetch request that hold for all its partitions."""

    __slots__ = (
        "client_rack",
        "hard_limit",
        "is_follower",
        "isolation",
        "leader_only",
        "max_bytes",
        "max_wait_ms",
        "min_bytes",
        "only_news",
        "replica_epoch",
        "replica_id",
    )

    def __init__(self, replica_id: int = -1, replica_epoch: int = -1) -> None:
        """`replica_id` is the broker id of a follower, -1 for a consumer."""
        self.replica_id = replica_id
        self.replica_epoch = replica_epoch
        self.is_follower = replica_id >= 0
        self.max_wait_ms = 0
        self.min_bytes = 0
        self.max_bytes = 0
        #: READ_UNCOMMITTED, READ_COMMITTED, or READ_LOG_END for followers (see partition.py).
        self.isolation = 0
        #: Up to version 2 a batch larger than the limit is cut; later, the first one is complete.
        self.hard_limit = False
        #: Consumers of version 11 and up may read from a follower (KIP-392).
        self.leader_only = True
        self.client_rack = ""
        #: A follower's incremental fetch session: partitions without news are not in the response.
        self.only_news = False


class DelayedFetch(DelayedOperation):
    """Completes when

    A. a partition was deleted, has another leader or leader epoch, or is offline;
    B. the fetch offset is out of range (the log was truncated or its records deleted meanwhile);
    C. the partitions together have `min_bytes` to read;
    D. what a partition has to read is in a segment before the end: a read ends with its segment,
       so that waiting adds nothing;
    E. `max_wait_ms` have passed.

    What the leader's replication quota (KIP-73) holds back is not waited for (C, D).

    In each case the partitions are read again for the response: all of them after E., otherwise
    those with news, if these are known. A session with a watch knows them always.
    """

    __slots__ = (
        "_callback",
        "_changed",
        "_items",
        "_news",
        "_params",
        "_partition_of",
        "_readable",
        "_size",
        "throttle",
    )

    def __init__(
        self,
        params: FetchParams,
        items: dict[PartitionKey, FetchItem],
        partition_of: Callable[[PartitionKey], Partition | None],
        callback: Callable[[Iterable[PartitionKey] | None], None],
        *,
        changed: Iterable[PartitionKey] | None = None,
        news: Iterable[PartitionKey] | None = None,
    ) -> None:
        """`changed`: the partitions that may have something to read when the wait begins; None:
        all. `news`: the partitions that may have changed since the last response of the session,
        in the order in which they are read; None: not known. The callback gets them with those
        that have changed meanwhile.
        """
        super().__init__(params.max_wait_ms)
        self._params = params
        self._items = items
        self._changed = items if changed is None else changed
        self._partition_of = partition_of
        self._callback = callback
        self._news = None if news is None else dict.fromkeys(news)
        # What each partition had to read when it was checked last, and the sum.
        self._readable: dict[PartitionKey, int] = {}
        self._size = 0
        #: The quota for followers, if a follower waits.
        self.throttle: ReplicationQuota | None = None

    def try_complete_for(self, key: Hashable) -> bool:
        changed = cast("PartitionKey", key)
        if self._news is not None:
            self._news[changed] = None
        # It may wait for thousands of partitions: the others are as they were.
        return self._check((changed,))

    def try_complete(self) -> bool:
        return self._check(self._changed)

    def _check(self, keys: Iterable[PartitionKey]) -> bool:
        params = self._params
        for key in keys:
            item, partition = self._items[key], self._partition_of(key)
            if partition is None:
                return self.force_complete()  # A
            try:
                log = partition.log_for(item.current_leader_epoch, params.leader_only)
            except KafkaError:
                return self.force_complete()  # A
            offset, offsets = item.fetch_offset, log.offsets
            bound = read_bound(log, params.isolation)
            if bound > offset and not (
                self.throttle is not None
                and holds_back(self.throttle, params.replica_id, partition)
            ):
                if params.min_bytes <= 1:
                    return self.force_complete()  # C: a record is at least a byte.
                try:
                    size, is_older = _readable(log, item, bound)
                except OffsetOutOfRange:
                    return self.force_complete()  # B
                if is_older:
                    return self.force_complete()  # D
                self._size += size - self._readable.get(key, 0)
                self._readable[key] = size
                if self._size >= params.min_bytes:
                    return self.force_complete()  # C
            if offset > offsets.log_end_offset or offset < offsets.local_log_start_offset:
                return self.force_complete()  # B
        return False

    def expire(self) -> None:
        # Not every change is one that a fetch waits for, such as retention.
        self._news = None
        super().expire()

    def on_complete(self) -> None:
        self._callback(self._news)


def read_bound(log: Log, isolation: int) -> int:
    """The offset below which a reader with this isolation level may read."""
    offsets = log.offsets
    if isolation == READ_LOG_END:
        return offsets.log_end_offset
    if isolation == READ_COMMITTED:
        return offsets.last_stable_offset
    return offsets.high_watermark


def with_news(
    items: Iterable[FetchItem],
    partition_of: Callable[[PartitionKey], Partition | None],
    params: FetchParams,
    now_ms: int | None,
    news: dict[PartitionKey, None] | None = None,
) -> Iterator[FetchItem | None]:
    """Yield the items of a follower's incremental session that are read; None between topics.

    A follower fetches thousands of partitions at a time, and most of them have nothing new. Left
    out are those whose read would have nothing for the response and for the leader: the follower
    is in the ISR and has every record, all of them are committed, and the last response of the
    session had the same offsets. Its fetch counts as one at the log end offset then, unless
    `now_ms` is None. Each item is compared when it is its turn. `news` has the items that were
    not left out when they were compared last.
    """
    replica_id, replica_epoch = params.replica_id, params.replica_epoch
    topic: str | None = None
    for item in items:
        if item.topic is not topic:
            topic = item.topic
            yield None
        if item.is_settled:
            partition, end_offset = partition_of(item.key), item.fetch_offset
            if (
                partition is not None
                and (log := partition.log) is not None
                and (follower := partition.followers.get(replica_id)) is not None
                and partition.is_leader
                and not partition.offline
                and partition.leader_epoch == item.current_leader_epoch
                and item.topic_id in (partition.topic_id, ZERO_UUID)
                and replica_id in partition.isr
                and (offsets := log.offsets).log_end_offset == end_offset
                and offsets.high_watermark == item.returned_high_watermark == end_offset
                and offsets.first_unstable_offset is None
                and item.returned_last_stable_offset == end_offset
                and offsets.log_start_offset == item.returned_log_start_offset
                and follower.log_end_offset == end_offset
                and follower.log_start_offset == item.log_start_offset
                and follower.broker_epoch == replica_epoch
            ):
                if now_ms is not None:
                    # The progress of thousands of partitions: the offsets are what they were.
                    follower.last_caught_up_ms = follower.last_fetch_ms = now_ms
                    follower.last_fetch_leader_end_offset = end_offset
                if news is not None:
                    news.pop(item.key, None)
                continue
        if news is not None:
            news[item.key] = None
        yield item


def diverges(partition: Partition, log: Log, item: FetchItem, data: PartitionData) -> bool:
    """Whether the last fetched epoch diverges (KIP-595); sets the diverging epoch in `data`."""
    epoch, end_offset = partition.end_offset_for_epoch(log, item.last_fetched_epoch)
    if epoch < 0 or end_offset < 0 or item.fetch_offset < log.offsets.log_start_offset:
        raise OffsetOutOfRange(
            str(partition.key), item.fetch_offset, log.log_start_offset, log.log_end_offset
        )
    if epoch < item.last_fetched_epoch or end_offset < item.fetch_offset:
        data.diverging_epoch = EpochEndOffset(epoch, end_offset)
        return True
    return False


def read_records(
    log: Log,
    params: FetchParams,
    item: FetchItem,
    data: PartitionData,
    left: int,
    is_first: bool,
) -> int:
    """Add records and aborted transactions to `data`, which has the offsets; return the bytes.

    `left` bytes remain of the limit of the request. The errors are those of `Log.read`.
    """
    limit = max(0, min(item.partition_max_bytes, left))
    is_uncommitted = params.isolation == READ_UNCOMMITTED
    read = log.read(
        item.fetch_offset,
        limit,
        up_to=data.high_watermark if is_uncommitted else read_bound(log, params.isolation),
        min_one_batch=is_first or params.hard_limit,
        read_committed=params.isolation == READ_COMMITTED,
    )
    if params.isolation == READ_COMMITTED:
        data.aborted_transactions = [
            AbortedTransaction(producer_id, first_offset)
            for producer_id, first_offset in read.aborted_transactions
        ]
    records = read.slice
    if records is not None and params.hard_limit:
        # Clients of these versions (0 to 2) learn from an incomplete message that their limit is
        # too low; without one they ask for ever, as they do for records that have to be converted,
        # in Kafka too.
        records = records.part(0, min(limit, records.length))
    if records is None or not records.length:
        return 0
    data.records = records
    return records.length


def _readable(log: Log, item: FetchItem, bound: int) -> tuple[int, bool]:
    """(bytes that can be read, whether they are in a segment before that of `bound`)."""
    read = log.read(item.fetch_offset, item.partition_max_bytes, up_to=bound, min_one_batch=True)
    if read.slice is None:
        return 0, False
    is_older = log.is_older_segment(read.first_batch_base_offset, bound)
    return min(read.slice.length, item.partition_max_bytes), is_older
