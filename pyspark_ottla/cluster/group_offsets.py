"""A group's committed offsets, read and written without being a member of the group."""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING

from ottla.protocol.client.operations import CoordinatorOf, Versions
from ottla.protocol.errors import RETRIABLE, ErrorCode
from ottla.protocol.message import Message
from ottla.protocol.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
    OffsetCommitResponse,
)
from ottla.protocol.messages.offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchRequestTopic,
    OffsetFetchResponse,
)
from ottla.protocol.topics import TopicPartition
from pyspark_ottla.cluster.calls import call_until_accepted
from pyspark_ottla.cluster.client_errors import refused
from pyspark_ottla.offsets import Offsets

if TYPE_CHECKING:
    from pyspark_ottla.cluster.calls import ClusterCalls

# Up to 7 a request is about one group, which every broker since 0.9 understands.
FETCH_VERSIONS = Versions(1, 7)
COMMIT_VERSIONS = Versions(2, 9)


def fetch_committed(
    cluster: ClusterCalls, group_id: str, partitions: Collection[TopicPartition]
) -> Offsets:
    """The committed offset of each partition that has one; raises ConnectorError."""
    topics: dict[str, OffsetFetchRequestTopic] = {}
    for tp in sorted(partitions):
        topic = topics.setdefault(tp.topic, OffsetFetchRequestTopic(name=tp.topic))
        topic.partition_indexes.append(tp.partition)
    request = OffsetFetchRequest(group_id=group_id, topics=list(topics.values()))
    response = call_until_accepted(
        cluster,
        f"Asking for the committed offsets of the group {group_id}",
        lambda timeout_ms: cluster.client.call(
            request, CoordinatorOf(group_id), timeout_ms=timeout_ms, versions=FETCH_VERSIONS
        ),
        _code_of_fetch,
    )
    assert isinstance(response, OffsetFetchResponse)
    found: Offsets = {}
    for row_topic in response.topics:
        for row in row_topic.partitions:
            if row.committed_offset >= 0:
                tp = TopicPartition(row_topic.name, row.partition_index)
                found[tp] = row.committed_offset
    return found


def _code_of_fetch(response: Message) -> int:
    """The first error; a topic that was deleted has no offset, and that is none."""
    assert isinstance(response, OffsetFetchResponse)
    rows = [row.error_code for topic in response.topics for row in topic.partitions]
    fine = (ErrorCode.NONE, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
    return next((code for code in (response.error_code, *rows) if code not in fine), 0)


def commit(
    cluster: ClusterCalls,
    group_id: str,
    offsets: Mapping[TopicPartition, int],
    *,
    timeout_ms: int,
) -> None:
    """Commits for a group that has no members; raises ConnectorError if that did not work."""
    topics: dict[str, OffsetCommitRequestTopic] = {}
    for tp, offset in sorted(offsets.items()):
        topic = topics.setdefault(tp.topic, OffsetCommitRequestTopic(name=tp.topic))
        topic.partitions.append(
            OffsetCommitRequestPartition(
                partition_index=tp.partition, committed_offset=offset, committed_metadata=""
            )
        )
    request = OffsetCommitRequest(group_id=group_id, topics=list(topics.values()))
    what = f"Committing offsets of the group {group_id}"
    response = cluster.call_with_retries(
        what,
        lambda left_ms: cluster.client.call(
            request, CoordinatorOf(group_id), timeout_ms=left_ms, versions=COMMIT_VERSIONS
        ),
        time.monotonic() + timeout_ms / 1000,
    )
    assert isinstance(response, OffsetCommitResponse)
    codes = [row.error_code for topic_row in response.topics for row in topic_row.partitions]
    # A topic that was deleted meanwhile has no position to show; that is no failure.
    codes = [code for code in codes if code != ErrorCode.UNKNOWN_TOPIC_OR_PARTITION]
    final = [code for code in codes if code != ErrorCode.NONE]
    if final:
        raise refused(what, min(final, key=lambda code: code in RETRIABLE))
