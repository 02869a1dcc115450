"""Checks of what clients do with consumer groups and their offsets."""

from __future__ import annotations

from operator import attrgetter
from typing import TYPE_CHECKING, Any

from ottla.broker.requests.request_context import amend
from ottla.broker.security.authorization.acl_types import Operation, ResourceType
from ottla.broker.security.authorization.guard import Guard, refused_rows
from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.protocol.messages.offset_delete import (
    OffsetDeleteResponsePartition,
    OffsetDeleteResponseTopic,
)
from ottla.protocol.messages.offset_fetch import (
    OffsetFetchResponseGroup,
    OffsetFetchResponsePartitions,
    OffsetFetchResponseTopics,
)
from ottla.protocol.registry import ApiKey

if TYPE_CHECKING:
    from ottla.broker.requests.request_context import RequestContext
    from ottla.broker.security.authorization.authorizer import Authorizer
    from ottla.protocol.steps import Steps

_NAME = attrgetter("name")
_GROUP_COORDINATOR, _TRANSACTION_COORDINATOR, _SHARE_COORDINATOR = 0, 1, 2
_TOPICS = ("topics", "topics")


class GroupGuard(Guard):
    """A method for each check that a route names."""

    def __init__(self, authorizer: Authorizer) -> None:
        super().__init__(authorizer)

    def member(self, context: RequestContext, request: Any) -> None:
        self.require(context, Operation.READ, ResourceType.GROUP, request.group_id)

    def waiting_member(self, context: RequestContext, request: Any) -> None:
        """JoinGroup and SyncGroup wait for other members, ShareFetch for records: the right is
        checked again for the response if an ACL has changed meanwhile."""
        self.member(context, request)
        authorizer = self.authorizer
        version = authorizer.rules.version

        def change(response: Any) -> None:
            if authorizer.rules.version == version or authorizer.allows(
                context, Operation.READ, ResourceType.GROUP, request.group_id
            ):
                return
            response.error_code = ErrorCode.GROUP_AUTHORIZATION_FAILED
            if request.API_KEY == ApiKey.JOIN_GROUP:
                response.members = []
            elif request.API_KEY == ApiKey.SYNC_GROUP:
                response.assignment = b""
            else:
                response.responses = []

        amend(context, change)

    def share_group_heartbeat(self, context: RequestContext, request: Any) -> None:
        """DESCRIBE on all subscribed topics, so that a member learns nothing of the others."""
        self.member(context, request)
        for name in dict.fromkeys(request.subscribed_topic_names or ()):
            self.require(context, Operation.DESCRIBE, ResourceType.TOPIC, name)

    def delete_share_offsets(self, context: RequestContext, request: Any) -> None:
        self.require(context, Operation.DELETE, ResourceType.GROUP, request.group_id)

    def share_member(self, context: RequestContext, request: Any) -> None:
        if request.group_id is not None:  # else the handler returns INVALID_REQUEST
            self.member(context, request)

    def waiting_share_member(self, context: RequestContext, request: Any) -> None:
        if request.group_id is not None:
            self.waiting_member(context, request)

    def checked_by_row(self, context: RequestContext, request: Any) -> None:
        """The handler checks each group and each topic, for each has a row of its own."""

    # Offsets.

    def offset_commit(self, context: RequestContext, request: Any) -> None:
        self.require(context, Operation.READ, ResourceType.GROUP, request.group_id)
        self.keep_allowed(context, request, Operation.READ, ResourceType.TOPIC, _TOPICS, _NAME)

    def txn_offset_commit(self, context: RequestContext, request: Any) -> None:
        self.require(
            context, Operation.WRITE, ResourceType.TRANSACTIONAL_ID, request.transactional_id
        )
        self.offset_commit(context, request)

    def offset_delete(self, context: RequestContext, request: Any) -> None:
        self.require(context, Operation.DELETE, ResourceType.GROUP, request.group_id)
        allowed, denied = self.sort_out(
            context, Operation.READ, ResourceType.TOPIC, request.topics, _NAME
        )
        if not denied:
            return
        code = ErrorCode.TOPIC_AUTHORIZATION_FAILED
        rows = [
            OffsetDeleteResponseTopic(
                topic.name,
                [
                    OffsetDeleteResponsePartition(requested.partition_index, code)
                    for requested in topic.partitions
                ],
            )
            for topic in denied
        ]
        request.topics = allowed
        amend(context, lambda response: response.error_code or response.topics.extend(rows))

    def offset_fetch(self, context: RequestContext, request: Any) -> None:
        if context.header.api_version >= 8:
            self._offset_fetch_of_groups(context, request)
            return
        if not self.authorizer.allows(
            context, Operation.DESCRIBE, ResourceType.GROUP, request.group_id
        ):
            if context.header.api_version:
                request.topics = []  # then the response has no rows for its topics
            raise KafkaError(ErrorCode.GROUP_AUTHORIZATION_FAILED)
        if request.topics is None:
            amend(context, lambda response: self._hide_topics(context, response))
        else:
            self.keep_allowed(
                context, request, Operation.DESCRIBE, ResourceType.TOPIC, _TOPICS, _NAME
            )

    def _offset_fetch_of_groups(self, context: RequestContext, request: Any) -> None:
        allowed, denied = self.sort_out(
            context,
            Operation.DESCRIBE,
            ResourceType.GROUP,
            request.groups,
            attrgetter("group_id"),
        )
        request.groups = allowed
        hidden: set[str] = set()
        refused: dict[str, list[OffsetFetchResponseTopics]] = {}
        for group in allowed:
            if group.topics is None:
                hidden.add(group.group_id)
                continue
            group.topics, not_allowed = self.sort_out(
                context, Operation.DESCRIBE, ResourceType.TOPIC, group.topics, _NAME
            )
            refused[group.group_id] = [_refused_offsets(topic) for topic in not_allowed]
        code = ErrorCode.GROUP_AUTHORIZATION_FAILED

        def change(response: Any) -> Steps[None]:
            for row in response.groups:
                if row.group_id in hidden:
                    yield from self._hide_topics(context, row)
                elif not row.error_code:
                    row.topics.extend(refused.get(row.group_id, ()))
            response.groups.extend(
                OffsetFetchResponseGroup(group.group_id, [], code) for group in denied
            )

        amend(context, change)

    def _hide_topics(self, context: RequestContext, rows: Any) -> Steps[None]:
        """All committed offsets of a group were requested: leave out the hidden topics."""
        rows.topics = yield from self.visible(context, ResourceType.TOPIC, rows.topics, _NAME)

    # Coordinators.

    def find_coordinator(self, context: RequestContext, request: Any) -> None:
        if request.key_type == _GROUP_COORDINATOR:
            kind, code = ResourceType.GROUP, ErrorCode.GROUP_AUTHORIZATION_FAILED
        elif request.key_type == _TRANSACTION_COORDINATOR:
            kind = ResourceType.TRANSACTIONAL_ID
            code = ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
        else:
            if request.key_type == _SHARE_COORDINATOR and context.header.api_version >= 6:
                self.require_on_cluster(context, Operation.CLUSTER_ACTION)
            return  # the handler knows no other coordinators
        if context.header.api_version < 4:
            self.require(context, Operation.DESCRIBE, kind, request.key)
            return
        allowed, denied = self.sort_out(
            context, Operation.DESCRIBE, kind, request.coordinator_keys, str
        )
        if denied:
            fields = ("coordinator_keys", "coordinators")
            rows = refused_rows(context, request, fields, denied, code, KafkaError(code).message)
            request.coordinator_keys = allowed
            amend(context, lambda response: response.coordinators.extend(rows))

    # Describing groups, and deleting them.

    def describe_groups(self, context: RequestContext, request: Any) -> None:
        self.keep_allowed(
            context,
            request,
            Operation.DESCRIBE,
            ResourceType.GROUP,
            ("groups", "groups"),
            str,
        )
        self._set_operations(context, request)

    def consumer_group_describe(self, context: RequestContext, request: Any) -> None:
        from ottla.protocol.messages.consumer_group_describe import DescribedGroup

        self._describe(context, request, DescribedGroup)

    def share_group_describe(self, context: RequestContext, request: Any) -> None:
        from ottla.protocol.messages.share_group_describe import DescribedGroup

        self._describe(context, request, DescribedGroup)

        def may_see(group: Any) -> bool:
            names = dict.fromkeys(
                topic.topic_name
                for member in group.members
                for topic in member.assignment.topic_partitions
            )
            return all(
                self.authorizer.allows(context, Operation.DESCRIBE, ResourceType.TOPIC, name)
                for name in names
            )

        def change(response: Any) -> None:
            """As in Kafka, a group with a topic that is hidden is hidden as a whole."""
            code = ErrorCode.TOPIC_AUTHORIZATION_FAILED
            response.groups = [
                group
                if may_see(group)
                else DescribedGroup(error_code=code, group_id=group.group_id)
                for group in response.groups
            ]

        amend(context, change)

    def _describe(self, context: RequestContext, request: Any, row: Any) -> None:
        """Takes out the groups that are denied; `row` is the type of their rows."""
        request.group_ids, denied = self.sort_out(
            context, Operation.DESCRIBE, ResourceType.GROUP, request.group_ids, str
        )
        code = ErrorCode.GROUP_AUTHORIZATION_FAILED
        rows = [row(error_code=code, group_id=group_id) for group_id in denied]
        amend(context, lambda response: response.groups.extend(rows))
        self._set_operations(context, request)

    def _set_operations(self, context: RequestContext, request: Any) -> None:
        if not request.include_authorized_operations:
            return

        def change(response: Any) -> None:
            for row in response.groups:
                if not row.error_code:
                    row.authorized_operations = self.authorizer.operations(
                        context, ResourceType.GROUP, row.group_id
                    )

        amend(context, change)

    def list_groups(self, context: RequestContext, request: Any) -> None:
        if self.authorizer.allows_on_cluster(context, Operation.DESCRIBE, log_if_denied=False):
            return

        def change(response: Any) -> Steps[None]:
            response.groups = yield from self.visible(
                context, ResourceType.GROUP, response.groups, attrgetter("group_id")
            )

        amend(context, change)

    def delete_groups(self, context: RequestContext, request: Any) -> None:
        self.keep_allowed(
            context,
            request,
            Operation.DELETE,
            ResourceType.GROUP,
            ("groups_names", "results"),
            str,
        )


def _refused_offsets(topic: Any) -> OffsetFetchResponseTopics:
    code = ErrorCode.TOPIC_AUTHORIZATION_FAILED
    return OffsetFetchResponseTopics(
        topic.name,
        [
            OffsetFetchResponsePartitions(index, -1, -1, "", code)
            for index in topic.partition_indexes
        ],
    )
