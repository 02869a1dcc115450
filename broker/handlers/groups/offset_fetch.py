"""OffsetFetch (9), versions 0 to 9: the committed offsets of groups.

Version 0 reads offsets from ZooKeeper, under `/consumers`. Version 8 and later name several groups.
"""

from collections.abc import Callable, Coroutine, Generator
from typing import Any, Protocol, TypeVar

from ottla.broker.cluster.metadata_cache import MetadataCache
from ottla.broker.groups.commits import NO_OFFSET, FetchedOffset, GroupCommits
from ottla.broker.groups.offsets import NO_TIMESTAMP, CommittedOffset
from ottla.broker.requests.long_responses import respond_in_slices
from ottla.broker.requests.request_channel import Deferred, RequestContext
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
from ottla.protocol.steps import run_at_once
from ottla.protocol.topics import TopicPartition

# A row costs 12 us to read, build and encode: a response of these takes 12 ms at once.
MAX_OFFSETS_AT_ONCE = 1_000
_ROWS_PER_STEP = 64
Topic = TypeVar("Topic", OffsetFetchResponseTopic, OffsetFetchResponseTopics)


class ZnodeOffsetReader(Protocol):
    """Offsets in the znode tree, `/consumers/GROUP/offsets/TOPIC/PARTITION`."""

    async def get(self, group_id: str, partition: TopicPartition) -> int | None: ...


class OffsetFetchHandler:
    """Reads from the group coordinator and builds the response of each version."""

    def __init__(
        self, commits: GroupCommits, topics: MetadataCache, znode_offsets: ZnodeOffsetReader
    ) -> None:
        self._commits = commits
        self._topics = topics
        self._znode_offsets = znode_offsets

    def handle(
        self, context: RequestContext, request: OffsetFetchRequest
    ) -> OffsetFetchResponse | Coroutine[Any, Any, OffsetFetchResponse | Deferred]:
        version = context.header.api_version
        if version == 0:
            return self._fetch_from_znodes(request)
        if version >= 8:
            steps = self._fetch_groups(request)
            of_all = [group.group_id for group in request.groups if group.topics is None]
        else:
            steps = self._fetch_before_v8(request, version)
            of_all = [request.group_id] if request.topics is None else []
        if of_all and sum(map(self._commits.count_offsets, of_all)) > MAX_OFFSETS_AT_ONCE:
            return respond_in_slices(context, steps)
        return run_at_once(steps)

    def _fetch_before_v8(
        self, request: OffsetFetchRequest, version: int
    ) -> Generator[None, None, OffsetFetchResponse]:
        partitions = _partitions_of(request.topics)
        error, found = yield from self._commits.fetch_in_steps(
            request.group_id,
            partitions,
            require_stable=request.require_stable,
            member_id=None,
            member_epoch=-1,
        )
        if not error or version >= 2:
            topics = yield from _topics_before_v8(found)
            return OffsetFetchResponse(error_code=error, topics=topics)
        # Version 1 has no error code of the group, only one for each partition.
        failed = {partition: FetchedOffset(error, NO_OFFSET) for partition in partitions or ()}
        return OffsetFetchResponse(topics=(yield from _topics_before_v8(failed)))

    def _fetch_groups(
        self, request: OffsetFetchRequest
    ) -> Generator[None, None, OffsetFetchResponse]:
        response = OffsetFetchResponse()
        for group in request.groups:
            row = yield from self._fetch_group(group, request.require_stable)
            response.groups.append(row)
        return response

    def _fetch_group(
        self, group: OffsetFetchRequestGroup, require_stable: bool
    ) -> Generator[None, None, OffsetFetchResponseGroup]:
        error, found = yield from self._commits.fetch_in_steps(
            group.group_id,
            _partitions_of(group.topics),
            require_stable=require_stable,
            member_id=group.member_id,
            member_epoch=group.member_epoch,
        )
        topics = yield from _topics_of(
            found, OffsetFetchResponseTopics, OffsetFetchResponsePartitions
        )
        return OffsetFetchResponseGroup(group_id=group.group_id, error_code=error, topics=topics)

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
        return OffsetFetchResponse(topics=run_at_once(_topics_before_v8(found)))


def _partitions_of(
    topics: list[OffsetFetchRequestTopic] | list[OffsetFetchRequestTopics] | None,
) -> list[TopicPartition] | None:
    """The requested partitions; None stands for all that the group has committed."""
    if topics is None:
        return None
    return [
        TopicPartition(topic.name, index) for topic in topics for index in topic.partition_indexes
    ]


def _topics_before_v8(
    found: dict[TopicPartition, FetchedOffset],
) -> Generator[None, None, list[OffsetFetchResponseTopic]]:
    return _topics_of(found, OffsetFetchResponseTopic, OffsetFetchResponsePartition)


def _topics_of(
    found: dict[TopicPartition, FetchedOffset],
    new_topic: Callable[[str], Topic],
    new_row: Callable[..., Any],
) -> Generator[None, None, list[Topic]]:
    """The rows by topic; versions 8 and later have types of their own with the same fields."""
    topics: dict[str, Topic] = {}
    for number, (partition, fetched) in enumerate(found.items(), 1):
        if number % _ROWS_PER_STEP == 0:
            yield
        topic = topics.get(partition.topic)
        if topic is None:
            topic = topics[partition.topic] = new_topic(partition.topic)
        value = fetched.value
        topic.partitions.append(
            new_row(
                partition_index=partition.partition,
                committed_offset=value.offset,
                committed_leader_epoch=value.leader_epoch,
                metadata=value.metadata,
                error_code=fetched.error_code,
            )
        )
    return list(topics.values())
