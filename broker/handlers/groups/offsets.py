"""OffsetCommit (8) and OffsetFetch (9), all versions.

Version 0 of both is of the time when offsets were kept in ZooKeeper, and still is: it goes to the
znode tree under `/consumers`, so that tools and clients of Kafka 0.8 find it there.
"""

from collections.abc import Callable, Coroutine, Iterator
from typing import Any, Protocol

from ottla.broker.groups.commits import (
    MISSING,
    Committer,
    FetchedOffset,
    GroupCommits,
    java_length,
)
from ottla.broker.groups.offsets import NO_TIMESTAMP, CommittedOffset
from ottla.broker.handlers.groups.refusals import GroupRefusals
from ottla.broker.handlers.topic_rows import TopicRows, Topics, split_known
from ottla.broker.requests.request_channel import DEFERRED, Deferred, RequestContext
from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitResponse,
    OffsetCommitResponsePartition,
    OffsetCommitResponseTopic,
)
from ottla.protocol.messages.offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopic,
    OffsetFetchRequestTopics,
    OffsetFetchResponse,
    OffsetFetchResponseGroup,
    OffsetFetchResponsePartition,
    OffsetFetchResponsePartitions,
    OffsetFetchResponseTopic,
    OffsetFetchResponseTopics,
)
from ottla.protocol.topics import TopicPartition


class ZnodeOffsets(Protocol):
    """Offsets in the znode tree, `/consumers/GROUP/offsets/TOPIC/PARTITION`."""

    async def get(self, group_id: str, partition: TopicPartition) -> int | None: ...

    async def set(self, group_id: str, partition: TopicPartition, offset: int) -> None: ...


