"""Checks of what administrators and other brokers do: topics, settings, the cluster."""

from __future__ import annotations

from functools import partial
from operator import attrgetter
from typing import TYPE_CHECKING, Any

from ottla.broker.requests.request_context import amend
from ottla.broker.security.authorization.acl_types import CLUSTER_NAME, Operation, ResourceType
from ottla.broker.security.authorization.guard import Check, Guard, refused_rows, unchecked
from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages.delete_topics import DeletableTopicResult
from ottla.protocol.registry import ApiKey
from ottla.protocol.steps import run_at_once

if TYPE_CHECKING:
    from ottla.broker.cluster.metadata_cache import MetadataCache
    from ottla.broker.requests.bulk_requests import EarlyCheck
    from ottla.broker.requests.request_context import RequestContext
    from ottla.broker.security.authorization.authorizer import Authorizer
    from ottla.protocol.steps import Steps

_NAME = attrgetter("name")
_TOPIC_SETTINGS, _GROUP_SETTINGS = 2, 32
_MAX_TOPICS_AT_ONCE = 1000

# Requests that are about the cluster as a whole.
_ON_CLUSTER = {
    ApiKey.LEADER_AND_ISR: Operation.CLUSTER_ACTION,
    ApiKey.STOP_REPLICA: Operation.CLUSTER_ACTION,
    ApiKey.UPDATE_METADATA: Operation.CLUSTER_ACTION,
    ApiKey.CONTROLLED_SHUTDOWN: Operation.CLUSTER_ACTION,
    ApiKey.ALTER_PARTITION: Operation.CLUSTER_ACTION,
    ApiKey.ALLOCATE_PRODUCER_IDS: Operation.CLUSTER_ACTION,
    ApiKey.INITIALIZE_SHARE_GROUP_STATE: Operation.CLUSTER_ACTION,
    ApiKey.READ_SHARE_GROUP_STATE: Operation.CLUSTER_ACTION,
    ApiKey.WRITE_SHARE_GROUP_STATE: Operation.CLUSTER_ACTION,
    ApiKey.DELETE_SHARE_GROUP_STATE: Operation.CLUSTER_ACTION,
    ApiKey.READ_SHARE_GROUP_STATE_SUMMARY: Operation.CLUSTER_ACTION,
    ApiKey.DESCRIBE_ACLS: Operation.DESCRIBE,
    ApiKey.CREATE_ACLS: Operation.ALTER,
    ApiKey.DELETE_ACLS: Operation.ALTER,
    ApiKey.ALTER_REPLICA_LOG_DIRS: Operation.ALTER,
    ApiKey.DESCRIBE_LOG_DIRS: Operation.DESCRIBE,
    ApiKey.ELECT_LEADERS: Operation.ALTER,
    ApiKey.ALTER_PARTITION_REASSIGNMENTS: Operation.ALTER,
    ApiKey.LIST_PARTITION_REASSIGNMENTS: Operation.DESCRIBE,
    ApiKey.DESCRIBE_CLIENT_QUOTAS: Operation.DESCRIBE_CONFIGS,
    ApiKey.ALTER_CLIENT_QUOTAS: Operation.ALTER_CONFIGS,
    ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS: Operation.DESCRIBE,
    ApiKey.ALTER_USER_SCRAM_CREDENTIALS: Operation.ALTER,
    ApiKey.UPDATE_FEATURES: Operation.ALTER,
    ApiKey.LIST_CLIENT_METRICS_RESOURCES: Operation.DESCRIBE_CONFIGS,
}


