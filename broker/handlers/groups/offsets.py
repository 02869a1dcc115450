"""The committed offsets of groups.

OffsetCommit (8) and OffsetFetch (9), versions 0 to 9, and OffsetDelete (47), version 0 (KIP-496).
Version 0 of the first two keeps offsets in ZooKeeper, under `/consumers`, where tools and clients
of Kafka 0.8 look for them. OffsetFetch names several groups in version 8 and later.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any, TypeVar

from ottla.broker.groups.admin import GroupAdmin
from ottla.broker.groups.commits import (
    NO_OFFSET,
    Committer,
    FetchedOffset,
    GroupCommits,
    java_length,
)
from ottla.broker.groups.offsets import NO_TIMESTAMP, CommittedOffset
from ottla.broker.handlers.common.group_request_errors import GroupRequestErrorLog
from ottla.broker.handlers.common.topic_rows import TopicRows, split_known
from ottla.broker.requests.api_routes import ApiRoute
from ottla.broker.requests.request_channel import DEFERRED, Deferred, RequestContext
from ottla.broker.requests.request_parts import INDEXES, TOPICS, Items
from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitResponse,
    OffsetCommitResponsePartition,
    OffsetCommitResponseTopic,
)
from ottla.protocol.messages.offset_delete import (
    OffsetDeleteRequest,
    OffsetDeleteResponse,
    OffsetDeleteResponsePartition,
    OffsetDeleteResponseTopic,
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
from ottla.protocol.registry import ApiKey
from ottla.protocol.steps import Steps, run_at_once
from ottla.protocol.topics import TopicPartition

if TYPE_CHECKING:
    from ottla.broker.cluster.metadata_cache import MetadataCache
    from ottla.broker.coordination.znodes import ZnodeConsumerOffsets

# Java's Long.MAX_VALUE, with which clients say that offsets do not expire: what a record can hold.
_LAST_TIMESTAMP = 2**63 - 1


class OffsetCommitHandler:
    """Checks which partitions exist and hands the offsets to the group coordinator."""

    def __init__(
        self,
        commits: GroupCommits,
        topics: MetadataCache,
        znode_offsets: ZnodeConsumerOffsets,
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
            return _commit_response(rows)
        if context.header.api_version == 0:
            return self._commit_to_znodes(request, known, rows)

        def send_response(results: dict[TopicPartition, int]) -> None:
            add = rows.add
            for partition, error in results.items():
                add(partition, error)
                if error:
                    self._request_errors.log(
                        context,
                        "OffsetCommit",
                        request.group_id,
                        request.member_id,
                        request.generation_id_or_member_epoch,
                        error,
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
        return _commit_response(rows)

    def _known_offsets(
        self, request: OffsetCommitRequest, unknown: TopicRows[int]
    ) -> dict[TopicPartition, CommittedOffset]:
        """Return the offsets of the partitions that exist, the last one of a duplicate partition.

        The others get UNKNOWN_TOPIC_OR_PARTITION in `unknown`.
        """
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


def _commit_response(rows: TopicRows[int]) -> OffsetCommitResponse:
    response = OffsetCommitResponse()
    topics = response.topics
    for name, partitions in rows.items():
        found = [OffsetCommitResponsePartition(index, error) for index, error in partitions]
        topics.append(OffsetCommitResponseTopic(name, found))
    return response


Topic = TypeVar("Topic", OffsetFetchResponseTopic, OffsetFetchResponseTopics)


class OffsetFetchHandler:
    """Reads from the group coordinator and builds the response of each version."""

    def __init__(
        self, commits: GroupCommits, topics: MetadataCache, znode_offsets: ZnodeConsumerOffsets
    ) -> None:
        self._commits = commits
        self._topics = topics
        self._znode_offsets = znode_offsets

    def handle(
        self, context: RequestContext, request: OffsetFetchRequest
    ) -> Steps[OffsetFetchResponse] | Coroutine[Any, Any, OffsetFetchResponse]:
        version = context.header.api_version
        if version == 0:
            return self._fetch_from_znodes(request)
        if version >= 8:
            return self._fetch_groups(request)
        return self._fetch_before_v8(request, version)

    def _fetch_before_v8(
        self, request: OffsetFetchRequest, version: int
    ) -> Steps[OffsetFetchResponse]:
        partitions = _partitions_of(request.topics)
        error, found = yield from self._commits.fetch(
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

    def _fetch_groups(self, request: OffsetFetchRequest) -> Steps[OffsetFetchResponse]:
        response = OffsetFetchResponse()
        for group in request.groups:
            row = yield from self._fetch_group(group, request.require_stable)
            response.groups.append(row)
        return response

    def _fetch_group(
        self, group: OffsetFetchRequestGroup, require_stable: bool
    ) -> Steps[OffsetFetchResponseGroup]:
        error, found = yield from self._commits.fetch(
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
    """Return the requested partitions; None stands for all committed ones."""
    if topics is None:
        return None
    return [
        TopicPartition(topic.name, index) for topic in topics for index in topic.partition_indexes
    ]


def _topics_before_v8(
    found: dict[TopicPartition, FetchedOffset],
) -> Steps[list[OffsetFetchResponseTopic]]:
    return _topics_of(found, OffsetFetchResponseTopic, OffsetFetchResponsePartition)


def _topics_of(
    found: dict[TopicPartition, FetchedOffset],
    new_topic: Callable[[str], Topic],
    new_row: Callable[..., Any],
) -> Steps[list[Topic]]:
    """Return the rows by topic; version 8 and later have types of their own with these fields."""
    topics: dict[str, Topic] = {}
    for partition, fetched in found.items():
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
        yield
    return list(topics.values())


class OffsetDeleteHandler:
    """Checks that the partitions exist and builds the response."""

    def __init__(self, admin: GroupAdmin, topics: MetadataCache) -> None:
        self._admin = admin
        self._topics = topics

    def handle(self, context: RequestContext, request: OffsetDeleteRequest) -> Deferred:
        rows: TopicRows[int] = TopicRows()
        known = split_known(
            self._topics,
            (
                (TopicPartition(topic.name, partition.partition_index), None)
                for topic in request.topics
                for partition in topic.partitions
            ),
            rows,
        )

        def send_response(error_code: int, results: dict[TopicPartition, int]) -> None:
            if error_code:
                context.respond(OffsetDeleteResponse(error_code=error_code))
                return
            for partition, error in results.items():
                rows.add(partition, error)
            context.respond(OffsetDeleteResponse(topics=_delete_topics(rows)))

        self._admin.delete_offsets(request.group_id, known, send_response)
        return DEFERRED


def _delete_topics(rows: TopicRows[int]) -> list[OffsetDeleteResponseTopic]:
    return [
        OffsetDeleteResponseTopic(
            name=name,
            partitions=[
                OffsetDeleteResponsePartition(partition_index=index, error_code=error)
                for index, error in found
            ],
        )
        for name, found in rows.items()
    ]


def _offset_commit_errors(request: Any, response: Any, code: int, message: str | None) -> None:
    for topic in request.topics:
        rows = [
            OffsetCommitResponsePartition(requested.partition_index, code)
            for requested in topic.partitions
        ]
        response.topics.append(OffsetCommitResponseTopic(topic.name, rows))


def _offset_fetch_errors(request: Any, response: Any, code: int, message: str | None) -> None:
    # Below version 2 there is no other place; from version 8 on there are groups instead.
    for topic in request.topics or ():
        rows = [
            OffsetFetchResponsePartition(index, -1, -1, "", code)
            for index in topic.partition_indexes
        ]
        response.topics.append(OffsetFetchResponseTopic(topic.name, rows))
    for group in request.groups:
        response.groups.append(OffsetFetchResponseGroup(group.group_id, [], code))


ROUTES = (
    ApiRoute(
        ApiKey.OFFSET_COMMIT,
        OffsetCommitHandler.handle,
        check="offset_commit",
        errors=_offset_commit_errors,
        items=(TOPICS,),
    ),
    ApiRoute(
        ApiKey.OFFSET_FETCH,
        OffsetFetchHandler.handle,
        check="offset_fetch",
        errors=_offset_fetch_errors,
        items=(INDEXES, Items("groups", "groups", INDEXES)),
    ),
    ApiRoute(
        ApiKey.OFFSET_DELETE,
        OffsetDeleteHandler.handle,
        check="offset_delete",
        items=(TOPICS,),
    ),
)
