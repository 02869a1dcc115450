"""Checks of what clients do with records: produce, look up offsets, metadata, transactions."""

from __future__ import annotations

from collections.abc import Callable
from logging import DEBUG
from operator import attrgetter
from typing import TYPE_CHECKING, Any

from ottla.broker.requests.request_context import amend
from ottla.broker.security.audit.security_log import decisions
from ottla.broker.security.authorization.acl_types import CLUSTER_NAME, Operation, ResourceType
from ottla.broker.security.authorization.guard import Guard, refused_rows
from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.protocol.messages.add_partitions_to_txn import (
    AddPartitionsToTxnPartitionResult,
    AddPartitionsToTxnTopicResult,
)
from ottla.protocol.messages.metadata import MetadataRequestTopic, MetadataResponseTopic
from ottla.protocol.topics import GROUP_METADATA_TOPIC, SHARE_STATE_TOPIC, TRANSACTION_STATE_TOPIC

if TYPE_CHECKING:
    from ottla.broker.cluster.metadata_cache import MetadataCache
    from ottla.broker.requests.request_context import (
        HandlerEntry,
        HandlerResult,
        RequestConnection,
        RequestContext,
    )
    from ottla.broker.security.authorization.authorizer import Authorizer
    from ottla.protocol.steps import Steps

_NAME = attrgetter("name")
_TOPIC = attrgetter("topic")
# Topics that a connection is known to write to; producers of more are checked as usual.
MAX_WRITABLE_TOPICS = 64
# Longer names than topics have are not kept.
LONGEST_NAME = 255
_INTERNAL = frozenset((GROUP_METADATA_TOPIC, TRANSACTION_STATE_TOPIC, SHARE_STATE_TOPIC))


