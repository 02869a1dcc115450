"""Metadata (3), versions 0 to 12: brokers, topics, leaders; creates topics on first use.

Versions: 0 an empty list means all topics; 1 null means all, empty none, and the controller is
named; 2 cluster id; 4 the client may forbid the creation of topics; 5 offline replicas; 7 leader
epochs; 8 authorized operations on request; 9 flexible; 10 topic ids; 11 no cluster operations; 12
topics may be requested by id alone.

A response with all topics of a large cluster is built in slices from topics that are kept encoded,
see `encoded_topics`.

A topic that the request creates has LEADER_NOT_AVAILABLE first, as in Kafka; clients retry.
"""

from __future__ import annotations

import logging
from collections.abc import Coroutine
from typing import TYPE_CHECKING, Any, Protocol

from ottla.broker.cluster.metadata_cache import MetadataSnapshot, PartitionMetadata, TopicMetadata
from ottla.broker.handlers.common.authorized_operations import (
    CLUSTER_OPERATIONS,
    NOT_REQUESTED,
    TOPIC_OPERATIONS,
)
from ottla.broker.handlers.common.encoded_topics import EncodedMetadata, EncodedTopics, Kind
from ottla.broker.handlers.common.first_metadata import after_first_metadata
from ottla.broker.requests.request_channel import RequestContext
from ottla.controller.admin.topic_names import name_problem
from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.protocol.messages.metadata import (
    MetadataRequest,
    MetadataResponse,
    MetadataResponseBroker,
    MetadataResponsePartition,
    MetadataResponseTopic,
)
from ottla.protocol.topics import INTERNAL_TOPICS
from ottla.protocol.uuids import ZERO_UUID

if TYPE_CHECKING:
    from ottla.broker.cluster.endpoints import Endpoints
    from ottla.broker.cluster.metadata_cache import MetadataCache

logger = logging.getLogger("ottla.metadata")

# A partition costs 1.6 us to build and encode, so a response of these takes 3 ms at once.
MAX_PARTITIONS_AT_ONCE = 2000
# To find the authorized operations of a topic takes 20 us: 5 ms.
MAX_TOPICS_WITH_OPERATIONS = 250


class TopicCreator(Protocol):
    """Creates topics on first use (`auto.create.topics.enable`); see `auto_topic_creation`."""

    async def create(self, names: list[str]) -> dict[str, int]:
        """Creates the topics; returns the error code of each name for the response."""


class MetadataHandler:
    """Reads the current snapshot of the metadata cache."""

    def __init__(
        self,
        metadata: MetadataCache,
        endpoints: Endpoints,
        cluster_id: str,
        creator: TopicCreator,
        auto_create: bool,
    ) -> None:
        """`auto_create` is `auto.create.topics.enable`."""
        self._metadata = metadata
        self._endpoints = endpoints
        self._cluster_id = cluster_id
        self._creator = creator
        self._auto_create = auto_create
        self._encoded = EncodedTopics()
        #: `handle`, for requests that may come before the first UpdateMetadata.
        self.handle_after_first_metadata = after_first_metadata(metadata, self.handle)

    def handle(
        self, context: RequestContext, request: MetadataRequest
    ) -> MetadataResponse | Coroutine[Any, Any, MetadataResponse]:
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
            has_operations = builder.operations != NOT_REQUESTED
            if snapshot.partition_count > MAX_PARTITIONS_AT_ONCE or (
                has_operations and len(snapshot.topics) > MAX_TOPICS_WITH_OPERATIONS
            ):
                return self._all_topics(context, response, builder)
            response.topics = [builder.topic(topic) for topic in snapshot.topics.values()]
            return response
        missing: list[str] = []
        done: set[str | bytes] = set()
        for entry in requested:
            if version < 12 and (entry.name is None or entry.topic_id != ZERO_UUID):
                raise KafkaError(
                    ErrorCode.INVALID_REQUEST,
                    f"Metadata version {version} requests topics by name, not by id.",
                )
            key: str | bytes = entry.name if entry.name is not None else entry.topic_id
            if key in done:
                continue
            done.add(key)
            if entry.name is None or entry.topic_id != ZERO_UUID:
                response.topics.append(builder.by_id(entry.topic_id))
                continue
            topic = snapshot.topics.get(entry.name)
            if topic is not None:
                response.topics.append(builder.topic(topic))
            else:
                missing.append(entry.name)
        allowed = self._auto_create and (version < 4 or request.allow_auto_topic_creation)
        if missing and allowed:
            return self._with_created(response, missing)
        response.topics.extend(_missing_rows(missing, {}))
        return response

    async def _with_created(
        self, response: MetadataResponse, missing: list[str]
    ) -> MetadataResponse:
        """The response with the rows of topics that did not exist and are being created."""
        names = [name for name in missing if name_problem(name) is None]
        codes = await self._creator.create(names) if names else {}
        response.topics.extend(_missing_rows(missing, codes))
        return response

    async def _all_topics(
        self, context: RequestContext, response: MetadataResponse, builder: _TopicBuilder
    ) -> MetadataResponse:
        """The response with all topics of a large cluster that the client may describe."""
        rows: list[Any] = await self._encoded.rows(
            builder.snapshot, builder.kind, builder.topic, builder.operations
        )
        found = EncodedMetadata(
            brokers=response.brokers,
            cluster_id=response.cluster_id,
            controller_id=response.controller_id,
            topics=rows,
            cluster_authorized_operations=response.cluster_authorized_operations,
        )
        await context.amend_in_slices(found)
        return found


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
        """What, besides the topics, the rows depend on."""
        return Kind(self._version, frozenset(self._reachable), frozenset(self.snapshot.brokers))

    def by_id(self, topic_id: bytes) -> MetadataResponseTopic:
        name = self.snapshot.topic_names.get(topic_id)
        topic = None if name is None else self.snapshot.topics.get(name)
        if topic is None:
            return MetadataResponseTopic(ErrorCode.UNKNOWN_TOPIC_ID, None, topic_id)
        return self.topic(topic)

    def topic(self, topic: TopicMetadata) -> MetadataResponseTopic:
        return MetadataResponseTopic(
            ErrorCode.NONE,
            topic.name,
            topic.topic_id,
            topic.name in INTERNAL_TOPICS,
            [self._partition(topic.partitions[index]) for index in sorted(topic.partitions)],
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
