"""FindCoordinator (10), versions 0 to 6: the coordinator of a key.

Keys are groups, transactional ids (version 1) and share partitions (version 6, KIP-932, where share
groups are enabled): `GROUP:TOPIC_ID:PARTITION`. Version 4 added several keys in one request. The
coordinator of a key is the leader of its partition of an internal topic. The first request creates
the topic; until it has a leader the response is COORDINATOR_NOT_AVAILABLE, which clients retry.

Deviation from Kafka: an embedded broker responds when the topic exists, some milliseconds later,
instead of with that error, for clients wait 100 to 500 ms before they retry. All requests wait for
one creation, and none of them longer than half a second after it has begun.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any, NamedTuple

from ottla.broker.cluster.endpoints import Node
from ottla.broker.cluster.metadata_cache import MetadataCache
from ottla.broker.requests.api_routes import ApiRoute
from ottla.broker.requests.request_channel import RequestContext
from ottla.broker.requests.request_parts import Items
from ottla.broker.runtime.log_limiter import LogLimiter
from ottla.broker.runtime.tasks import spawn
from ottla.protocol.errors import ErrorCode, error_name
from ottla.protocol.messages.find_coordinator import (
    Coordinator,
    FindCoordinatorRequest,
    FindCoordinatorResponse,
)
from ottla.protocol.registry import ApiKey
from ottla.protocol.topics import GROUP_METADATA_TOPIC, SHARE_STATE_TOPIC, TRANSACTION_STATE_TOPIC
from ottla.protocol.uuids import uuid_from_string

if TYPE_CHECKING:
    from ottla.broker.cluster.metadata_cache import MetadataCache

logger = logging.getLogger("ottla.groups")

GROUP = 0
TRANSACTION = 1
SHARE = 2

# A client that gets the error has retried by then.
_WAIT_SECONDS = 0.5

# The setting that says how many replicas each internal topic has.
_FACTOR_SETTINGS = {
    GROUP_METADATA_TOPIC: "offsets.topic.replication.factor",
    TRANSACTION_STATE_TOPIC: "transaction.state.log.replication.factor",
    SHARE_STATE_TOPIC: "share.coordinator.state.topic.replication.factor",
}

EnsureTopic = Callable[[str], Coroutine[Any, Any, int]]
"""Creates an internal topic if it does not exist; returns an error code."""

FindNode = Callable[[RequestContext, int], Node | None]


class Found(NamedTuple):
    error_code: int
    node_id: int = -1
    host: str = ""
    port: int = -1
    is_unknown_type: bool = False


class FindCoordinatorHandler:
    """Finds coordinators in the metadata cache."""

    def __init__(
        self,
        metadata: MetadataCache,
        group_partition_for: Callable[[str], int],
        transaction_partition_for: Callable[[str], int],
        ensure_internal_topic: EnsureTopic,
        find_node: FindNode,
        *,
        share_partition_for: Callable[[str], int] | None = None,
        waits_for_creation: bool = False,
    ) -> None:
        """`find_node` returns the endpoint of a live broker for the client.
        `share_partition_for` is None where share groups are not enabled.
        `waits_for_creation`: the first responses are delayed until the topic exists."""
        self._waits_for_creation = waits_for_creation
        self._metadata = metadata
        self._find_node = find_node
        self._topics = {
            GROUP: (GROUP_METADATA_TOPIC, group_partition_for),
            TRANSACTION: (TRANSACTION_STATE_TOPIC, transaction_partition_for),
        }
        if share_partition_for is not None:
            self._topics[SHARE] = (SHARE_STATE_TOPIC, share_partition_for)
        self._ensure_internal_topic = ensure_internal_topic
        self._log_limiter = LogLimiter()
        # Done when responses do not wait for the creation any more, before its end or with it.
        self._being_created: dict[str, asyncio.Future[None]] = {}

    def handle(
        self, context: RequestContext, request: FindCoordinatorRequest
    ) -> FindCoordinatorResponse | Coroutine[Any, Any, FindCoordinatorResponse]:
        if self._waits_for_creation and request.key_type in self._topics:
            topic, _ = self._topics[request.key_type]
            if topic not in self._metadata.snapshot.topics:
                waited = self._create(topic)
                if not waited.done():
                    return self._respond_when_created(waited, context, request)
        return self._response(context, request, creates=not self._waits_for_creation)

    async def _respond_when_created(
        self, waited: asyncio.Future[None], context: RequestContext, request: FindCoordinatorRequest
    ) -> FindCoordinatorResponse:
        await asyncio.wait([waited])
        return self._response(context, request, creates=False)

    def _response(
        self, context: RequestContext, request: FindCoordinatorRequest, *, creates: bool
    ) -> FindCoordinatorResponse:
        version = context.header.api_version
        if version >= 4:
            return FindCoordinatorResponse(
                coordinators=[
                    _coordinator(key, self._find(context, request.key_type, key, version, creates))
                    for key in request.coordinator_keys
                ]
            )
        found = self._find(context, request.key_type, request.key, version, creates)
        return FindCoordinatorResponse(
            error_code=found.error_code,
            error_message=error_name(found.error_code),
            node_id=found.node_id,
            host=found.host,
            port=found.port,
        )

    def _find(
        self, context: RequestContext, key_type: int, key: str, version: int, creates: bool
    ) -> Found:
        if key_type == SHARE:
            if version >= 6 and SHARE not in self._topics:
                return Found(ErrorCode.COORDINATOR_NOT_AVAILABLE)
            if version < 6 or not _is_share_key(key):
                return Found(ErrorCode.INVALID_REQUEST)
        if key_type not in self._topics:
            return Found(ErrorCode.INVALID_REQUEST, is_unknown_type=True)
        topic, partition_for = self._topics[key_type]
        snapshot = self._metadata.snapshot
        if topic not in snapshot.topics:
            if creates:
                self._create(topic)
            return Found(ErrorCode.COORDINATOR_NOT_AVAILABLE)
        partition = snapshot.partition(topic, partition_for(key))
        if partition is None:
            return Found(ErrorCode.COORDINATOR_NOT_AVAILABLE)
        node = self._find_node(context, partition.leader)
        if node is None:
            return Found(ErrorCode.COORDINATOR_NOT_AVAILABLE)
        return Found(ErrorCode.NONE, node.node_id, node.host, node.port)

    def _create(self, topic: str) -> asyncio.Future[None]:
        """Start to create an internal topic unless it is being created."""
        waited = self._being_created.get(topic)
        if waited is None:
            loop = asyncio.get_running_loop()
            waited = self._being_created[topic] = loop.create_future()
            timer = loop.call_later(_WAIT_SECONDS, _finish, waited)
            spawn(self._await_creation(topic, waited, timer), name=f"create-{topic}")
        return waited

    async def _await_creation(
        self, topic: str, waited: asyncio.Future[None], timer: asyncio.TimerHandle
    ) -> None:
        try:
            error = await self._ensure_internal_topic(topic)
        finally:
            del self._being_created[topic]
            timer.cancel()
            _finish(waited)
        if error not in (ErrorCode.NONE, ErrorCode.TOPIC_ALREADY_EXISTS):
            self._log_failure(topic, error)

    def _log_failure(self, topic: str, error: int) -> None:
        """Clients retry many times a second."""
        if not self._log_limiter.allows(topic):
            return
        reason = error_name(error)
        if error == ErrorCode.INVALID_REPLICATION_FACTOR:
            reason = (
                f"{len(self._metadata.snapshot.brokers)} live brokers are fewer than the replicas "
                f"of {_FACTOR_SETTINGS[topic]}; start more brokers, or lower the setting"
            )
        logger.warning(
            "Internal topic %s cannot be created: %s. The next FindCoordinator retries",
            topic,
            reason,
        )


def _finish(waited: asyncio.Future[None]) -> None:
    if not waited.done():
        waited.set_result(None)


def _is_share_key(key: str) -> bool:
    """Whether a key is GROUP:TOPIC_ID:PARTITION; a group may contain colons."""
    group, _, rest = key.rpartition(":")
    group, _, topic_id = group.rpartition(":")
    if not group or not rest.isdecimal():
        return False
    try:
        uuid_from_string(topic_id)
    except ValueError:
        return False
    return True


def _coordinator(key: str, found: Found) -> Coordinator:
    return Coordinator(
        key=key,
        node_id=found.node_id,
        host=found.host,
        port=found.port,
        error_code=found.error_code,
        # As in Kafka, others have no message.
        error_message="unknown key type" if found.is_unknown_type else "",
    )


def _error_rows(request: Any, response: Any, code: int, message: str | None) -> None:
    for key in request.coordinator_keys:
        response.coordinators.append(Coordinator(key, -1, "", -1, code, message))


ROUTES = (
    ApiRoute(
        ApiKey.FIND_COORDINATOR,
        FindCoordinatorHandler.handle,
        check="find_coordinator",
        errors=_error_rows,
        items=(Items("coordinator_keys", "coordinators"),),
    ),
)
