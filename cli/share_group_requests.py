"""Share groups as their coordinator describes them, and their start offsets (SPSO)."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import NamedTuple

from ottla.cli.offsets import LATEST, offsets_at, with_leader
from ottla.cli.output import Cell, Failure
from ottla.cli.session import Session, check
from ottla.protocol.client.errors import UnsupportedApiError
from ottla.protocol.client.operations import CoordinatorOf
from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.protocol.messages.alter_share_group_offsets import (
    AlterShareGroupOffsetsRequest,
    AlterShareGroupOffsetsRequestPartition,
    AlterShareGroupOffsetsRequestTopic,
    AlterShareGroupOffsetsResponse,
)
from ottla.protocol.messages.describe_share_group_offsets import (
    DescribeShareGroupOffsetsRequest,
    DescribeShareGroupOffsetsRequestGroup,
    DescribeShareGroupOffsetsResponse,
)
from ottla.protocol.messages.share_group_describe import (
    DescribedGroup,
    ShareGroupDescribeRequest,
    ShareGroupDescribeResponse,
)
from ottla.protocol.topics import TopicPartition


@contextmanager
def share_groups_enabled() -> Iterator[None]:
    """Says which setting is missing where a broker does not list the requests of share groups."""
    try:
        yield
    except UnsupportedApiError:
        raise Failure(
            "the brokers have no share groups: set group.coordinator.rebalance.protocols="
            "classic,consumer,share on Ottla, or use Kafka 4.2 or later."
        ) from None


def described(session: Session, group: str) -> DescribedGroup:
    """The coordinator's description of a share group; raises Failure if there is none."""
    request = ShareGroupDescribeRequest([group])
    with share_groups_enabled():
        response = session.call(ShareGroupDescribeResponse, request, CoordinatorOf(group))
    found = response.groups[0]
    if found.error_code == ErrorCode.GROUP_ID_NOT_FOUND:
        raise Failure(f"share group {group} does not exist; see `ottla share-groups list`.")
    check(found.error_code, f"group {group}", found.error_message)
    return found


class StartOffset(NamedTuple):
    """One share partition; offsets are None where they are not known."""

    topic: str
    partition: int
    offset: int | None
    end: int | None
    lag: int | None
    leader_epoch: int

    def as_row(self) -> dict[str, Cell]:
        """For a table and for programs."""
        return {
            "topic": self.topic,
            "partition": self.partition,
            "start_offset": self.offset,
            "end": self.end,
            "lag": self.lag,
            "leader_epoch": self.leader_epoch,
        }


def start_offsets(session: Session, group: str) -> list[StartOffset]:
    """The share partitions of a group, sorted. Raises Failure for an error of the group."""
    request = DescribeShareGroupOffsetsRequest([DescribeShareGroupOffsetsRequestGroup(group, None)])
    response = session.call(DescribeShareGroupOffsetsResponse, request, CoordinatorOf(group))
    found = response.groups[0]
    check(found.error_code, f"group {group}", found.error_message)
    rows = []
    led = with_leader(session, (topic.topic_name for topic in found.topics))
    for topic in found.topics:
        for row in topic.partitions:
            partition = TopicPartition(topic.topic_name, row.partition_index)
            if row.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
                continue  # the topic is deleted; its state is removed later
            check(row.error_code, f"group {group}, {partition}", row.error_message)
            rows.append(
                StartOffset(
                    *partition,
                    _known(row.start_offset),
                    _end_of(session, partition) if partition in led else None,
                    _known(row.lag),
                    row.leader_epoch,
                )
            )
    return sorted(rows)


def _known(value: int) -> int | None:
    return None if value < 0 else value


def _end_of(session: Session, partition: TopicPartition) -> int | None:
    try:
        return offsets_at(session, [partition], LATEST)[partition]
    except KafkaError as error:
        if error.code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
            return None
        raise


def alter(session: Session, group: str, offsets: Mapping[TopicPartition, int]) -> None:
    """Sets start offsets; raises Failure if the group has members."""
    by_topic: dict[str, list[AlterShareGroupOffsetsRequestPartition]] = defaultdict(list)
    for item, offset in offsets.items():
        row = AlterShareGroupOffsetsRequestPartition(item.partition, offset)
        by_topic[item.topic].append(row)
    request = AlterShareGroupOffsetsRequest(
        group, [AlterShareGroupOffsetsRequestTopic(*rows) for rows in by_topic.items()]
    )
    response = session.call(AlterShareGroupOffsetsResponse, request, CoordinatorOf(group))
    check(response.error_code, f"group {group}", response.error_message)
    for topic in response.responses:
        for partition in topic.partitions:
            subject = f"group {group}, {topic.topic_name}-{partition.partition_index}"
            check(partition.error_code, subject, partition.error_message)
