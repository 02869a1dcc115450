"""OffsetCommit (8), versions 0 to 9: commits the offsets of a group.

Version 0 stores offsets in ZooKeeper, under `/consumers`, where tools and clients of Kafka 0.8
look for them.
"""

from collections.abc import Callable, Coroutine
from typing import Any, Protocol

from ottla.broker.cluster.metadata_cache import MetadataCache
from ottla.broker.groups.commits import Committer, GroupCommits, java_length
from ottla.broker.groups.offsets import NO_TIMESTAMP, CommittedOffset
from ottla.broker.handlers.common.group_request_errors import GroupRequestErrorLog
from ottla.broker.handlers.common.topic_rows import TopicRows
from ottla.broker.requests.request_channel import DEFERRED, Deferred, RequestContext
from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitResponse,
    OffsetCommitResponsePartition,
    OffsetCommitResponseTopic,
)
from ottla.protocol.topics import TopicPartition

# Java's Long.MAX_VALUE, with which clients say that offsets do not expire: what a record can hold.
_LAST_TIMESTAMP = 2**63 - 1


class ZnodeOffsetWriter(Protocol):
    """Offsets in the znode tree, `/consumers/GROUP/offsets/TOPIC/PARTITION`."""

    async def set(self, group_id: str, partition: TopicPartition, offset: int) -> None: ...


class OffsetCommitHandler:
    """Checks which partitions exist and hands the offsets to the group coordinator."""

    def __init__(
        self,
        commits: GroupCommits,
        topics: MetadataCache,
        znode_offsets: ZnodeOffsetWriter,
        now_ms: Callable[[], int],
        request_errors: GroupRequestErrorLog,
        max_metadata_length: int = 4_096,
    ) -> None:
        """`max_metadata_length` is offset.metadata.max.bytes."""
        self._commits = commits
        self._request_errors = request_errors
        self._topics = topics
        self._znode_offsets = znode_offsets
        self._now_ms = now_ms
        self._max_metadata_length = max_metadata_length

    def handle(
        self, context: RequestContext, request: OffsetCommitRequest
    ) -> Deferred | OffsetCommitResponse | Coroutine[Any, Any, OffsetCommitResponse]:
        rows: TopicRows[int] = TopicRows()
        known = self._known_offsets(request, rows)
        if not known:
            return _response(rows)
        if context.header.api_version == 0:
            return self._commit_to_znodes(request, known, rows)

        def send_response(results: dict[TopicPartition, int]) -> None:
            add = rows.add
            for partition, error in results.items():
                add(partition, error)
                if error:
                    self._request_errors.log(
                        *(context, "OffsetCommit", request.group_id, request.member_id),
                        *(request.generation_id_or_member_epoch, error),
                    )
            context.respond(_response(rows))

        self._commits.commit(
            Committer(
                request.group_id,
                request.member_id,
                request.group_instance_id,
                request.generation_id_or_member_epoch,
                context.header.api_version,
            ),
            known,
            send_response,
        )
        return DEFERRED

    async def _commit_to_znodes(
        self,
        request: OffsetCommitRequest,
        known: dict[TopicPartition, CommittedOffset],
        rows: TopicRows[int],
    ) -> OffsetCommitResponse:
        for partition, value in known.items():
            if java_length(value.metadata) > self._max_metadata_length:
                rows.add(partition, ErrorCode.OFFSET_METADATA_TOO_LARGE)
            else:
                await self._znode_offsets.set(request.group_id, partition, value.offset)
                rows.add(partition, ErrorCode.NONE)
        return _response(rows)

    def _known_offsets(
        self, request: OffsetCommitRequest, unknown: TopicRows[int]
    ) -> dict[TopicPartition, CommittedOffset]:
        """The offsets of the partitions that exist, the last one of a duplicate partition; the
        others get UNKNOWN_TOPIC_OR_PARTITION in `unknown`."""
        now_ms = self._now_ms()
        # Versions 2 to 4 have a retention time; clients send 0 or -1 for the broker's default.
        retention_ms = request.retention_time_ms
        expire_ms = NO_TIMESTAMP
        if retention_ms > 0:
            expire_ms = min(now_ms + retention_ms, _LAST_TIMESTAMP)
        partition_of = self._topics.snapshot.partition
        known = {}
        for topic in request.topics:
            name = topic.name
            for row in topic.partitions:
                partition = TopicPartition(name, row.partition_index)
                if partition_of(name, row.partition_index) is None:
                    unknown.add(partition, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
                    continue
                timestamp_ms = row.commit_timestamp
                known[partition] = CommittedOffset(
                    row.committed_offset,
                    row.committed_leader_epoch,
                    row.committed_metadata or "",
                    now_ms if timestamp_ms < 0 else timestamp_ms,
                    expire_ms,
                )
        return known


def _response(rows: TopicRows[int]) -> OffsetCommitResponse:
    response = OffsetCommitResponse()
    topics = response.topics
    for name, partitions in rows.items():
        found = [OffsetCommitResponsePartition(index, error) for index, error in partitions]
        topics.append(OffsetCommitResponseTopic(name, found))
    return response
