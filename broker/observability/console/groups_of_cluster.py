"""The groups of all coordinators: lists, members, committed offsets."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice
from typing import TYPE_CHECKING, NamedTuple

from ottla.protocol.consumer_protocol import assigned_partitions
from ottla.protocol.errors import ErrorCode, error_name
from ottla.protocol.messages.consumer_group_describe import (
    ConsumerGroupDescribeRequest,
    ConsumerGroupDescribeResponse,
)
from ottla.protocol.messages.describe_groups import DescribeGroupsRequest, DescribeGroupsResponse
from ottla.protocol.messages.list_groups import ListGroupsRequest, ListGroupsResponse
from ottla.protocol.messages.offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchResponse,
)
from ottla.protocol.topics import TopicPartition

if TYPE_CHECKING:
    from ottla.broker.observability.console.access import Viewer
    from ottla.broker.observability.console.cluster_client import ClusterClient

# More than these are not listed: a row has some 200 bytes.
MAX_LISTED = 20_000
# Of one group; a page shows less.
MAX_MEMBERS = 500
MAX_OFFSETS = 2000


class GroupRow(NamedTuple):
    """A group as its coordinator lists it."""

    group: str
    coordinator: int
    state: str
    kind: str  # "classic" or "consumer"


class MemberRow(NamedTuple):
    """A member with what it was assigned."""

    member: str
    instance: str | None
    client: str
    host: str
    partitions: list[TopicPartition]


class GroupView(NamedTuple):
    """`protocol` is the name of the assignor."""

    state: str
    protocol: str
    members: list[MemberRow]


async def list_groups(
    client: ClusterClient, viewer: Viewer
) -> tuple[dict[str, GroupRow], list[str]]:
    """The groups that the viewer may describe, by id in order, and who did not respond."""
    request = ListGroupsRequest()
    gathered = await client.ask_each(
        viewer, dict.fromkeys(client.brokers(), request), ListGroupsResponse
    )
    found: dict[str, GroupRow] = {}
    problems = list(gathered.problems)
    for broker_id, response in sorted(gathered.responses.items()):
        if response.error_code == ErrorCode.COORDINATOR_NOT_AVAILABLE:
            continue  # it has never been a coordinator
        if response.error_code:
            problems.append(
                f"Broker {broker_id} lists no groups: {error_name(response.error_code)}."
            )
        for row in response.groups:
            kind = (row.group_type or "classic").lower()
            found[row.group_id] = GroupRow(row.group_id, broker_id, row.group_state, kind)
    names = sorted(found)
    if len(names) > MAX_LISTED:
        problems.append(f"{len(names) - MAX_LISTED} groups are left out.")
    return {name: found[name] for name in names[:MAX_LISTED]}, problems


async def committed_offsets(
    client: ClusterClient, viewer: Viewer, groups: Sequence[GroupRow]
) -> tuple[dict[str, dict[TopicPartition, int]], list[str]]:
    """The committed offsets by group and partition, as far as the viewer may describe the topics;
    one request for each coordinator."""
    requests: dict[int, OffsetFetchRequest] = {}
    for group in groups:
        request = requests.setdefault(group.coordinator, OffsetFetchRequest(groups=[]))
        request.groups.append(OffsetFetchRequestGroup(group_id=group.group, topics=None))
    gathered = await client.ask_each(viewer, requests, OffsetFetchResponse)
    found: dict[str, dict[TopicPartition, int]] = {}
    for response in gathered.responses.values():
        for row in response.groups:
            if row.error_code:
                continue
            offsets = (
                (TopicPartition(topic.name, each.partition_index), each.committed_offset)
                for topic in row.topics
                for each in topic.partitions
                if not each.error_code and each.committed_offset >= 0
            )
            found[row.group_id] = dict(islice(offsets, MAX_OFFSETS))
    return found, gathered.problems


async def describe_groups(
    client: ClusterClient, viewer: Viewer, groups: Sequence[GroupRow]
) -> tuple[dict[str, GroupView], list[str]]:
    """State, assignor and members of groups of either protocol."""
    classic: dict[int, DescribeGroupsRequest] = {}
    consumer: dict[int, ConsumerGroupDescribeRequest] = {}
    for group in groups:
        if group.kind == "consumer":
            newer = consumer.setdefault(group.coordinator, ConsumerGroupDescribeRequest([]))
            newer.group_ids.append(group.group)
        else:
            older = classic.setdefault(group.coordinator, DescribeGroupsRequest([]))
            older.groups.append(group.group)
    found: dict[str, GroupView] = {}
    gathered = await client.ask_each(viewer, classic, DescribeGroupsResponse)
    for response in gathered.responses.values():
        for row in response.groups:
            if row.error_code:
                continue
            members = [
                MemberRow(
                    each.member_id,
                    each.group_instance_id,
                    each.client_id,
                    each.client_host.removeprefix("/"),
                    assigned_partitions(bytes(each.member_assignment)),
                )
                for each in row.members[:MAX_MEMBERS]
            ]
            found[row.group_id] = GroupView(row.group_state, row.protocol_data, members)
    of_consumers = await client.ask_each(viewer, consumer, ConsumerGroupDescribeResponse)
    for response in of_consumers.responses.values():
        for row in response.groups:
            if row.error_code:
                continue
            members = [
                MemberRow(
                    each.member_id,
                    each.instance_id,
                    each.client_id,
                    each.client_host.removeprefix("/"),
                    sorted(
                        TopicPartition(topic.topic_name, index)
                        for topic in each.assignment.topic_partitions
                        for index in topic.partitions
                    ),
                )
                for each in row.members[:MAX_MEMBERS]
            ]
            found[row.group_id] = GroupView(row.group_state, row.assignor_name, members)
    return found, [*gathered.problems, *of_consumers.problems]
