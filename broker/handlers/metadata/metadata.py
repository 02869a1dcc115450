"""Metadata (3), versions 0 to 12: brokers, topics, leaders; creates topics on first use.

Versions: 0 an empty list means all topics; 1 null means all, empty none, and the controller is
named; 2 cluster id; 4 the client may forbid the creation of topics; 5 offline replicas; 7 leader
epochs; 8 authorized operations on request; 9 flexible; 10 topic ids; 11 no cluster operations; 12
topics may be requested by id alone.

A response with all topics is put together from topics that are kept encoded; see `encoded_topics`.

A topic that the request creates has LEADER_NOT_AVAILABLE first, as in Kafka; clients retry.
"""

from __future__ import annotations

import logging
from collections.abc import Coroutine, Sequence
from operator import attrgetter
from typing import TYPE_CHECKING, Any

from ottla.broker.cluster.metadata_cache import MetadataSnapshot, PartitionMetadata, TopicMetadata
from ottla.broker.handlers.common.authorized_operations import (
    CLUSTER_OPERATIONS,
    NOT_REQUESTED,
    TOPIC_OPERATIONS,
)
from ottla.broker.handlers.common.encoded_topics import (
    EncodedMetadata,
    EncodedTopics,
    Kind,
)
from ottla.broker.handlers.common.first_metadata import after_first_metadata
from ottla.broker.requests.api_routes import ApiRoute
from ottla.broker.requests.request_channel import RequestContext
from ottla.broker.requests.request_context import HandlerResult, amended
from ottla.broker.requests.request_parts import Items
from ottla.controller.admin.topic_limits import name_problem
from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.protocol.messages.metadata import (
    MetadataRequest,
    MetadataRequestTopic,
    MetadataResponse,
    MetadataResponseBroker,
    MetadataResponsePartition,
    MetadataResponseTopic,
)
from ottla.protocol.registry import ApiKey
from ottla.protocol.steps import Steps, run_in_turns
from ottla.protocol.topics import INTERNAL_TOPICS
from ottla.protocol.uuids import ZERO_UUID

if TYPE_CHECKING:
    from ottla.broker.cluster.endpoints import Endpoints
    from ottla.broker.cluster.metadata_cache import MetadataCache
    from ottla.broker.coordination.auto_topic_creation import AutoTopicCreation

logger = logging.getLogger("ottla.metadata")


class MetadataHandler:
    """Reads the current snapshot of the metadata cache."""

    def __init__(
        self,
        metadata: MetadataCache,
        endpoints: Endpoints,
        cluster_id: str,
        creator: AutoTopicCreation,
        auto_create: bool,
    ) -> None:
        """`auto_create` is `auto.create.topics.enable`."""
        self._metadata = metadata
        self._endpoints = endpoints
        self._cluster_id = cluster_id
        self._creator = creator
        self._auto_create = auto_create
        self._encoded = EncodedTopics(metadata)
        self._after_first_metadata = after_first_metadata(metadata, self.handle)

    def handle_after_first_metadata(self, context: RequestContext, request: Any) -> HandlerResult:
        """`handle`, for requests that may come before the first UpdateMetadata."""
        return self._after_first_metadata(context, request)

    def handle(
        self, context: RequestContext, request: MetadataRequest
    ) -> Steps[MetadataResponse] | Coroutine[Any, Any, MetadataResponse]:
        version = context.header.api_version
        snapshot = self._metadata.snapshot
        nodes = self._endpoints.nodes(context)
        reachable = {node.node_id for node in nodes}
        response = MetadataResponse(
            brokers=[MetadataResponseBroker(*node) for node in nodes],
            cluster_id=self._cluster_id,
            controller_id=snapshot.controller_id if snapshot.controller_id in reachable else -1,
        )
        if version >= 8 and request.include_cluster_authorized_operations:
            response.cluster_authorized_operations = CLUSTER_OPERATIONS
        requested = request.topics
        builder = _TopicBuilder(
            snapshot, reachable, version, request.include_topic_authorized_operations
        )
        if requested is None or (version == 0 and not requested):
            return self._all_topics(context, response, builder)
        found, missing = builder.requested(requested)
        if missing and self._auto_create and (version < 4 or request.allow_auto_topic_creation):
            return self._with_created(response, builder, found, missing)
        return _named_topics(response, builder, found, missing)

    async def _with_created(
        self,
        response: MetadataResponse,
        builder: _TopicBuilder,
        found: Sequence[_Requested],
        missing: list[str],
    ) -> MetadataResponse:
        """Respond also with the topics that do not exist and are being created."""
        response.topics = await run_in_turns(builder.rows(found))
        names = [name for name in missing if name_problem(name) is None]
        codes = await self._creator.create(names) if names else {}
        response.topics.extend(_missing_rows(missing, codes))
        return response

    def _all_topics(
        self, context: RequestContext, response: MetadataResponse, builder: _TopicBuilder
    ) -> Steps[MetadataResponse]:
        """Respond with all topics that the client may describe."""
        encoded = self._encoded
        facts = builder.snapshot, builder.kind, builder.row, builder.operations
        found = EncodedMetadata(response)
        if context.amend is None:
            found.whole = yield from encoded.whole(*facts)
            return found
        rows: list[Any] = yield from encoded.rows(*facts)
        found.topics = rows
        yield from amended(context, found)
        return found


