"""The groups of all coordinators: lists, members, offsets.

The offsets of a share group (KIP-932) are its start offsets.
"""

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
from ottla.protocol.messages.describe_share_group_offsets import (
    DescribeShareGroupOffsetsRequest,
    DescribeShareGroupOffsetsRequestGroup,
    DescribeShareGroupOffsetsResponse,
)
from ottla.protocol.messages.list_groups import ListGroupsRequest, ListGroupsResponse
from ottla.protocol.messages.offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchResponse,
)
from ottla.protocol.messages.share_group_describe import (
    ShareGroupDescribeRequest,
    ShareGroupDescribeResponse,
)
from ottla.protocol.topics import TopicPartition

if TYPE_CHECKING:
    from ottla.broker.observability.console.access import Viewer
    from ottla.broker.observability.console.cluster_client import ClusterClient, Responses

# More than these are not listed: a row has some 200 bytes.
MAX_LISTED = 20_000
# Of one group; a page shows less.
MAX_MEMBERS = 500
MAX_GROUP_OFFSETS = 2000
SHARE = "share"


class GroupRow(NamedTuple):
    """A group as its coordinator lists it."""

    group: str
    coordinator: int
    state: str
    kind: str  # "classic", "consumer" or SHARE


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
        if group.kind == SHARE:
            continue
        request = requests.setdefault(group.coordinator, OffsetFetchRequest(groups=[]))
        request.groups.append(OffsetFetchRequestGroup(group_id=group.group, topics=None))
    gathered = await client.ask_each(viewer, requests, OffsetFetchResponse)
    found = _by_group(gathered, "name", "committed_offset")
    shares, problems = await _start_offsets(client, viewer, groups)
    return found | shares, [*gathered.problems, *problems]


async def _start_offsets(
    client: ClusterClient, viewer: Viewer, groups: Sequence[GroupRow]
) -> tuple[dict[str, dict[TopicPartition, int]], list[str]]:
    """The same of share groups; a partition that was never read has no start offset."""
    requests: dict[int, DescribeShareGroupOffsetsRequest] = {}
    for group in groups:
        if group.kind == SHARE:
            wanted = DescribeShareGroupOffsetsRequestGroup(group.group, None)
            request = requests.setdefault(group.coordinator, DescribeShareGroupOffsetsRequest([]))
            request.groups.append(wanted)
    gathered = await client.ask_each(viewer, requests, DescribeShareGroupOffsetsResponse)
    return _by_group(gathered, "topic_name", "start_offset"), gathered.problems


def _by_group(gathered: Responses, name: str, offset: str) -> dict[str, dict[TopicPartition, int]]:
    """The offsets of the groups without an error; `name` and `offset` are fields of the response's
    topics and partitions."""
    found: dict[str, dict[TopicPartition, int]] = {}
    for response in gathered.responses.values():
        for row in response.groups:
            if row.error_code:
                continue
            offsets = (
                (TopicPartition(getattr(topic, name), each.partition_index), getattr(each, offset))
                for topic in row.topics
                for each in topic.partitions
                if not each.error_code and getattr(each, offset) >= 0
            )
            found[row.group_id] = dict(islice(offsets, MAX_GROUP_OFFSETS))
    return found


async def describe_groups(
    client: ClusterClient, viewer: Viewer, groups: Sequence[GroupRow]
) -> tuple[dict[str, GroupView], list[str]]:
    """State, assignor and members of groups of each protocol."""
    classic: dict[int, DescribeGroupsRequest] = {}
    consumer: dict[int, ConsumerGroupDescribeRequest] = {}
    share: dict[int, ShareGroupDescribeRequest] = {}
    for group in groups:
        if group.kind == SHARE:
            shared = share.setdefault(group.coordinator, ShareGroupDescribeRequest([]))
            shared.group_ids.append(group.group)
        elif group.kind == "consumer":
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
    of_shares = await client.ask_each(viewer, share, ShareGroupDescribeResponse)
    for of_share in of_shares.responses.values():
        for group_row in of_share.groups:
            if group_row.error_code:
                continue
            members = [
                MemberRow(
                    *(each.member_id, None, each.client_id, each.client_host.removeprefix("/")),
                    sorted(
                        TopicPartition(topic.topic_name, index)
                        for topic in each.assignment.topic_partitions
                        for index in topic.partitions
                    ),
                )
                for each in group_row.members[:MAX_MEMBERS]
            ]
            found[group_row.group_id] = GroupView(
                group_row.group_state, group_row.assignor_name, members
            )
    return found, [*gathered.problems, *of_consumers.problems, *of_shares.problems]
