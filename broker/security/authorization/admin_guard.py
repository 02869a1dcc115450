"""Checks of what administrators and other brokers do: topics, settings, the cluster."""

from __future__ import annotations

from operator import attrgetter
from typing import TYPE_CHECKING, Any

from ottla.broker.requests.request_context import amend
from ottla.broker.security.authorization.acl_types import CLUSTER_NAME, Operation, ResourceType
from ottla.broker.security.authorization.guard import Guard, refused_rows
from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages.delete_topics import DeletableTopicResult

if TYPE_CHECKING:
    from ottla.broker.cluster.metadata_cache import MetadataCache
    from ottla.broker.requests.request_context import RequestContext
    from ottla.broker.security.authorization.authorizer import Authorizer
    from ottla.protocol.steps import Steps

_NAME = attrgetter("name")
_TOPIC_SETTINGS, _GROUP_SETTINGS = 2, 32


class AdminGuard(Guard):
    """A method for each check that a route names."""

    def __init__(self, authorizer: Authorizer, metadata: MetadataCache) -> None:
        super().__init__(authorizer)
        self._metadata = metadata

    # Topics.

    def create_topics(self, context: RequestContext, request: Any) -> None:
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

    def create_partitions(self, context: RequestContext, request: Any) -> None:
        self.keep_allowed(
            context,
            request,
            Operation.ALTER,
            ResourceType.TOPIC,
            ("topics", "results"),
            _NAME,
            "The topic authorization is failed.",
        )

    def delete_records(self, context: RequestContext, request: Any) -> None:
        self.keep_allowed(
            context,
            request,
            Operation.DELETE,
            ResourceType.TOPIC,
            ("topics", "topics"),
            _NAME,
        )

    def delete_topics(self, context: RequestContext, request: Any) -> None:
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

    def describe_topic_partitions(self, context: RequestContext, request: Any) -> Steps[None]:
        if request.topics:
            return self._keep_requested_topics(context, request)
        return self._keep_visible_topics(context, request)

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

    def describe_configs(self, context: RequestContext, request: Any) -> None:
        self._check_configs(context, request, Operation.DESCRIBE_CONFIGS, "results")

    def alter_configs(self, context: RequestContext, request: Any) -> None:
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

    def describe_cluster(self, context: RequestContext, request: Any) -> None:
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
