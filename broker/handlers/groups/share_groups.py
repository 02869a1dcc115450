"""Share groups (KIP-932), their members and their start offsets.

ShareGroupHeartbeat (76) and ShareGroupDescribe (77), version 1, DescribeShareGroupOffsets (90),
versions 0 and 1, AlterShareGroupOffsets (91) and DeleteShareGroupOffsets (92), version 0. Listed
where `group.coordinator.rebalance.protocols` contains `share`. If another broker of the cluster
does not serve share groups, ApiVersions does not list heartbeats, fetches and acknowledgements; a
heartbeat gets UNSUPPORTED_VERSION and the log says why.

As in Kafka, a group or topic that does not exist has the start offset -1, without an error, and
altering the offsets of a missing group creates it. The lag of version 1 (KIP-1226) counts the
records from the start offset to the high watermark that are not delivered for good; -1 for a share
partition that was never read. Describing needs DESCRIBE on the group and the topics, altering READ
on both, deleting DELETE on the group and READ on the topics. Only the offsets of an empty group can
be altered or deleted.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine
from copy import copy
from typing import TYPE_CHECKING, Any

from ottla.broker.groups.share.share_groups import ASSIGNOR, ShareGroups
from ottla.broker.handlers.common.authorized_operations import GROUP_OPERATIONS
from ottla.broker.requests.api_routes import ApiRoute
from ottla.broker.requests.error_responses import error_code, error_message
from ottla.broker.requests.request_channel import DEFERRED, Deferred, RequestContext
from ottla.broker.runtime.tasks import gather_limited, spawn
from ottla.broker.security.authorization.acl_types import Operation, ResourceType
from ottla.broker.share.persister import SharePartitionKey, StateSummary
from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.protocol.messages import alter_share_group_offsets as altering
from ottla.protocol.messages import delete_share_group_offsets as deleting
from ottla.protocol.messages import describe_share_group_offsets as describing
from ottla.protocol.messages import share_group_describe as described
from ottla.protocol.messages import share_group_heartbeat as heartbeats
from ottla.protocol.registry import ApiKey
from ottla.protocol.topics import TopicPartition

if TYPE_CHECKING:
    from ottla.broker.cluster.metadata_cache import MetadataCache
    from ottla.broker.groups.share.records import Topics
    from ottla.broker.groups.share.share_group import ShareMember
    from ottla.broker.groups.share.share_groups import ShareGroups
    from ottla.broker.handlers.common.group_request_errors import GroupRequestErrorLog
    from ottla.broker.security.authorization.access_control import Allows
    from ottla.protocol.steps import Steps


class ShareGroupHandlers:
    """Hands the requests to the group coordinator."""

    def __init__(
        self,
        groups: ShareGroups,
        metadata: MetadataCache,
        check_cluster: Callable[[], Awaitable[None]],
        request_errors: GroupRequestErrorLog,
    ) -> None:
        """`check_cluster` raises KafkaError where share groups cannot work (`ClusterSupport`)."""
        self._groups = groups
        self._metadata = metadata
        self._check_cluster = check_cluster
        self._request_errors = request_errors

    def heartbeat(
        self, context: RequestContext, request: heartbeats.ShareGroupHeartbeatRequest
    ) -> Deferred:
        spawn(self._heartbeat(context, request), name="ShareGroupHeartbeat")
        return DEFERRED

    async def _heartbeat(
        self, context: RequestContext, request: heartbeats.ShareGroupHeartbeatRequest
    ) -> None:
        try:
            if request.member_epoch >= 0:  # one that leaves may do so in any cluster
                await self._check(context, request.group_id)
            result = await self._groups.heartbeat(
                request, context.header.client_id or "", f"/{context.client_host}"
            )
        except Exception as error:
            context.respond(
                heartbeats.ShareGroupHeartbeatResponse(
                    error_code=error_code(error), error_message=error_message(error)
                )
            )
            return
        response = heartbeats.ShareGroupHeartbeatResponse(
            member_id=request.member_id,
            member_epoch=result.member_epoch,
            # As in Kafka, a member that leaves gets no interval.
            heartbeat_interval_ms=(
                self._groups.limits.heartbeat_interval_ms(request.group_id)
                if result.member_epoch >= 0
                else 0
            ),
        )
        if result.assignment is not None:
            rows = sorted(result.assignment.items())
            response.assignment = heartbeats.Assignment(
                [heartbeats.TopicPartitions(topic_id, indexes) for topic_id, indexes in rows]
            )
        context.respond(response)

    async def _check(self, context: RequestContext, group_id: str) -> None:
        try:
            await self._check_cluster()
        except KafkaError as error:
            if error.code == ErrorCode.UNSUPPORTED_VERSION:
                reason = error_message(error) or ""
                self._request_errors.log_refused(context, "ShareGroupHeartbeat", group_id, reason)
            raise

    def describe(
        self, _: RequestContext, request: described.ShareGroupDescribeRequest
    ) -> Steps[described.ShareGroupDescribeResponse]:
        rows = []
        for group_id in request.group_ids:
            row = yield from self._describe(group_id)
            if request.include_authorized_operations and not row.error_code:
                row.authorized_operations = GROUP_OPERATIONS
            rows.append(row)
            yield
        return described.ShareGroupDescribeResponse(groups=rows)

    def _describe(self, group_id: str) -> Steps[described.DescribedGroup]:
        try:
            group = self._groups.find(group_id)
        except KafkaError as error:
            return described.DescribedGroup(error_code=error.code, group_id=group_id)
        if group is None:
            return described.DescribedGroup(
                error_code=ErrorCode.GROUP_ID_NOT_FOUND,
                error_message=f"Group {group_id} not found.",
                group_id=group_id,
            )
        members = [copy(member) for member in group.members.values()]  # of this moment
        found = described.DescribedGroup(
            group_id=group_id,
            group_state=group.state,
            group_epoch=group.epoch,
            assignment_epoch=group.target_epoch,
            assignor_name=ASSIGNOR,
        )
        for member in members:
            found.members.append(self._member(member))
            yield
        return found

    def _member(self, member: ShareMember) -> described.Member:
        return described.Member(
            member_id=member.member_id,
            rack_id=member.rack_id,
            member_epoch=member.epoch,
            client_id=member.client_id,
            client_host=member.client_host,
            subscribed_topic_names=sorted(member.topics),
            assignment=described.Assignment(self._rows(member.assigned)),
        )

    def _rows(self, topics: Topics) -> list[described.TopicPartitions]:
        names = self._metadata.snapshot.topic_names
        return [
            described.TopicPartitions(topic_id, names.get(topic_id, ""), indexes)
            for topic_id, indexes in sorted(topics.items())
        ]


# Share partitions that are read at the same time: each waits while its share coordinator cannot be
# reached, and the client waits for all of them.
_READS_AT_ONCE = 256

EndOffset = Callable[[TopicPartition], Awaitable[int | None]]


class ShareOffsetsHandlers:
    """Reads and resets the start offsets of share groups."""

    def __init__(
        self,
        groups: ShareGroups,
        metadata: MetadataCache,
        allows: Allows,
        end_offset: EndOffset,
    ) -> None:
        """`end_offset` returns the high watermark of a partition, None if it is not known."""
        self._end_offset = end_offset
        self._groups = groups
        self._metadata = metadata
        self._allows = allows

    def describe(
        self, context: RequestContext, request: describing.DescribeShareGroupOffsetsRequest
    ) -> Deferred:
        spawn(self._describe_all(context, request), name="DescribeShareGroupOffsets")
        return DEFERRED

    async def _describe_all(
        self, context: RequestContext, request: describing.DescribeShareGroupOffsetsRequest
    ) -> None:
        response = describing.DescribeShareGroupOffsetsResponse()
        reads: list[Coroutine[Any, Any, None]] = []
        for wanted in request.groups:
            row = describing.DescribeShareGroupOffsetsResponseGroup(wanted.group_id)
            try:
                if not self._allows(
                    context, Operation.DESCRIBE, ResourceType.GROUP, wanted.group_id
                ):
                    raise KafkaError(ErrorCode.GROUP_AUTHORIZATION_FAILED)
                row.topics = self._describe(context, wanted, reads)
            except Exception as error:
                row.error_code, row.error_message = error_code(error), error_message(error)
            response.groups.append(row)
        await gather_limited(reads, _READS_AT_ONCE)
        context.respond(response)

    def _describe(
        self,
        context: RequestContext,
        wanted: describing.DescribeShareGroupOffsetsRequestGroup,
        reads: list[Coroutine[Any, Any, None]],
    ) -> list[describing.DescribeShareGroupOffsetsResponseTopic]:
        """Return the rows of a group; `reads` gets what fills those of share partitions."""
        group = self._groups.find(wanted.group_id)
        snapshot = self._metadata.snapshot
        if wanted.topics is None:
            initialized = {} if group is None else group.initialized
            topics = [
                (snapshot.topic_names[topic_id], indexes)
                for topic_id, indexes in initialized.items()
                if topic_id in snapshot.topic_names  # else it was deleted
            ]
        else:
            topics = [(topic.topic_name, topic.partitions) for topic in wanted.topics]
        with_lag = context.header.api_version >= 1
        rows = []
        for name, indexes in topics:
            known = snapshot.topics.get(name)
            row = describing.DescribeShareGroupOffsetsResponseTopic(name)
            rows.append(row)
            code = ErrorCode.NONE
            if not self._allows(context, Operation.DESCRIBE, ResourceType.TOPIC, name):
                code = ErrorCode.TOPIC_AUTHORIZATION_FAILED
            elif known is not None:
                row.topic_id = known.topic_id
            for index in indexes:
                partition = describing.DescribeShareGroupOffsetsResponsePartition(
                    index, start_offset=-1, error_code=code
                )
                row.partitions.append(partition)
                if known is None or code:
                    continue  # a topic that does not exist has no start offset
                if index not in known.partitions:
                    partition.error_code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
                    continue
                key = SharePartitionKey(wanted.group_id, known.topic_id, index)
                reads.append(self._read(key, TopicPartition(name, index), partition, with_lag))
        return rows

    async def _read(
        self,
        key: SharePartitionKey,
        where: TopicPartition,
        row: describing.DescribeShareGroupOffsetsResponsePartition,
        with_lag: bool,
    ) -> None:
        try:
            summary = await self._groups.summary(key)
            row.start_offset, row.leader_epoch = summary.start_offset, summary.leader_epoch
            if with_lag:
                row.lag = await self._lag(where, summary)
        except Exception as error:
            row.error_code = error_code(error)

    async def _lag(self, where: TopicPartition, summary: StateSummary) -> int:
        if summary.start_offset < 0 or summary.delivery_complete_count < 0:
            return -1
        end_offset = await self._end_offset(where)
        if end_offset is None:
            return -1
        return max(0, end_offset - summary.start_offset - summary.delivery_complete_count)

    def alter(
        self, context: RequestContext, request: altering.AlterShareGroupOffsetsRequest
    ) -> Deferred:
        spawn(self._alter(context, request), name="AlterShareGroupOffsets")
        return DEFERRED

    async def _alter(
        self, context: RequestContext, request: altering.AlterShareGroupOffsetsRequest
    ) -> None:
        response = altering.AlterShareGroupOffsetsResponse()
        offsets: dict[bytes, dict[int, int]] = {}
        for topic in request.topics:
            known = self._metadata.snapshot.topics.get(topic.topic_name)
            row = altering.AlterShareGroupOffsetsResponseTopic(topic.topic_name)
            response.responses.append(row)
            is_allowed = self._allows(context, Operation.READ, ResourceType.TOPIC, topic.topic_name)
            if known is not None:
                row.topic_id = known.topic_id
            for wanted in topic.partitions:
                index = wanted.partition_index
                code = ErrorCode.NONE
                if not is_allowed:
                    code = ErrorCode.TOPIC_AUTHORIZATION_FAILED
                elif known is None or index not in known.partitions:
                    code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
                else:
                    offsets.setdefault(known.topic_id, {})[index] = wanted.start_offset
                row.partitions.append(altering.AlterShareGroupOffsetsResponsePartition(index, code))
        try:
            if not self._allows(context, Operation.READ, ResourceType.GROUP, request.group_id):
                raise KafkaError(ErrorCode.GROUP_AUTHORIZATION_FAILED)
            await self._groups.reset(request.group_id, offsets)
        except Exception as error:
            response.error_code, response.error_message = error_code(error), error_message(error)
            response.responses = []
        context.respond(response)

    def delete(
        self, context: RequestContext, request: deleting.DeleteShareGroupOffsetsRequest
    ) -> Deferred:
        spawn(self._delete(context, request), name="DeleteShareGroupOffsets")
        return DEFERRED

    async def _delete(
        self, context: RequestContext, request: deleting.DeleteShareGroupOffsetsRequest
    ) -> None:
        response = deleting.DeleteShareGroupOffsetsResponse()
        try:
            group = self._groups.find(request.group_id)
            topic_ids = []
            for topic in request.topics:
                name = topic.topic_name
                known = self._metadata.snapshot.topics.get(name)
                row = deleting.DeleteShareGroupOffsetsResponseTopic(name)
                response.responses.append(row)
                if not self._allows(context, Operation.READ, ResourceType.TOPIC, name):
                    row.error_code = ErrorCode.TOPIC_AUTHORIZATION_FAILED
                elif known is None:
                    row.error_code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
                elif group is not None and known.topic_id not in group.initialized:
                    row.error_code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
                    row.error_message = "There is no offset information to delete."
                else:
                    row.topic_id = known.topic_id
                    topic_ids.append(known.topic_id)
            await self._groups.delete_offsets(request.group_id, topic_ids)
        except Exception as error:
            response.error_code, response.error_message = error_code(error), error_message(error)
            response.responses = []
        context.respond(response)


def _share_group_describe_errors(
    request: Any, response: Any, code: int, message: str | None
) -> None:
    for group_id in request.group_ids:
        response.groups.append(described.DescribedGroup(code, message, group_id))


def _describe_share_group_offsets_errors(
    request: Any, response: Any, code: int, message: str | None
) -> None:
    for group in request.groups:
        response.groups.append(
            describing.DescribeShareGroupOffsetsResponseGroup(
                group.group_id, error_code=code, error_message=message
            )
        )


ROUTES = (
    ApiRoute(
        ApiKey.SHARE_GROUP_HEARTBEAT,
        ShareGroupHandlers.heartbeat,
        check="share_group_heartbeat",
    ),
    ApiRoute(
        ApiKey.SHARE_GROUP_DESCRIBE,
        ShareGroupHandlers.describe,
        check="share_group_describe",
        errors=_share_group_describe_errors,
    ),
    ApiRoute(
        ApiKey.DESCRIBE_SHARE_GROUP_OFFSETS,
        ShareOffsetsHandlers.describe,
        check="checked_by_row",
        errors=_describe_share_group_offsets_errors,
    ),
    ApiRoute(
        ApiKey.ALTER_SHARE_GROUP_OFFSETS,
        ShareOffsetsHandlers.alter,
        check="member",
    ),
    ApiRoute(
        ApiKey.DELETE_SHARE_GROUP_OFFSETS,
        ShareOffsetsHandlers.delete,
        check="delete_share_offsets",
    ),
)
