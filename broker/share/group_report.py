"""What this broker has of one share group, for the console: its share partitions and counts.

A broker reports only the partitions that it leads; the console adds up what all brokers report.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from ottla.broker.share.persister import RecordState
from ottla.broker.share.statistics import ACKNOWLEDGE_TYPES

if TYPE_CHECKING:
    from ottla.broker.share.share_partition import SharePartition
    from ottla.broker.share.share_partitions import HostedPartition, SharePartitions

# The text is one value of a DescribeConfigs response, with some 150 bytes for a partition.
MAX_PARTITIONS = 1000


def report(partitions: SharePartitions, group_id: str, now_ms: int) -> str:
    """JSON: `partitions`, the first MAX_PARTITIONS in order, and `counts` since this broker
    started, None if it has not delivered a record of the group."""
    rows = sorted(partitions.of_group(group_id), key=lambda hosted: hosted.partition.key)
    lock_ms = partitions.settings.limits(group_id).lock_duration_ms
    counts = partitions.statistics.groups.get(group_id)
    return json.dumps(
        {
            "partitions": [_row(each, lock_ms, now_ms) for each in rows[:MAX_PARTITIONS]],
            "counts": counts
            and {
                "delivered": counts.delivered,
                "redelivered": counts.redelivered,
                "expired_locks": counts.expired_locks,
                "acknowledged": {
                    name: counts.acknowledged[kind] for kind, name in ACKNOWLEDGE_TYPES.items()
                },
            },
        }
    )


def _row(hosted: HostedPartition, lock_ms: int, now_ms: int) -> dict[str, Any]:
    topic, index = hosted.partition.key
    row: dict[str, Any] = {"topic": topic, "partition": index, "leader_epoch": hosted.leader_epoch}
    if hosted.state is not None:
        row |= _in_flight(hosted.state, lock_ms, now_ms)
    return row


def _in_flight(state: SharePartition, lock_ms: int, now_ms: int) -> dict[str, Any]:
    """`oldest_lock_ms` is the time since the records that are locked longest were acquired, or
    their lock was renewed."""
    acquired = [each for each in state.window.batches if each.state == RecordState.ACQUIRED]
    deadline_ms = state.next_deadline_ms()
    return {
        "start_offset": state.window.start_offset,
        "end_offset": state.window.end_offset,
        "in_flight": state.window.in_flight_records,
        "locked": sum(each.count for each in acquired),
        "members": len({each.member_id for each in acquired}),
        "oldest_lock_ms": (None if deadline_ms is None else max(0, now_ms + lock_ms - deadline_ms)),
        "most_deliveries": max(
            (each.delivery_count for each in state.window.batches if not each.is_terminal),
            default=0,
        ),
    }