def _named_topics(
    response: MetadataResponse,
    builder: _TopicBuilder,
    found: Sequence[_Requested],
    missing: list[str],
) -> Steps[MetadataResponse]:
    response.topics = yield from builder.rows(found)
    response.topics.extend(_missing_rows(missing, {}))
    return response


def _missing_rows(names: list[str], codes: dict[str, int]) -> list[MetadataResponseTopic]:
    """The rows of topics that do not exist, with the codes of those that are being created."""
    rows = []
    for name in names:
        code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        if name_problem(name) is not None:
            code = ErrorCode.INVALID_TOPIC_EXCEPTION
        rows.append(
            MetadataResponseTopic(codes.get(name, code), name, is_internal=name in INTERNAL_TOPICS)
        )
    return rows


# The topic id that was requested, or that of the topic, and the topic, unless it is unknown.
_Requested = tuple[bytes, TopicMetadata | None]


class _TopicBuilder:
    """Builds the topics of one response."""

    def __init__(
        self, snapshot: MetadataSnapshot, reachable: set[int], version: int, operations: bool
    ) -> None:
        self.snapshot = snapshot
        self.operations = TOPIC_OPERATIONS if operations and version >= 8 else NOT_REQUESTED
        self._reachable = reachable
        self._version = version

    @property
    def kind(self) -> Kind:
        """The facts besides the topics that the rows depend on."""
        return Kind(self._version, frozenset(self._reachable), frozenset(self.snapshot.brokers))

    def requested(
        self, entries: Sequence[MetadataRequestTopic]
    ) -> tuple[list[_Requested], list[str]]:
        """Return the requested topics, each once, and the names that do not exist."""
        topics, names = self.snapshot.topics, self.snapshot.topic_names
        found: list[_Requested] = []
        missing: list[str] = []
        done: set[str | bytes] = set()
        for entry in entries:
            name, topic_id = entry.name, entry.topic_id
            if self._version < 12 and (name is None or topic_id != ZERO_UUID):
                raise KafkaError(
                    ErrorCode.INVALID_REQUEST,
                    f"Metadata version {self._version} requests topics by name, not by id.",
                )
            key: str | bytes = name if name is not None else topic_id
            if key in done:
                continue
            done.add(key)
            if name is None or topic_id != ZERO_UUID:
                found.append((topic_id, topics.get(names.get(topic_id, ""))))
            elif name in topics:
                found.append((topic_id, topics[name]))
            else:
                missing.append(name)
        return found, missing

    def rows(self, found: Sequence[_Requested]) -> Steps[list[MetadataResponseTopic]]:
        """The rows of topics, in the same order."""
        rows = []
        for topic_id, topic in found:
            if topic is None:
                rows.append(MetadataResponseTopic(ErrorCode.UNKNOWN_TOPIC_ID, None, topic_id))
                continue
            rows.append((yield from self.row(topic)))
            yield
        return rows

    def row(self, topic: TopicMetadata) -> Steps[MetadataResponseTopic]:
        states = topic.partitions
        partitions: list[MetadataResponsePartition] = []
        for index in sorted(states):
            partitions.append(self._partition(states[index]))
            yield
        return MetadataResponseTopic(
            ErrorCode.NONE,
            topic.name,
            topic.topic_id,
            topic.name in INTERNAL_TOPICS,
            partitions,
            self.operations,
        )

    def _partition(self, state: PartitionMetadata) -> MetadataResponsePartition:
        reachable = self._reachable
        replicas, isr = state.replicas, state.isr
        code = ErrorCode.NONE
        leader = state.leader
        if leader not in reachable:
            # The leader is alive, but has no endpoint for the listener of this client: an error in
            # the configuration that no retry resolves. Version 6 has a code for it.
            if leader in self.snapshot.brokers and self._version >= 6:
                code = ErrorCode.LISTENER_NOT_FOUND
            else:
                code = ErrorCode.LEADER_NOT_AVAILABLE
            leader = -1
        if self._version == 0 and not reachable.issuperset(replicas):
            # Clients of version 0 fail on broker ids that are not in the list of brokers.
            replicas = [broker_id for broker_id in replicas if broker_id in reachable]
            isr = [broker_id for broker_id in isr if broker_id in reachable]
            code = code or ErrorCode.REPLICA_NOT_AVAILABLE
        return MetadataResponsePartition(
            code,
            state.partition,
            leader,
            state.leader_epoch,
            replicas,
            isr,
            state.offline_replicas,
        )


def _error_rows(request: Any, response: Any, code: int, message: str | None) -> None:
    for topic in request.topics or ():
        response.topics.append(MetadataResponseTopic(code, topic.name or "", topic.topic_id))


ROUTES = (
    ApiRoute(
        ApiKey.METADATA,
        MetadataHandler.handle_after_first_metadata,
        check="metadata_of",
        errors=_error_rows,
        items=(Items("topics", "topics", key=attrgetter("name", "topic_id"), each=False),),
    ),
)