class AdminGuard(Guard):
    """Checks by API key in `checks`."""

    def __init__(self, authorizer: Authorizer, metadata: MetadataCache) -> None:
        super().__init__(authorizer)
        self._metadata = metadata
        #: These read nothing of the request.
        self.on_cluster: dict[int, EarlyCheck] = {
            key: partial(self._on_cluster, operation) for key, operation in _ON_CLUSTER.items()
        }
        self.checks: dict[int, Check] = {
            **self.on_cluster,
            ApiKey.CREATE_TOPICS: self._create_topics,
            ApiKey.DELETE_TOPICS: self._delete_topics,
            ApiKey.DELETE_RECORDS: self._delete_records,
            ApiKey.CREATE_PARTITIONS: self._create_partitions,
            ApiKey.DESCRIBE_CONFIGS: self._describe_configs,
            ApiKey.ALTER_CONFIGS: self._alter_configs,
            ApiKey.INCREMENTAL_ALTER_CONFIGS: self._alter_configs,
            ApiKey.DESCRIBE_CLUSTER: self._describe_cluster,
            ApiKey.DESCRIBE_TOPIC_PARTITIONS: self._describe_topic_partitions,
            ApiKey.ENVELOPE: unchecked,  # It is refused to all clients.
            # The handler checks: it depends on the owner of the token.
            ApiKey.CREATE_DELEGATION_TOKEN: unchecked,
            ApiKey.RENEW_DELEGATION_TOKEN: unchecked,
            ApiKey.EXPIRE_DELEGATION_TOKEN: unchecked,
            ApiKey.DESCRIBE_DELEGATION_TOKEN: unchecked,
            # What a client reports of itself needs no permission (KIP-714).
            ApiKey.GET_TELEMETRY_SUBSCRIPTIONS: unchecked,
            ApiKey.PUSH_TELEMETRY: unchecked,
        }

    def _on_cluster(self, operation: Operation, context: RequestContext, request: Any) -> None:
        self.require_on_cluster(context, operation)

    # Topics.

    def _create_topics(self, context: RequestContext, request: Any) -> None:
        names = [topic.name for topic in request.topics]
        if not self.authorizer.allows_on_cluster(context, Operation.CREATE, log_if_denied=False):
            self.keep_allowed(
                context,
                request,
                Operation.CREATE,
                ResourceType.TOPIC,
                ("topics", "topics"),
                _NAME,
                "Authorization failed.",
            )
        # The settings of a new topic are left out for senders that may not describe them.
        _, hidden = self.sort_out(
            context,
            Operation.DESCRIBE_CONFIGS,
            ResourceType.TOPIC,
            names,
            str,
            log_if_denied=False,
        )

        def change(response: Any) -> None:
            for row in response.topics:
                if row.name in hidden:
                    row.topic_config_error_code = ErrorCode.TOPIC_AUTHORIZATION_FAILED
                    row.num_partitions = row.replication_factor = -1
                    row.configs = []

        if hidden:
            amend(context, change)

    def _create_partitions(self, context: RequestContext, request: Any) -> None:
        self.keep_allowed(
            context,
            request,
            Operation.ALTER,
            ResourceType.TOPIC,
            ("topics", "results"),
            _NAME,
            "The topic authorization is failed.",
        )

    def _delete_records(self, context: RequestContext, request: Any) -> None:
        self.keep_allowed(
            context,
            request,
            Operation.DELETE,
            ResourceType.TOPIC,
            ("topics", "topics"),
            _NAME,
        )

    def _delete_topics(self, context: RequestContext, request: Any) -> None:
        request.topic_names, denied_names = self.sort_out(
            context, Operation.DELETE, ResourceType.TOPIC, request.topic_names, str
        )
        code = ErrorCode.TOPIC_AUTHORIZATION_FAILED
        rows = [DeletableTopicResult(name, error_code=code) for name in denied_names]
        names = self._metadata.snapshot.topic_names
        kept = []
        for topic in request.topics:
            name = names.get(topic.topic_id) if topic.name is None else topic.name
            if name is None or self.authorizer.allows(
                context, Operation.DELETE, ResourceType.TOPIC, name
            ):
                kept.append(topic)
                continue
            # The name of a topic that is requested by its id is hidden without DESCRIBE on it.
            is_visible = topic.name is not None or self.authorizer.allows(
                context, Operation.DESCRIBE, ResourceType.TOPIC, name, log_if_denied=False
            )
            rows.append(DeletableTopicResult(name if is_visible else None, topic.topic_id, code))
        request.topics = kept
        if rows:
            amend(context, lambda response: response.responses.extend(rows))

    def _describe_topic_partitions(
        self, context: RequestContext, request: Any
    ) -> Steps[None] | None:
        if request.topics:
            steps = self._keep_requested_topics(context, request)
            count = len(request.topics)
        else:
            steps = self._keep_visible_topics(context, request)
            count = len(self._metadata.snapshot.topics)
        if count > _MAX_TOPICS_AT_ONCE:
            return steps
        run_at_once(steps)
        return None

    def _keep_requested_topics(self, context: RequestContext, request: Any) -> Steps[None]:
        names = [topic.name for topic in request.topics]
        allowed, denied = yield from self.sort_out_in_steps(
            context, Operation.DESCRIBE, ResourceType.TOPIC, names, str
        )
        self._keep_topics(context, request, allowed, denied)

    def _keep_visible_topics(self, context: RequestContext, request: Any) -> Steps[None]:
        """All topics are requested. No page may end at a name that is hidden."""
        names = list(self._metadata.snapshot.topics)
        allowed = yield from self.visible(context, ResourceType.TOPIC, names, str)
        self._keep_topics(context, request, allowed, [])

    def _keep_topics(
        self, context: RequestContext, request: Any, allowed: list[str], refused: list[str]
    ) -> None:
        from ottla.protocol.messages.describe_topic_partitions import (
            DescribeTopicPartitionsResponseTopic,
            TopicRequest,
        )

        request.topics = [TopicRequest(name) for name in allowed]
        code = ErrorCode.TOPIC_AUTHORIZATION_FAILED

        def change(response: Any) -> None:
            if not allowed:
                response.topics, response.next_cursor = [], None
            for row in response.topics:
                row.topic_authorized_operations = self.authorizer.operations(
                    context, ResourceType.TOPIC, row.name or ""
                )
            response.topics.extend(
                DescribeTopicPartitionsResponseTopic(code, name) for name in refused
            )

        amend(context, change)

    # Settings.

    def _describe_configs(self, context: RequestContext, request: Any) -> None:
        self._check_configs(context, request, Operation.DESCRIBE_CONFIGS, "results")

    def _alter_configs(self, context: RequestContext, request: Any) -> None:
        self._check_configs(context, request, Operation.ALTER_CONFIGS, "responses")

    def _check_configs(
        self, context: RequestContext, request: Any, operation: Operation, rows_field: str
    ) -> None:
        kept = []
        rows: list[Any] = []
        for resource in request.resources:
            code = ErrorCode.CLUSTER_AUTHORIZATION_FAILED
            kind, name = ResourceType.CLUSTER, CLUSTER_NAME
            if resource.resource_type == _TOPIC_SETTINGS:
                code = ErrorCode.TOPIC_AUTHORIZATION_FAILED
                kind, name = ResourceType.TOPIC, resource.resource_name
            elif resource.resource_type == _GROUP_SETTINGS:
                code = ErrorCode.GROUP_AUTHORIZATION_FAILED
                kind, name = ResourceType.GROUP, resource.resource_name
            if self.authorizer.allows(context, operation, kind, name):
                kept.append(resource)
            else:
                fields = ("resources", rows_field)
                rows.extend(refused_rows(context, request, fields, [resource], code))
        request.resources = kept
        if rows:
            amend(context, lambda response: getattr(response, rows_field).extend(rows))

    # The cluster.

    def _describe_cluster(self, context: RequestContext, request: Any) -> None:
        if not request.include_cluster_authorized_operations:
            return

        def change(response: Any) -> None:
            if response.error_code:
                return
            allowed = self.authorizer.allows_on_cluster(context, Operation.DESCRIBE)
            response.cluster_authorized_operations = (
                self.authorizer.operations(context, ResourceType.CLUSTER, CLUSTER_NAME)
                if allowed
                else 0
            )

        amend(context, change)
