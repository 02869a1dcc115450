"""Partitions of a follower's incremental fetch session in which nothing has happened (KIP-227).

A follower fetches thousands of partitions at a time, and most of them have nothing new. The
response leaves them out, so the leader does not read them: it compares a few numbers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Protocol, cast

from ottla.protocol.uuids import ZERO_UUID

if TYPE_CHECKING:
    from ottla.broker.purgatory.purgatory import Purgatory
    from ottla.broker.replication.delayed_fetch import FetchParams, PartitionKey
    from ottla.broker.replication.fetch_sessions import (
        FetchItem,
        FetchPosition,
        SessionPartition,
    )
    from ottla.broker.replication.isr import IsrManager
    from ottla.broker.replication.partition import FollowerReplica, Partition


class Replicas(Protocol):
    """What is needed of a ReplicaManager."""

    partitions: dict[PartitionKey, Partition]
    isr_manager: IsrManager | None
    delete_records_purgatory: Purgatory[Any]

    def complete_delayed_requests(self, partition: Partition) -> None: ...


def with_news(
    items: Iterable[tuple[str | None, bytes, SessionPartition]],
    partition_of: Callable[[PartitionKey], Partition | None],
    params: FetchParams,
    now_ms: int | None,
) -> Iterator[FetchItem]:
    """The items of an incremental session that are read; each is checked when it is its turn.

    Left out are those whose read would have nothing for the response and for the leader: the
    follower is in the ISR and has every record, all of them are committed, and the last response
    of the session had the same offsets. Its fetch counts as one at the log end offset then, unless
    `now_ms` is None.
    """
    replica_id, replica_epoch = params.replica_id, params.replica_epoch
    for item in items:
        topic, topic_id, position = item
        partition, end_offset = partition_of((topic, position.partition)), position.fetch_offset
        if (
            position.is_settled
            and partition is not None
            and (log := partition.log) is not None
            and (follower := partition.followers.get(replica_id)) is not None
            and partition.is_leader
            and not partition.offline
            and partition.leader_epoch == position.current_leader_epoch
            and topic_id in (partition.topic_id, ZERO_UUID)
            and replica_id in partition.isr
            and (offsets := log.offsets).log_end_offset == end_offset
            and offsets.high_watermark == position.returned_high_watermark == end_offset
            and offsets.first_unstable_offset is None
            and position.returned_last_stable_offset == end_offset
            and offsets.log_start_offset == position.returned_log_start_offset
            and follower.log_end_offset == end_offset
            and follower.log_start_offset == position.log_start_offset
            and follower.broker_epoch == replica_epoch
        ):
            if now_ms is not None:
                # `record_fetch` for thousands of partitions: the offsets are what they were.
                follower.last_caught_up_ms = follower.last_fetch_ms = now_ms
                follower.last_fetch_leader_end_offset = end_offset
        else:
            yield item


def items_of(
    keys: Iterable[PartitionKey], positions: Mapping[PartitionKey, FetchPosition]
) -> list[FetchItem]:
    """The items of some partitions of an incremental session."""
    session = cast("Mapping[PartitionKey, SessionPartition]", positions)
    return [(key[0], session[key].topic_id, session[key]) for key in keys]


def record_caught_up(
    manager: Replicas, params: FetchParams, items: list[FetchItem], now_ms: int
) -> list[PartitionKey] | None:
    """Records the progress of a follower that has every record, so that its fetch has to wait: the
    usual fetch of an incremental session, which needs no rows of a response.

    Returns the partitions that may have news for the response (`with_news`), or None if the fetch
    has to be read: that records once more what was recorded here, to no effect.
    """
    if not items or params.max_wait_ms <= 0 or params.min_bytes <= 0:
        return None
    news: list[PartitionKey] = []
    replica_id, replica_epoch = params.replica_id, params.replica_epoch
    partition_of = manager.partitions.get
    settled = cast("Iterable[tuple[str | None, bytes, SessionPartition]]", items)
    for topic, topic_id, position in with_news(settled, partition_of, params, now_ms):
        partition = partition_of((topic, position.partition))
        if partition is None or not partition.is_leader or partition.offline:
            return None
        if topic_id not in (partition.topic_id, ZERO_UUID):
            return None
        follower, log = partition.followers.get(replica_id), partition.log
        if follower is None or log is None:
            return None
        offsets, end_offset = log.offsets, position.fetch_offset
        epoch = partition.leader_epoch
        if (
            offsets.log_end_offset != end_offset
            or offsets.local_log_start_offset > end_offset
            or position.current_leader_epoch != epoch
            or position.last_fetched_epoch not in (epoch, -1)
            or replica_epoch < follower.broker_epoch
        ):
            return None
        record_fetch(manager, params, partition, follower, position, end_offset, now_ms)
        news.append((topic, position.partition))
    return news


def record_fetch(
    manager: Replicas,
    params: FetchParams,
    partition: Partition,
    follower: FollowerReplica,
    position: FetchPosition,
    end_offset: int,
    now_ms: int,
) -> None:
    """The follower has the records below its fetch offset; `end_offset` is that of the leader
    before the read. Moves the high watermark and completes what has waited for that."""
    follower.broker_epoch = params.replica_epoch
    before, start_before = follower.log_end_offset, follower.log_start_offset
    follower.record_fetch(position.fetch_offset, position.log_start_offset, end_offset, now_ms)
    if manager.isr_manager is not None and follower.broker_id not in partition.maximal_isr:
        manager.isr_manager.maybe_expand(partition, follower)
    log, moved = partition.log, follower.log_end_offset != before
    # Also when it has everything: the replica that the high watermark waited for may be gone
    # since the last fetch (a broker that stops), and nothing else may be appended.
    if (
        moved or (log is not None and log.offsets.high_watermark < follower.log_end_offset)
    ) and partition.maybe_increment_high_watermark():
        manager.complete_delayed_requests(partition)
    if follower.log_start_offset != start_before:
        manager.delete_records_purgatory.check_and_complete(partition.key)