class GroupOffsetHandlers:
    """Checks which partitions exist, evens out the versions, shapes the answers."""

    def __init__(
        self,
        commits: GroupCommits,
        topics: Topics,
        znode_offsets: ZnodeOffsets,
        now_ms: Callable[[], int],
        refusals: GroupRefusals,
        max_metadata: int = 4_096,
    ) -> None:
        self._commits = commits
        self._refusals = refusals
        self._topics = topics
        self._znode_offsets = znode_offsets
        self._now_ms = now_ms
        self._max_metadata = max_metadata

    # OffsetCommit.

    async def _commit_to_znodes(
        self,
        request: OffsetCommitRequest,
        known: dict[TopicPartition, CommittedOffset],
        rows: TopicRows[int],
    ) -> OffsetCommitResponse:
        for partition, value in known.items():
            if java_length(value.metadata) > self._max_metadata:
                rows.add(partition, ErrorCode.OFFSET_METADATA_TOO_LARGE)
            else:
                await self._znode_offsets.set(request.group_id, partition, value.offset)
                rows.add(partition, ErrorCode.NONE)
        return _commit_response(rows)

    def offset_commit(
        self, context: RequestContext, request: OffsetCommitRequest
    ) -> Deferred | OffsetCommitResponse | Coroutine[Any, Any, OffsetCommitResponse]:
        rows: TopicRows[int] = TopicRows()
        known = split_known(self._topics, self._offsets_of(request), rows)
        if not known:
            return _commit_response(rows)
        if context.header.api_version == 0:
            return self._commit_to_znodes(request, known, rows)

        def reply(results: dict[TopicPartition, int]) -> None:
            for partition, error in results.items():
                rows.add(partition, error)
                if error:
                    self._refusals.tell(
                        *(context, "OffsetCommit", request.group_id, request.member_id),
                        *(request.generation_id_or_member_epoch, error),
                    )
            context.respond(_commit_response(rows))

        self._commits.commit(
            Committer(
                request.group_id,
                request.member_id,
                request.group_instance_id,
                request.generation_id_or_member_epoch,
                context.header.api_version,
            ),
            known,
            reply,
        )
        return DEFERRED

    def _offsets_of(
        self, request: OffsetCommitRequest
    ) -> Iterator[tuple[TopicPartition, CommittedOffset]]:
        now_ms = self._now_ms()
        # Versions 2 to 4 may bring a retention of their own; 0 is what clients send who mean
        # the broker's, as -1 does.
        retention_ms = request.retention_time_ms
        expire_ms = now_ms + retention_ms if retention_ms > 0 else NO_TIMESTAMP
        for topic in request.topics:
            for asked in topic.partitions:
                yield (
                    TopicPartition(topic.name, asked.partition_index),
                    CommittedOffset(
                        asked.committed_offset,
                        asked.committed_leader_epoch,
                        asked.committed_metadata or "",
                        now_ms if asked.commit_timestamp < 0 else asked.commit_timestamp,
                        expire_ms,
                    ),
                )

    # OffsetFetch.

    def offset_fetch(
        self, context: RequestContext, request: OffsetFetchRequest
    ) -> OffsetFetchResponse | Coroutine[Any, Any, OffsetFetchResponse]:
        version = context.header.api_version
        if version == 0:
            return self._fetch_from_znodes(request)
        if version >= 8:
            return OffsetFetchResponse(
                groups=[
                    self._fetch_group(group, request.require_stable) for group in request.groups
                ]
            )
        wanted = _partitions_of(request.topics)
        error, found = self._commits.fetch(
            request.group_id, wanted, require_stable=request.require_stable
        )
        if not error or version >= 2:
            return OffsetFetchResponse(error_code=error, topics=_old_topics(found))
        # Version 1 has no room for the group's error but that of each partition.
        failed = {partition: FetchedOffset(error, MISSING) for partition in wanted or ()}
        return OffsetFetchResponse(topics=_old_topics(failed))

    def _fetch_group(
        self, asked: OffsetFetchRequestGroup, require_stable: bool
    ) -> OffsetFetchResponseGroup:
        error, found = self._commits.fetch(
            asked.group_id,
            _partitions_of(asked.topics),
            require_stable=require_stable,
            member_id=asked.member_id,
            member_epoch=asked.member_epoch,
        )
        rows: TopicRows[FetchedOffset] = TopicRows()
        for partition, fetched in found.items():
            rows.add(partition, fetched)
        return OffsetFetchResponseGroup(
            group_id=asked.group_id,
            error_code=error,
            topics=[
                OffsetFetchResponseTopics(
                    name=name,
                    partitions=[
                        OffsetFetchResponsePartitions(
                            partition_index=index,
                            committed_offset=fetched.value.offset,
                            committed_leader_epoch=fetched.value.leader_epoch,
                            metadata=fetched.value.metadata,
                            error_code=fetched.error_code,
                        )
                        for index, fetched in partitions
                    ],
                )
                for name, partitions in rows.items()
            ],
        )

    async def _fetch_from_znodes(self, request: OffsetFetchRequest) -> OffsetFetchResponse:
        found = {}
        for partition in _partitions_of(request.topics) or ():
            known = self._topics.snapshot.partition(partition.topic, partition.partition)
            offset = (
                None
                if known is None
                else await self._znode_offsets.get(request.group_id, partition)
            )
            if offset is None:
                found[partition] = FetchedOffset(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, MISSING)
            else:
                value = CommittedOffset(offset, -1, "", NO_TIMESTAMP)
                found[partition] = FetchedOffset(ErrorCode.NONE, value)
        return OffsetFetchResponse(topics=_old_topics(found))


def _commit_response(rows: TopicRows[int]) -> OffsetCommitResponse:
    return OffsetCommitResponse(
        topics=[
            OffsetCommitResponseTopic(
                name=name,
                partitions=[
                    OffsetCommitResponsePartition(partition_index=index, error_code=error)
                    for index, error in partitions
                ],
            )
            for name, partitions in rows.items()
        ]
    )


def _partitions_of(
    topics: list[OffsetFetchRequestTopic] | list[OffsetFetchRequestTopics] | None,
) -> list[TopicPartition] | None:
    """What is asked for; None stands for all that the group has."""
    if topics is None:
        return None
    return [
        TopicPartition(topic.name, index) for topic in topics for index in topic.partition_indexes
    ]


def _old_topics(found: dict[TopicPartition, FetchedOffset]) -> list[OffsetFetchResponseTopic]:
    rows: TopicRows[FetchedOffset] = TopicRows()
    for partition, fetched in found.items():
        rows.add(partition, fetched)
    return [
        OffsetFetchResponseTopic(
            name=name,
            partitions=[
                OffsetFetchResponsePartition(
                    partition_index=index,
                    committed_offset=fetched.value.offset,
                    committed_leader_epoch=fetched.value.leader_epoch,
                    metadata=fetched.value.metadata,
                    error_code=fetched.error_code,
                )
                for index, fetched in partitions
            ],
        )
        for name, partitions in rows.items()
    ]
