"""DescribeGroups (15), ListGroups (16), DeleteGroups (42) and OffsetDelete (47)."""

from ottla.broker.groups.admin import GroupAdmin
from ottla.broker.handlers.topic_rows import TopicRows, Topics, split_known
from ottla.broker.requests.request_channel import DEFERRED, Deferred, RequestContext
from ottla.protocol.messages.delete_groups import (
    DeletableGroupResult,
    DeleteGroupsRequest,
    DeleteGroupsResponse,
)
from ottla.protocol.messages.describe_groups import DescribeGroupsRequest, DescribeGroupsResponse
from ottla.protocol.messages.list_groups import ListedGroup, ListGroupsRequest, ListGroupsResponse
from ottla.protocol.messages.offset_delete import (
    OffsetDeleteRequest,
    OffsetDeleteResponse,
    OffsetDeleteResponsePartition,
    OffsetDeleteResponseTopic,
)
from ottla.protocol.topics import TopicPartition

# READ, DELETE, DESCRIBE as bits of Kafka's AclOperation: what can be allowed on a group.
ALL_GROUP_OPERATIONS = 1 << 3 | 1 << 6 | 1 << 8


class GroupAdminHandlers:
    """Shapes the answers of the administrative group requests."""

    def __init__(self, admin: GroupAdmin, topics: Topics) -> None:
        self._admin = admin
        self._topics = topics

    def describe_groups(
        self, context: RequestContext, request: DescribeGroupsRequest
    ) -> DescribeGroupsResponse:
        groups = [self._admin.describe(group_id) for group_id in request.groups]
        if request.include_authorized_operations:
            for group in groups:
                if not group.error_code:
                    group.authorized_operations = ALL_GROUP_OPERATIONS
        return DescribeGroupsResponse(groups=groups)

    def list_groups(
        self, context: RequestContext, request: ListGroupsRequest
    ) -> ListGroupsResponse:
        error, groups = self._admin.list_groups(request.states_filter, request.types_filter)
        return ListGroupsResponse(
            error_code=error,
            groups=[
                ListedGroup(
                    group_id=group.group_id,
                    protocol_type=group.protocol_type or "",
                    group_state=group.state.value,
                    group_type=group.kind,
                )
                for group in groups
            ],
        )

    def delete_groups(self, context: RequestContext, request: DeleteGroupsRequest) -> Deferred:
        def reply(results: dict[str, int]) -> None:
            context.respond(
                DeleteGroupsResponse(
                    results=[
                        DeletableGroupResult(group_id=group_id, error_code=error)
                        for group_id, error in results.items()
                    ]
                )
            )

        self._admin.delete_groups(dict.fromkeys(request.groups_names), reply)
        return DEFERRED

    def offset_delete(self, context: RequestContext, request: OffsetDeleteRequest) -> Deferred:
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

        def reply(error_code: int, results: dict[TopicPartition, int]) -> None:
            if error_code:
                context.respond(OffsetDeleteResponse(error_code=error_code))
                return
            for partition, error in results.items():
                rows.add(partition, error)
            context.respond(
                OffsetDeleteResponse(
                    topics=[
                        OffsetDeleteResponseTopic(
                            name=name,
                            partitions=[
                                OffsetDeleteResponsePartition(
                                    partition_index=index, error_code=error
                                )
                                for index, error in found
                            ],
                        )
                        for name, found in rows.items()
                    ]
                )
            )

        self._admin.delete_offsets(request.group_id, known, reply)
        return DEFERRED
