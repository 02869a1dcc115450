"""Partitions of a follower's incremental fetch session in which nothing has happened (KIP-227).

A follower fetches thousands of partitions at a time, and most of them have nothing new. The
response leaves them out, so the leader does not read them: it compares a few numbers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, cast

if TYPE_CHECKING:
    from ottla.broker.replication.delayed_fetch import FetchParams, PartitionKey
    from ottla.broker.replication.fetch_sessions import (
        FetchItem,
        FetchPosition,
        FetchResult,
        SessionPartition,
    )
    from ottla.broker.replication.partition import Partition


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
        partition, end_offset = partition_of((topic, position.partition)), position.fetch_offset
        if (
            position.is_settled
            and partition is not None
            and (log := partition.log) is not None
            and (follower := partition.followers.get(replica_id)) is not None
            and partition.is_leader
            and not partition.offline
            and partition.leader_epoch == position.current_leader_epoch
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


def first_news(
    results: Iterable[FetchResult],
    changed: Iterable[PartitionKey],
    positions: Mapping[PartitionKey, FetchPosition],
) -> list[PartitionKey]:
    """The partitions that were read, and those that changed meanwhile: all that may have news.

    `changed`, because what a read completes may append to a partition that was left out before.
    """
    read = [(topic, data.partition_index) for topic, _, data in results]
    return [key for key in (*read, *changed) if key in positions]


def items_of(
    keys: Iterable[PartitionKey], positions: Mapping[PartitionKey, FetchPosition]
) -> list[FetchItem]:
    """The items of some partitions of an incremental session."""
    session = cast("Mapping[PartitionKey, SessionPartition]", positions)
    return [(key[0], session[key].topic_id, session[key]) for key in keys]
