"""Partitions of a follower's incremental fetch session in which nothing has happened (KIP-227).

A follower fetches thousands of partitions at a time, and most of them have nothing new. The
response leaves them out, so the leader does not read them: it compares a few numbers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, TypeAlias, cast

if TYPE_CHECKING:
    from ottla.broker.replication.delayed_fetch import FetchParams, PartitionKey
    from ottla.broker.replication.fetch_sessions import (
        FetchItem,
        FetchPosition,
        SessionPartition,
    )
    from ottla.broker.replication.partition import Partition
    from ottla.broker.replication.replica import FollowerReplica

# Parameters, partition, follower, position, the leader's log end offset, now in ms.
RecordFetch: TypeAlias = (
    "Callable[[FetchParams, Partition, FollowerReplica, FetchPosition, int, int], None]"
)


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
        topic, _, position = item
        partition = partition_of((topic, position.partition))
        if (
            partition is None
            or not position.is_settled
            or not partition.is_leader
            or partition.offline
            or partition.leader_epoch != position.current_leader_epoch
        ):
            yield item
            continue
        follower, log = partition.followers.get(replica_id), partition.log
        if follower is None or log is None:
            yield item
            continue
        offsets, end_offset = log.offsets, position.fetch_offset
        if not (
            offsets.log_end_offset == end_offset
            and offsets.high_watermark == end_offset
            and offsets.first_unstable_offset is None
            and offsets.log_start_offset == position.returned_log_start_offset
            and position.returned_high_watermark == end_offset
            and position.returned_last_stable_offset == end_offset
            and follower.log_end_offset == end_offset
            and follower.log_start_offset == position.log_start_offset
            and follower.broker_epoch == replica_epoch
            and replica_id in partition.isr
        ):
            yield item
        elif now_ms is not None:
            follower.record_fetch(end_offset, position.log_start_offset, end_offset, now_ms)


def record_caught_up(
    items: list[FetchItem],
    partition_of: Callable[[PartitionKey], Partition | None],
    params: FetchParams,
    now_ms: int,
    record: RecordFetch,
) -> bool:
    """Whether the fetch of an incremental session has to wait because the follower has every
    record; if so, its progress is recorded. It is the usual one, and needs no rows of a response.

    If not, the fetch is read: that records once more what was recorded here, to no effect.
    """
    if not items or params.max_wait_ms <= 0 or params.min_bytes <= 0:
        return False
    replica_id, replica_epoch = params.replica_id, params.replica_epoch
    settled = cast("Iterable[tuple[str | None, bytes, SessionPartition]]", items)
    for topic, _, position in with_news(settled, partition_of, params, now_ms):
        partition = partition_of((topic, position.partition))
        if partition is None or not partition.is_leader or partition.offline:
            return False
        follower, log = partition.followers.get(replica_id), partition.log
        if follower is None or log is None:
            return False
        offsets, end_offset = log.offsets, position.fetch_offset
        epoch = partition.leader_epoch
        if (
            offsets.log_end_offset != end_offset
            or offsets.local_log_start_offset > end_offset
            or position.current_leader_epoch != epoch
            or position.last_fetched_epoch not in (epoch, -1)
            or replica_epoch < follower.broker_epoch
        ):
            return False
        record(params, partition, follower, position, end_offset, now_ms)
    return True
