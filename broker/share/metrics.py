"""The metrics of share partitions and share sessions; those of members are the coordinator's."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ottla.broker.share.statistics import ACKNOWLEDGE_TYPES

if TYPE_CHECKING:
    from ottla.broker.metrics.statistics import MetricsRegistry, Reading
    from ottla.broker.share.sessions import ShareSessions
    from ottla.broker.share.share_partitions import SharePartitions


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
