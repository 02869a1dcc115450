"""Offsets of partitions, with one ListOffsets request to each leader."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, NamedTuple

from ottla.protocol.errors import ErrorCode, error_name
from ottla.protocol.messages.list_offsets import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopic,
)
from ottla.protocol.topics import TopicPartition

if TYPE_CHECKING:
    from ottla.broker.observability.console.access import Viewer
    from ottla.broker.observability.console.cluster_client import ClusterClient

LATEST = -1
EARLIEST = -2

# Of one page: a request of 2000 partitions takes a leader some milliseconds.
MAX_PARTITIONS = 2000


class Offsets(NamedTuple):
    """Those that are known, and a sentence for each broker that did not respond."""

    found: dict[TopicPartition, int]
    problems: list[str]


async def list_offsets(
    client: ClusterClient,
    viewer: Viewer,
    partitions: Iterable[TopicPartition],
    timestamp: int | Mapping[TopicPartition, int],
) -> Offsets:
    """LATEST is the high watermark, EARLIEST the log start offset, a time in ms the first record
    that is not older; -1 is found where there is none. Partitions without a leader are left out,
    and topics that the viewer may not describe."""
    snapshot = client.metadata.snapshot
    by_leader: dict[int, dict[str, list[ListOffsetsPartition]]] = {}
    problems: list[str] = []
    for partition in partitions:
        state = snapshot.partition(partition.topic, partition.partition)
        if state is None or state.leader < 0:
            continue
        when = timestamp if isinstance(timestamp, int) else timestamp[partition]
        row = ListOffsetsPartition(partition_index=partition.partition, timestamp=when)
        topics = by_leader.setdefault(state.leader, {})
        topics.setdefault(partition.topic, []).append(row)
    requests = {
        leader: ListOffsetsRequest(
            replica_id=-1,
            topics=[
                ListOffsetsTopic(name=name, partitions=rows)
                for name, rows in topics.items()
                if viewer.may_describe_topic(name)
            ],
        )
        for leader, topics in by_leader.items()
    }
    gathered = await client.ask_each(viewer, requests, ListOffsetsResponse)
    problems.extend(gathered.problems)
    found: dict[TopicPartition, int] = {}
    for leader, response in sorted(gathered.responses.items()):
        codes: set[int] = set()
        for topic in response.topics:
            for row in topic.partitions:
                if row.error_code == ErrorCode.NONE:
                    found[TopicPartition(topic.name, row.partition_index)] = row.offset
                else:
                    codes.add(row.error_code)
        if codes:
            names = ", ".join(map(error_name, sorted(codes)))
            problems.append(f"Broker {leader} did not return all offsets: {names}.")
    return Offsets(found, problems)
