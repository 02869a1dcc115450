"""Metrics of share groups: share partitions, sessions, deliveries, acknowledgements, ended locks.

The group coordinator has the metrics of their members.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ottla.broker.metrics.statistics import MetricsRegistry, Reading
    from ottla.broker.share.persister import SharePartitionKey
    from ottla.broker.share.sessions import ShareSessions
    from ottla.broker.share.share_partitions import SharePartitions

from collections.abc import Iterable

from ottla.broker.share.acquisition import AcquiredRecords
from ottla.broker.share.share_partition import Acknowledgement, AcknowledgeType

#: The labels of the acknowledgement types, by number.
ACKNOWLEDGE_TYPES = {
    AcknowledgeType.GAP: "gap",
    AcknowledgeType.ACCEPT: "accept",
    AcknowledgeType.RELEASE: "release",
    AcknowledgeType.REJECT: "reject",
    AcknowledgeType.RENEW: "renew",
}

# Groups beyond are counted together: Prometheus keeps each series in its memory.
MAX_GROUPS = 1000
OTHER_GROUPS = "(other groups)"


# Share partitions of a group that are remembered, to see whether it still exists.
MAX_KEYS = 16


class GroupCounts:
    """Records of one group."""

    __slots__ = (
        *("acknowledged", "check_at_ms", "delivered", "expired_locks", "idle_since_ms"),
        *("keys", "redelivered"),
    )

    def __init__(self) -> None:
        #: Share partitions that were counted, MAX_KEYS at most; none for OTHER_GROUPS.
        self.keys: set[SharePartitionKey] = set()
        #: Since when no member was seen here, and when to see next whether the group exists.
        self.idle_since_ms: int | None = None
        self.check_at_ms = 0
        self.delivered = 0
        self.redelivered = 0
        self.expired_locks = 0
        #: By the number of the acknowledgement type.
        self.acknowledged = [0] * len(ACKNOWLEDGE_TYPES)


class ShareStatistics:
    """The counts of the groups whose share partitions this broker leads."""

    def __init__(self) -> None:
        self.groups: dict[str, GroupCounts] = {}

    def _of(self, key: SharePartitionKey) -> GroupCounts:
        counts = self.groups.get(key.group_id)
        if counts is None:
            if len(self.groups) >= MAX_GROUPS:
                return self.groups.setdefault(OTHER_GROUPS, GroupCounts())
            counts = self.groups[key.group_id] = GroupCounts()
        counts.idle_since_ms = None
        if len(counts.keys) < MAX_KEYS:
            counts.keys.add(key)
        return counts

    def forget(self, group_id: str) -> None:
        """The group is deleted, and its series end. They begin at 0 when it is created again,
        which is a reset for Prometheus."""
        self.groups.pop(group_id, None)

    def delivered(self, key: SharePartitionKey, acquired: Iterable[AcquiredRecords]) -> None:
        """A member has acquired these records; a delivery count above 1 is a redelivery."""
        counts = self._of(key)
        for first, last, delivery_count in acquired:
            records = last - first + 1
            counts.delivered += records
            if delivery_count > 1:
                counts.redelivered += records

    def acknowledged(
        self, key: SharePartitionKey, acknowledgements: Iterable[Acknowledgement]
    ) -> None:
        """These acknowledgements were accepted, and are durable."""
        counts = self._of(key).acknowledged
        for first, last, types in acknowledgements:
            if len(types) == 1:
                counts[types[0]] += last - first + 1
                continue
            for kind in types:
                counts[kind] += 1

    def locks_expired(self, key: SharePartitionKey, records: int) -> None:
        """Count records whose acquisition locks expired."""
        self._of(key).expired_locks += records


def add_share_partitions(
    registry: MetricsRegistry, partitions: SharePartitions, sessions: ShareSessions
) -> None:
    """Share partitions, in-flight records, deliveries and acknowledgements, by group."""
    counts = partitions.statistics.groups

    registry.gauge(
        "ottla_share_partitions",
        "Share partitions that this broker leads and has loaded or is loading.",
        lambda: len(partitions),
    )
    registry.gauge("ottla_share_sessions", "Share sessions of this broker.", lambda: len(sessions))
    registry.gauge(
        "ottla_share_in_flight_records",
        "Records between the start offset and the end of the share partitions of a group, of "
        "partitions led here.",
        lambda: {(group,): records for group, records in partitions.in_flight_records().items()},
        "group",
    )
    registry.counter(
        "ottla_share_delivered_records",
        "Records that members of a share group acquired, of partitions led here.",
        lambda: {(group,): each.delivered for group, each in counts.items()},
        "group",
    )
    registry.counter(
        "ottla_share_redelivered_records",
        "Those of them that had been delivered before.",
        lambda: {(group,): each.redelivered for group, each in counts.items()},
        "group",
    )
    registry.counter(
        "ottla_share_expired_locks",
        "Records that were not acknowledged before their acquisition lock ended.",
        lambda: {(group,): each.expired_locks for group, each in counts.items()},
        "group",
    )

    def acknowledged() -> Reading:
        return {
            (group, name): each.acknowledged[kind]
            for group, each in counts.items()
            for kind, name in ACKNOWLEDGE_TYPES.items()
        }

    registry.counter(
        "ottla_share_acknowledged_records",
        "Acknowledgements of records by type: accept, release, reject, renew, and gap for an "
        "offset without a record.",
        acknowledged,
        "group",
        "type",
    )