class DataGuard(Guard):
    """A method for each check that a route names; `may_read` is for the handler of Fetch, whose
    sessions know the topics."""

    def __init__(
        self, authorizer: Authorizer, metadata: MetadataCache, *, auto_create: bool
    ) -> None:
        super().__init__(authorizer)
        self._allows = authorizer.allows
        self._metadata = metadata
        self._auto_create = auto_create

    def may_read(self, context: RequestContext, is_follower: bool) -> Callable[[str], bool]:
        """Whether the sender of a Fetch may read a topic; followers may read all or nothing.

        The answer is that of the ACLs at the time of the call: a Fetch that waits asks again when
        it completes.
        """
        authorizer = self.authorizer
        decisions: dict[str, bool] = {}
        version = authorizer.rules.version

        def decide(topic: str) -> bool:
            if is_follower:
                return authorizer.allows_on_cluster(context, Operation.CLUSTER_ACTION)
            return authorizer.allows(context, Operation.READ, ResourceType.TOPIC, topic)

        def check(topic: str) -> bool:
            nonlocal version
            if authorizer.rules.version != version:
                version = authorizer.rules.version
                decisions.clear()
            key = "" if is_follower else topic
            is_allowed = decisions.get(key)
            if is_allowed is None:
                is_allowed = decisions[key] = decide(topic)
            return is_allowed

        return check

    def may_read_shares(self, context: RequestContext, group_id: str) -> Callable[[str], bool]:
        """Whether the sender of a ShareFetch may read a topic in a share group. The check of the
        request is that of the group; it is asked again once an ACL has changed."""
        authorizer = self.authorizer
        may_read = self.may_read(context, False)
        version = authorizer.rules.version

        def check(topic: str) -> bool:
            if authorizer.rules.version != version and not authorizer.allows(
                context, Operation.READ, ResourceType.GROUP, group_id
            ):
                return False
            return may_read(topic)

        return check

    def produce(self, context: RequestContext, request: Any) -> None:
        transactional_id = request.transactional_id
        if transactional_id is not None:
            self.require(context, Operation.WRITE, ResourceType.TRANSACTIONAL_ID, transactional_id)
        topics = request.topic_data
        # The usual request, without the calls of the general way.
        if len(topics) == 1 and self._allows(
            context, Operation.WRITE, ResourceType.TOPIC, topics[0].name
        ):
            self._keep_writable(context.connection, topics[0].name)
            return
        allowed, denied = self.sort_out(
            context,
            Operation.WRITE,
            ResourceType.TOPIC,
            topics,
            _NAME,
            log_if_denied=len(topics) > 1,
        )
        if not denied:
            return
        fields = ("topic_data", "responses")
        code = ErrorCode.TOPIC_AUTHORIZATION_FAILED
        rows = refused_rows(context, request, fields, denied, code)
        request.topic_data = allowed
        if request.acks == 0:
            amend(context, lambda _: context.close("a produce request with acks=0 was not allowed"))
        else:
            amend(context, lambda response: response.responses.extend(rows))

    def protect_produce(self, entry: HandlerEntry) -> HandlerEntry:
        """The line of Produce with its check. A connection that writes to the same topic again and
        again is checked once, until an ACL changes or permitted requests are logged."""
        check, handler = self.produce, entry.handler
        rules, logs_allowed = self.authorizer.rules, decisions.isEnabledFor

        def guarded(context: RequestContext, request: Any) -> HandlerResult:
            writable = context.connection.writable_topics
            if (
                writable is None
                or len(topics := request.topic_data) != 1
                or writable.get(topics[0].name) != rules.version
                or request.transactional_id is not None
                or logs_allowed(DEBUG)
            ):
                check(context, request)
            return handler(context, request)

        return entry._replace(handler=guarded)

    def _keep_writable(self, connection: RequestConnection, topic: str) -> None:
        if len(topic) > LONGEST_NAME:
            return
        kept = connection.writable_topics
        if kept is None or len(kept) >= MAX_WRITABLE_TOPICS:
            kept = connection.writable_topics = {}
        kept[topic] = self.authorizer.rules.version

    def list_offsets(self, context: RequestContext, request: Any) -> None:
        self.keep_allowed(
            context,
            request,
            Operation.DESCRIBE,
            ResourceType.TOPIC,
            ("topics", "topics"),
            _NAME,
        )

    def offset_for_leader_epoch(self, context: RequestContext, request: Any) -> None:
        if self.authorizer.allows_on_cluster(
            context, Operation.CLUSTER_ACTION, log_if_denied=False
        ):
            return
        self.keep_allowed(
            context,
            request,
            Operation.DESCRIBE,
            ResourceType.TOPIC,
            ("topics", "topics"),
            _TOPIC,
        )

    # Metadata: the existence of topics that may not be described is hidden.

    def metadata_of(self, context: RequestContext, request: Any) -> None:
        version = context.header.api_version
        refused: list[MetadataResponseTopic] = []
        is_all = request.topics is None or (version == 0 and not request.topics)
        if not is_all:
            request.topics, refused = self._describable(context, request)

        def change(response: Any) -> Steps[None]:
            if is_all or not request.topics:
                # An empty list means all topics to the handler in version 0.
                rows = response.topics if is_all else ()
                response.topics = yield from self.visible(
                    context, ResourceType.TOPIC, rows, lambda row: row.name or ""
                )
            yield from self._set_operations(context, request, response)
            response.topics.extend(refused)

        amend(context, change)

    def _describable(
        self, context: RequestContext, request: Any
    ) -> tuple[list[MetadataRequestTopic], list[MetadataResponseTopic]]:
        names = self._metadata.snapshot.topic_names
        code = ErrorCode.TOPIC_AUTHORIZATION_FAILED
        found: list[MetadataRequestTopic] = []
        refused: list[MetadataResponseTopic] = []
        for entry in request.topics:
            by_id = entry.name is None
            name = names.get(entry.topic_id) if by_id else entry.name
            if name is None:  # an unknown id: the handler responds with the error
                found.append(entry)
            elif not self.authorizer.allows(context, Operation.DESCRIBE, ResourceType.TOPIC, name):
                refused.append(MetadataResponseTopic(code, None if by_id else name, entry.topic_id))
            elif self._may_exist(context, request, name):
                found.append(entry)
            else:
                is_internal = name in _INTERNAL
                refused.append(MetadataResponseTopic(code, name, is_internal=is_internal))
        return found, refused

    def _may_exist(self, context: RequestContext, request: Any, name: str) -> bool:
        """Whether it does, or is not going to be created by this request, or may be."""
        if name in self._metadata.snapshot.topics:
            return True
        if not self._auto_create:
            return True
        if context.header.api_version >= 4 and not request.allow_auto_topic_creation:
            return True
        allows = self.authorizer.allows
        return allows(
            context, Operation.CREATE, ResourceType.CLUSTER, CLUSTER_NAME, log_if_denied=False
        ) or allows(context, Operation.CREATE, ResourceType.TOPIC, name)

    def _set_operations(self, context: RequestContext, request: Any, response: Any) -> Steps[None]:
        version = context.header.api_version
        authorizer = self.authorizer
        if request.include_cluster_authorized_operations and 8 <= version <= 10:
            allowed = authorizer.allows_on_cluster(context, Operation.DESCRIBE)
            response.cluster_authorized_operations = (
                authorizer.operations(context, ResourceType.CLUSTER, CLUSTER_NAME) if allowed else 0
            )
        if request.include_topic_authorized_operations and version >= 8:
            for row in response.topics:
                yield
                if row.name is not None:
                    row.topic_authorized_operations = authorizer.operations(
                        context, ResourceType.TOPIC, row.name
                    )

    # Idempotence and transactions.

    def init_producer_id(self, context: RequestContext, request: Any) -> None:
        if request.transactional_id is not None:
            self.require(
                context,
                Operation.WRITE,
                ResourceType.TRANSACTIONAL_ID,
                request.transactional_id,
            )
            return
        # Who may write to any topic may do so idempotently (KIP-679).
        if not self.authorizer.allows_on_cluster(
            context, Operation.IDEMPOTENT_WRITE, log_if_denied=False
        ) and not self.authorizer.allows_any(context, Operation.WRITE, ResourceType.TOPIC):
            raise KafkaError(ErrorCode.CLUSTER_AUTHORIZATION_FAILED)

    def add_partitions_to_txn(self, context: RequestContext, request: Any) -> None:
        if context.header.api_version >= 4:  # brokers among themselves
            self.require_on_cluster(context, Operation.CLUSTER_ACTION)
            return
        self.require(
            context,
            Operation.WRITE,
            ResourceType.TRANSACTIONAL_ID,
            request.v3_and_below_transactional_id,
        )
        topics = request.v3_and_below_topics
        allowed, denied = self.sort_out(context, Operation.WRITE, ResourceType.TOPIC, topics, _NAME)
        if not denied:
            return
        # All or nothing: the others are not attempted.
        codes = [
            *((topic, ErrorCode.TOPIC_AUTHORIZATION_FAILED) for topic in denied),
            *((topic, ErrorCode.OPERATION_NOT_ATTEMPTED) for topic in allowed),
        ]
        rows = [
            AddPartitionsToTxnTopicResult(
                topic.name,
                [AddPartitionsToTxnPartitionResult(index, code) for index in topic.partitions],
            )
            for topic, code in codes
        ]
        request.v3_and_below_topics = []

        def change(response: Any) -> None:
            response.results_by_topic_v3_and_below = rows

        amend(context, change)

    def add_offsets_to_txn(self, context: RequestContext, request: Any) -> None:
        transactional_id = request.transactional_id
        self.require(context, Operation.WRITE, ResourceType.TRANSACTIONAL_ID, transactional_id)
        self.require(context, Operation.READ, ResourceType.GROUP, request.group_id)

    def end_txn(self, context: RequestContext, request: Any) -> None:
        transactional_id = request.transactional_id
        self.require(context, Operation.WRITE, ResourceType.TRANSACTIONAL_ID, transactional_id)

    def write_txn_markers(self, context: RequestContext, request: Any) -> None:
        # An administrator may abort a hanging transaction (KIP-664).
        if not self.authorizer.allows_on_cluster(context, Operation.ALTER, log_if_denied=False):
            self.require_on_cluster(context, Operation.CLUSTER_ACTION)

    def describe_producers(self, context: RequestContext, request: Any) -> None:
        self.keep_allowed(
            context,
            request,
            Operation.READ,
            ResourceType.TOPIC,
            ("topics", "topics"),
            _NAME,
        )

    def describe_transactions(self, context: RequestContext, request: Any) -> None:
        self.keep_allowed(
            context,
            request,
            Operation.DESCRIBE,
            ResourceType.TRANSACTIONAL_ID,
            ("transactional_ids", "transaction_states"),
            str,
        )

        def change(response: Any) -> None:
            for state in response.transaction_states:
                state.topics, _ = self.sort_out(
                    context,
                    Operation.DESCRIBE,
                    ResourceType.TOPIC,
                    state.topics,
                    _TOPIC,
                    log_if_denied=False,
                )

        amend(context, change)

    def list_transactions(self, context: RequestContext, request: Any) -> None:
        def change(response: Any) -> Steps[None]:
            response.transaction_states = yield from self.visible(
                context,
                ResourceType.TRANSACTIONAL_ID,
                response.transaction_states,
                attrgetter("transactional_id"),
            )

        amend(context, change)
