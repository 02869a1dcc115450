"""OffsetFetch (9), versions 0 to 9: the committed offsets of groups.

Version 0 reads offsets from ZooKeeper, under `/consumers`. Version 8 and later name several groups.
"""

from collections.abc import Coroutine
from typing import Any, Protocol

from ottla.broker.groups.commits import NO_OFFSET, FetchedOffset, GroupCommits
from ottla.broker.groups.offsets import NO_TIMESTAMP, CommittedOffset
from ottla.broker.handlers.common.topic_rows import TopicRows, Topics
from ottla.broker.requests.request_channel import RequestContext
from ottla.protocol.errors import ErrorCode
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


class ZnodeOffsetReader(Protocol):
    """Offsets in the znode tree, `/consumers/GROUP/offsets/TOPIC/PARTITION`."""

    async def get(self, group_id: str, partition: TopicPartition) -> int | None: ...


class OffsetFetchHandler:
    """Reads from the group coordinator and builds the response of each version."""

    def __init__(
        self, commits: GroupCommits, topics: Topics, znode_offsets: ZnodeOffsetReader
    ) -> None:
        self._commits = commits
        self._topics = topics
        self._znode_offsets = znode_offsets

    def handle(
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
        partitions = _partitions_of(request.topics)
        error, found = self._commits.fetch(
            request.group_id, partitions, require_stable=request.require_stable
        )
        if not error or version >= 2:
            return OffsetFetchResponse(error_code=error, topics=_topics_before_v8(found))
        # Version 1 has no error code of the group, only one for each partition.
        failed = {partition: FetchedOffset(error, NO_OFFSET) for partition in partitions or ()}
        return OffsetFetchResponse(topics=_topics_before_v8(failed))

    def _fetch_group(
        self, group: OffsetFetchRequestGroup, require_stable: bool
    ) -> OffsetFetchResponseGroup:
        error, found = self._commits.fetch(
            group.group_id,
            _partitions_of(group.topics),
            require_stable=require_stable,
            member_id=group.member_id,
            member_epoch=group.member_epoch,
        )
        rows: TopicRows[FetchedOffset] = TopicRows()
        for partition, fetched in found.items():
            rows.add(partition, fetched)
        return OffsetFetchResponseGroup(
            group_id=group.group_id,
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
                found[partition] = FetchedOffset(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, NO_OFFSET)
            else:
                value = CommittedOffset(offset, -1, "", NO_TIMESTAMP)
                found[partition] = FetchedOffset(ErrorCode.NONE, value)
        return OffsetFetchResponse(topics=_topics_before_v8(found))


def _partitions_of(
    topics: list[OffsetFetchRequestTopic] | list[OffsetFetchRequestTopics] | None,
) -> list[TopicPartition] | None:
    """The requested partitions; None stands for all that the group has committed."""
    if topics is None:
        return None
    return [
        TopicPartition(topic.name, index) for topic in topics for index in topic.partition_indexes
    ]


def _topics_before_v8(found: dict[TopicPartition, FetchedOffset]) -> list[OffsetFetchResponseTopic]:
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
