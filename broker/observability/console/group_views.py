"""What the console shows of the groups that this broker coordinates."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ottla.broker.security.authorization.acl_types import Operation, ResourceType
from ottla.protocol.errors import ErrorCode, KafkaError

if TYPE_CHECKING:
    from ottla.broker.groups.classic.member import Member
    from ottla.broker.groups.consumer.member import ConsumerMember
    from ottla.broker.groups.log.partition import AnyGroup
    from ottla.broker.observability.console.access import Viewer
    from ottla.broker.observability.console.console_parts import ConsoleParts
    from ottla.broker.observability.console.history import History

MAX_GROUPS = 500
MAX_MEMBERS = 500
MAX_PARTITIONS = 2000
# Points of the sparkline in the list; the page of a group gets them all.
POINTS_IN_LIST = 60


def groups(parts: ConsoleParts, history: History, search: str, viewer: Viewer) -> dict[str, Any]:
    """The groups whose ids hold `search` and that may be described."""
    found = [
        each
        for each in parts.groups.admin.all_groups()
        if search.lower() in each.group_id.lower() and viewer.may_describe_group(each.group_id)
    ]
    found.sort(key=lambda each: each.group_id)
    return {
        "total": len(found),
        "groups": [
            {
                **_row(each, viewer),
                "lag": history.lag_points(each.group_id)[-POINTS_IN_LIST:],
                "lag_seconds": history.lag_seconds(each.group_id),
            }
            for each in found[:MAX_GROUPS]
        ],
    }


def _row(group: AnyGroup, viewer: Viewer) -> dict[str, Any]:
    topics = {partition.topic for partition in group.offsets.committed}
    return {
        "group": group.group_id,
        "type": group.kind,
        "state": group.state.value,
        "members": len(group.members),
        "topics": sorted(filter(viewer.may_describe_topic, topics))[:20],
    }


def _members(group: AnyGroup) -> list[Member | ConsumerMember]:
    return [*group.members.values()]


def group(parts: ConsoleParts, history: History, group_id: str, viewer: Viewer) -> dict[str, Any]:
    """One group: members, offsets with lag, the lag of the last hour, what happened."""
    viewer.require(Operation.DESCRIBE, ResourceType.GROUP, group_id)
    coordinator = parts.groups
    found = next(
        (each for each in coordinator.admin.all_groups() if each.group_id == group_id), None
    )
    if found is None:
        raise KafkaError(
            ErrorCode.GROUP_ID_NOT_FOUND,
            f"This broker coordinates no group {group_id[:249]}; another one may.",
        )
    lags = history.lags(group_id)
    return {
        **_row(found, viewer),
        "member_rows": [
            {
                "member": member.member_id,
                "instance": member.instance_id,
                "client": member.client_id,
                "host": member.client_host,
            }
            for member in _members(found)[:MAX_MEMBERS]
        ],
        "offsets": [
            {
                "topic": partition.topic,
                "partition": partition.partition,
                "offset": value.offset,
                "lag": lags.get(partition, (None, None))[0],
                "lag_seconds": lags.get(partition, (None, None))[1],
                "committed_ms": value.commit_timestamp_ms,
            }
            for partition, value in sorted(found.offsets.committed.items())[:MAX_PARTITIONS]
            if viewer.may_describe_topic(partition.topic)
        ],
        "lag": history.lag_points(group_id),
        "events": [
            {
                "time_ms": event.timestamp_ms,
                "kind": event.kind,
                "generation": event.generation,
                "member": event.member_id,
                "reason": event.reason,
            }
            for event in reversed(coordinator.events.of(group_id))
        ],
    }
