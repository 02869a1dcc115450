"""Offsets by timestamp, and the ends of logs, from the leaders of many partitions at once."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, NamedTuple

from ottla.protocol.client.errors import ClientError
from ottla.protocol.client.operations import Versions
from ottla.protocol.errors import RETRIABLE, ErrorCode
from ottla.protocol.messages.list_offsets import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopic,
)
from ottla.protocol.topics import TopicPartition
from pyspark_ottla.cluster.client_errors import refused, unreachable
from pyspark_ottla.cluster.topic_metadata import PRESENT, UNKNOWN, partitions_of
from pyspark_ottla.offsets import Offsets, describe_all

if TYPE_CHECKING:
    from pyspark_ottla.cluster.calls import ClusterCalls

# The response of version 0 is a list of offsets, and its request has no isolation level.
LIST_OFFSETS_VERSIONS = Versions(2)
PAUSE_FIRST_SECONDS = 0.1
PAUSE_MAX_SECONDS = 1.0


class Leaders(NamedTuple):
    """Wanted timestamps by the id of the leader, partitions that do not exist, and whether some
    have no leader at the moment."""

    by_node: dict[int, dict[TopicPartition, int]]
    gone: list[TopicPartition]
    leaderless: bool


def look_up_offsets(
    cluster: ClusterCalls, wanted: Mapping[TopicPartition, int], *, read_committed: bool
) -> Offsets:
    """For each partition the first offset with at least that timestamp, or -1 if none.

    With `read_committed` the end of a log is its last stable offset, else its high watermark.

    Repeated while leaders move, to the cluster's deadline. Partitions that are not there any more
    are left out. Raises ConnectorError.
    """
    found: Offsets = {}
    left = dict(wanted)
    deadline = cluster.deadline()
    pause = PAUSE_FIRST_SECONDS
    while left:
        leaders = _find_leaders(cluster, left, deadline)
        for tp in leaders.gone:
            del left[tp]
        last_code = ErrorCode.LEADER_NOT_AVAILABLE if leaders.leaderless else ErrorCode.NONE
        failure: ClientError | None = None
        for node_id, partitions in leaders.by_node.items():
            try:
                responses = _request_offsets(
                    cluster, node_id, partitions, deadline, read_committed=read_committed
                )
            except ClientError as error:  # one that is retriable
                failure = error
                continue
            for tp, (code, offset) in responses.items():
                if code == ErrorCode.NONE:
                    found[tp] = offset
                    del left[tp]
                elif code in RETRIABLE:
                    last_code = code
                else:
                    raise refused(f"Looking up offsets of {tp}", code)
        if left:
            if time.monotonic() + pause >= deadline:
                if failure is not None:
                    what = f"Looking up offsets of {describe_all(left)}"
                    raise unreachable(what, cluster.options.bootstrap, failure) from None
                raise refused(f"Looking up offsets of {describe_all(left)}", last_code)
            _forget_leaders(cluster, left)
            cluster.sleep(pause)
            pause = min(pause * 2, PAUSE_MAX_SECONDS)
    return found


def _forget_leaders(cluster: ClusterCalls, partitions: Iterable[TopicPartition]) -> None:
    for tp in partitions:
        cluster.client.forget_leader(tp)


def _find_leaders(
    cluster: ClusterCalls, wanted: Mapping[TopicPartition, int], deadline: float
) -> Leaders:
    state = cluster.client.state
    unknown = sorted({tp.topic for tp in wanted if state.leader(tp) is None})
    existing: set[TopicPartition] = set()
    if unknown:
        topics = cluster.metadata(unknown, deadline).topics
        for topic in topics:
            if topic.error_code not in PRESENT and topic.error_code not in RETRIABLE:
                raise refused(f"Asking about the topic {topic.name}", topic.error_code)
        present = [topic for topic in topics if topic.error_code not in UNKNOWN]
        existing.update(partitions_of(present))
        # A topic that is being made may have no partitions yet; it is not gone.
        empty = {topic.name for topic in present if not topic.partitions}
        existing.update(tp for tp in wanted if tp.topic in empty)
    leaders = Leaders({}, [], False)
    for tp, timestamp in wanted.items():
        leader = state.leader(tp)
        if leader is not None:
            leaders.by_node.setdefault(leader.node_id, {})[tp] = timestamp
        elif tp in existing:
            leaders = leaders._replace(leaderless=True)
        else:
            leaders.gone.append(tp)
    return leaders


def _request_offsets(
    cluster: ClusterCalls,
    node_id: int,
    wanted: Mapping[TopicPartition, int],
    deadline: float,
    *,
    read_committed: bool,
) -> dict[TopicPartition, tuple[int, int]]:
    """(error code, offset) by partition; raises ConnectorError, and a ClientError to retry."""
    topics: dict[str, ListOffsetsTopic] = {}
    for tp, timestamp in sorted(wanted.items()):
        topic = topics.setdefault(tp.topic, ListOffsetsTopic(name=tp.topic))
        topic.partitions.append(
            ListOffsetsPartition(partition_index=tp.partition, timestamp=timestamp)
        )
    options = cluster.options
    request = ListOffsetsRequest(
        replica_id=-1,
        isolation_level=int(read_committed),
        topics=list(topics.values()),
    )
    left_ms = max(1, int((deadline - time.monotonic()) * 1000))
    try:
        response = cluster.client.send(
            node_id,
            request,
            timeout_ms=min(left_ms, options.request_timeout_ms),
            versions=LIST_OFFSETS_VERSIONS,
        )
    except ClientError as error:
        if error.retriable:
            raise
        what = f"Looking up offsets of {describe_all(wanted)}"
        raise unreachable(what, options.bootstrap, error) from None
    assert isinstance(response, ListOffsetsResponse)
    return {
        TopicPartition(topic.name, row.partition_index): (row.error_code, row.offset)
        for topic in response.topics
        for row in topic.partitions
    }
