"""What the console shows of the groups of the cluster, whichever broker coordinates them."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from ottla.broker.observability.console.cluster_client import NoResponse
from ottla.broker.observability.console.groups_of_cluster import (
    SHARE,
    GroupRow,
    GroupView,
    MemberRow,
    describe_groups,
)
from ottla.broker.observability.console.share_views import share_state
from ottla.broker.observability.console.topic_views import page_start
from ottla.broker.security.authorization.acl_types import Operation, ResourceType
from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.protocol.messages.describe_configs import (
    DescribeConfigsRequest,
    DescribeConfigsResource,
    DescribeConfigsResponse,
)

if TYPE_CHECKING:
    from ottla.broker.observability.console.access import Viewer
    from ottla.broker.observability.console.cluster_client import ClusterClient
    from ottla.broker.observability.console.history import History

GROUPS_ON_A_PAGE = 50
# Points of the line in the list; the page of a group gets them all.
POINTS_IN_LIST = 60
# Partitions of one member on the page.
MAX_ASSIGNED = 200
MAX_OFFSETS = 1000
MAX_EVENTS = 200

_GROUP_RESOURCE = 32
_EVENTS = "ottla.group.events"


class GroupViews:
    """Lists and describes groups."""

    def __init__(self, client: ClusterClient, history: History) -> None:
        self._client = client
        self._history = history

    async def listed(self, search: str, first: int, viewer: Viewer) -> dict[str, Any]:
        """A page of the groups whose ids contain `search`. A `first` beyond the end gives the last
        page."""
        history = self._history
        await history.fresh()
        wanted = search.lower()
        names = [name for name in history.groups if wanted in name.lower()]
        first = page_start(first, len(names), GROUPS_ON_A_PAGE)
        shown = [history.groups[name] for name in names[first : first + GROUPS_ON_A_PAGE]]
        await history.fresh(each.group for each in shown)
        described, problems = await describe_groups(self._client, viewer, shown)
        return {
            "total": len(names),
            "first": first,
            "page": GROUPS_ON_A_PAGE,
            "groups": [self._row(each, described.get(each.group), viewer) for each in shown],
            "problems": list(dict.fromkeys([*problems, *history.problems])),
        }

    def _row(self, group: GroupRow, view: GroupView | None, viewer: Viewer) -> dict[str, Any]:
        history = self._history
        topics = sorted({partition.topic for partition in history.lags(group.group)})
        return {
            "group": group.group,
            "type": group.kind,
            "coordinator": group.coordinator,
            "state": group.state if view is None else view.state,
            "members": None if view is None else len(view.members),
            "topics": [each for each in topics if viewer.may_describe_topic(each)][:20],
            "lag": history.lag_points(group.group)[-POINTS_IN_LIST:],
            "lag_seconds": history.lag_seconds(group.group),
        }

    async def one(self, group_id: str, viewer: Viewer) -> dict[str, Any]:
        """One group: members with their assignments, offsets with lag, the lag of the last hour,
        what happened; of a share group, its records in flight (`share`)."""
        viewer.require(Operation.DESCRIBE, ResourceType.GROUP, group_id)
        history = self._history
        await history.fresh([group_id])
        group = await history.find_group(group_id)
        if group is not None and not history.is_sampled(group_id):
            await history.sample()
        if group is None:
            raise KafkaError(
                ErrorCode.GROUP_ID_NOT_FOUND, f"No broker coordinates a group {group_id[:249]}."
            )
        described, problems = await describe_groups(self._client, viewer, [group])
        view = described.get(group_id)
        share = None
        if group.kind == SHARE:
            share, more = await share_state(self._client, viewer, group_id)
            problems = [*problems, *more]
        events, reason = await self._events(group, viewer)
        members = [] if view is None else view.members
        return {
            **self._row(group, view, viewer),
            "protocol": "" if view is None else view.protocol,
            "member_rows": [_member(each, viewer) for each in members],
            "offsets": self._offsets(group_id, members, viewer),
            "lag": history.lag_points(group_id),
            "share": share,
            "events": events,
            "no_events": reason,
            "may": {
                "read": viewer.may(Operation.READ, ResourceType.GROUP, group_id),
                "delete": viewer.may(Operation.DELETE, ResourceType.GROUP, group_id),
            },
            "problems": problems,
        }

    def _offsets(
        self, group_id: str, members: list[MemberRow], viewer: Viewer
    ) -> list[dict[str, Any]]:
        owners = {
            partition: member.client or member.member
            for member in members
            for partition in member.partitions
        }
        return [
            {
                "topic": partition.topic,
                "partition": partition.partition,
                "offset": lag.committed,
                "end_offset": lag.end,
                "lag": lag.records,
                "lag_seconds": lag.seconds,
                "owner": owners.get(partition),
            }
            for partition, lag in sorted(self._history.lags(group_id).items())[:MAX_OFFSETS]
            if viewer.may_describe_topic(partition.topic)
        ]

    async def _events(self, group: GroupRow, viewer: Viewer) -> tuple[list[dict[str, Any]], str]:
        """What its coordinator noted, the newest first, and why there is nothing."""
        if not await self._client.is_ottla(group.coordinator):
            return [], f"Broker {group.coordinator}, its coordinator, is Kafka and keeps no events."
        request = DescribeConfigsRequest(
            [DescribeConfigsResource(_GROUP_RESOURCE, group.group, [_EVENTS])]
        )
        try:
            response = await self._client.ask(
                viewer, group.coordinator, request, DescribeConfigsResponse
            )
        except (NoResponse, KafkaError) as problem:
            return [], str(problem)
        (found,) = response.results
        if found.error_code or not found.configs:
            return [], found.error_message or "The coordinator returned no events."
        events = json.loads(found.configs[0].value or "[]")
        return [
            {
                "time_ms": event["timestamp_ms"],
                "kind": event["kind"],
                "generation": event["generation"],
                "member": event["member_id"],
                "reason": event["reason"],
            }
            for event in reversed(events[-MAX_EVENTS:])
        ], ""


def _member(member: MemberRow, viewer: Viewer) -> dict[str, Any]:
    """Partitions by topic, as far as the viewer may describe the topics."""
    by_topic: dict[str, list[int]] = {}
    for topic, index in member.partitions[:MAX_ASSIGNED]:
        by_topic.setdefault(topic, []).append(index)
    return {
        "member": member.member,
        "instance": member.instance,
        "client": member.client,
        "host": member.host,
        "assigned": len(member.partitions),
        "assignment": {
            topic: indexes
            for topic, indexes in by_topic.items()
            if viewer.may_describe_topic(topic)
        },
    }
