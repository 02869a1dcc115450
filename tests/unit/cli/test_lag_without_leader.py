"""Groups are described while a partition has no leader: its end is not known."""

from __future__ import annotations

from typing import Any, NamedTuple, cast

from ottla.cli.groups import _lag_rows
from ottla.cli.session import Session
from ottla.cli.share_group_requests import start_offsets
from ottla.protocol.messages import describe_share_group_offsets as share
from ottla.protocol.messages import list_offsets
from ottla.protocol.messages.metadata import (
    MetadataResponse,
    MetadataResponsePartition,
    MetadataResponseTopic,
)
from ottla.protocol.topics import TopicPartition


class Leader(NamedTuple):
    node_id: int


class Cluster:
    """The topic t: partition 0 has a leader and ends at 9, partition 1 has none, and there is no
    partition 2."""

    def __init__(self) -> None:
        self.client = self

    def metadata(self, names: list[str]) -> MetadataResponse:
        assert names == ["t"]
        rows = [
            MetadataResponsePartition(partition_index=number, leader_id=leader)
            for number, leader in enumerate((1, -1))
        ]
        return MetadataResponse(topics=[MetadataResponseTopic(name="t", partitions=rows)])

    def leader(self, partition: TopicPartition) -> Leader:
        assert partition.partition == 0, "it waits for a leader"
        return Leader(1)

    def call(self, kind: type, request: Any, _to: object, versions: object = None) -> Any:
        if kind is share.DescribeShareGroupOffsetsResponse:
            partition = share.DescribeShareGroupOffsetsResponsePartition
            rows = [partition(number, start_offset=4) for number in (0, 1)]
            topics = [share.DescribeShareGroupOffsetsResponseTopic("t", partitions=rows)]
            return kind(groups=[share.DescribeShareGroupOffsetsResponseGroup("g", topics)])
        assert kind is list_offsets.ListOffsetsResponse
        row = list_offsets.ListOffsetsPartitionResponse(0, offset=9)
        return kind(topics=[list_offsets.ListOffsetsTopicResponse("t", [row])])


def test_lag_of_a_consumer_group() -> None:
    offsets = {TopicPartition("t", number): (4, "") for number in (0, 1, 2)}
    rows = _lag_rows(cast(Session, Cluster()), [], offsets, [])
    assert [(row["end"], row["lag"]) for row in rows] == [(9, 5), (None, None), (None, None)]


def test_ends_of_a_share_group() -> None:
    rows = start_offsets(cast(Session, Cluster()), "g")
    assert [(row.offset, row.end) for row in rows] == [(4, 9), (4, None)]
