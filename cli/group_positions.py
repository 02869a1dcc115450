"""Committed offsets of a group: reads them, and commits without membership."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping

from ottla.cli.session import Session, check
from ottla.protocol.client.operations import CoordinatorOf, Versions
from ottla.protocol.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
    OffsetCommitResponse,
)
from ottla.protocol.messages.offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchResponse,
)
from ottla.protocol.topics import TopicPartition


def all_committed(session: Session, group: str) -> dict[TopicPartition, tuple[int, str]]:
    """(offset, metadata) of every partition that the group has committed."""
    request = OffsetFetchRequest(groups=[OffsetFetchRequestGroup(group_id=group, topics=None)])
    response = session.call(
        OffsetFetchResponse, request, CoordinatorOf(group), versions=Versions(8)
    ).groups[0]
    check(response.error_code, f"group {group}")
    found: dict[TopicPartition, tuple[int, str]] = {}
    for topic in response.topics:
        for row in topic.partitions:
            check(row.error_code, f"group {group}")
            if row.committed_offset >= 0:
                partition = TopicPartition(topic.name, row.partition_index)
                found[partition] = (row.committed_offset, row.metadata or "")
    return found


def committed(
    session: Session, group: str, partitions: Iterable[TopicPartition]
) -> dict[TopicPartition, int]:
    """The committed offsets of those of `partitions` that have one."""
    found = all_committed(session, group)
    return {item: found[item][0] for item in partitions if item in found}


def commit(session: Session, group: str, offsets: Mapping[TopicPartition, int]) -> None:
    """Commits for a group without members; raises Failure if it has members."""
    by_topic: dict[str, list[OffsetCommitRequestPartition]] = defaultdict(list)
    for partition, offset in offsets.items():
        by_topic[partition.topic].append(
            OffsetCommitRequestPartition(
                partition_index=partition.partition, committed_offset=offset, committed_metadata=""
            )
        )
    request = OffsetCommitRequest(
        group_id=group,
        topics=[
            OffsetCommitRequestTopic(name=topic, partitions=rows)
            for topic, rows in by_topic.items()
        ],
    )
    response = session.call(OffsetCommitResponse, request, CoordinatorOf(group))
    for topic in response.topics:
        for row in topic.partitions:
            check(row.error_code, f"group {group}, {topic.name}-{row.partition_index}")
