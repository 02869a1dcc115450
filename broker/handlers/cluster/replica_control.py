"""LeaderAndIsr (4), StopReplica (5), UpdateMetadata (6): the requests of the controller.

They come over the network from the controller on another broker, or by a call from the controller
in this process. Each request has the broker epoch of a registration: one with the epoch of an
earlier registration of this broker is refused with STALE_BROKER_EPOCH (KIP-380).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine
from functools import partial
from typing import TYPE_CHECKING, Any

from ottla.broker.cluster.broker_epoch import BrokerEpoch
from ottla.broker.cluster.metadata_cache import LEADER_DURING_DELETE
from ottla.broker.requests.api_routes import ApiRoute
from ottla.broker.requests.error_responses import (
    leader_and_isr_refused,
    stop_replica_refused,
)
from ottla.broker.requests.request_channel import RequestContext
from ottla.broker.requests.request_context import OnCluster
from ottla.broker.requests.request_parts import CONTROL
from ottla.controller.tree.store import StoreError
from ottla.protocol.errors import ErrorCode
from ottla.protocol.message import Message
from ottla.protocol.messages.leader_and_isr import LeaderAndIsrRequest, LeaderAndIsrResponse
from ottla.protocol.messages.stop_replica import StopReplicaRequest, StopReplicaResponse
from ottla.protocol.messages.update_metadata import (
    UpdateMetadataPartitionState,
    UpdateMetadataRequest,
    UpdateMetadataResponse,
    UpdateMetadataTopicState,
)
from ottla.protocol.registry import ApiKey
from ottla.protocol.steps import Steps, TurnQueue, run_in_turns

if TYPE_CHECKING:
    from ottla.broker.cluster.metadata_cache import MetadataCache, TopicMetadata
    from ottla.broker.config.dynamic_config import DynamicConfig
    from ottla.broker.replication.leader_and_isr import LeaderAndIsrApplier
    from ottla.broker.replication.replica_epochs import ReplicaEpochs
    from ottla.broker.replication.stray_logs import StrayCheck
    from ottla.protocol.topics import TopicPartition


logger = logging.getLogger("ottla.broker")

# Ten seconds; a controller waits for three times as long (`controller.socket.timeout.ms`).
_READ_ATTEMPTS = 100
_READ_BACKOFF_SECONDS = 0.1

# As long again, for the check for stray logs. A broker epoch of no registration of this broker
# would wait for ever; Kafka handles such a request at once.
_STRAY_CHECK_SECONDS = 10.0


class _Update:
    """The outcome of a change of the metadata cache that may still be queued."""

    __slots__ = ("_waiter", "outcome")

    def __init__(self) -> None:
        self.outcome: UpdateMetadataResponse | Exception | None = None
        self._waiter: asyncio.Future[None] | None = None

    def run(self, steps: Steps[UpdateMetadataResponse]) -> Steps[None]:
        try:
            self.outcome = yield from steps
        except Exception as error:
            self.outcome = error
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    async def response(self) -> UpdateMetadataResponse:
        if self.outcome is None:
            self._waiter = asyncio.get_running_loop().create_future()
            await self._waiter
        if isinstance(self.outcome, Exception):
            raise self.outcome
        assert self.outcome is not None
        return self.outcome


class ReplicaControl:
    """Handles the requests of the controller; implements the controller's `LocalChannel`."""

    def __init__(
        self,
        applier: LeaderAndIsrApplier,
        metadata: MetadataCache,
        dynamic_config: DynamicConfig,
        broker_epoch: BrokerEpoch,
        on_metadata: Callable[[list[TopicPartition]], None],
        strays: StrayCheck | None = None,
        has_log: Callable[[str, int], bool] = lambda topic, partition: False,
        epochs: ReplicaEpochs | None = None,
        on_leaders: Callable[[int], None] = lambda broker_epoch: None,
    ) -> None:
        """`on_metadata` is called after each change of the metadata, with the partitions that are
        deleted. LeaderAndIsr requests wait for the check of `strays` after a registration: a log
        of a deleted topic would refuse the new topic of that name. `has_log`: whether there is a
        log of a partition here, which has the settings of its topic. `epochs` are those of replicas
        that refuse a state. `on_leaders` is called after each LeaderAndIsr request of the present
        registration, with its broker epoch."""
        self._epochs = epochs
        self._on_leaders = on_leaders
        self._has_log = has_log
        self._strays = strays
        self._broker_epoch = broker_epoch
        self._on_metadata = on_metadata
        self._applier = applier
        self._metadata = metadata
        self._dynamic_config = dynamic_config
        # One after the other, in the order in which they came: each begins with the one before.
        # Bounded by the requests of controllers, which send the next one after the response.
        self._updates = TurnQueue(_in_next_iteration)

    def handle(self, request: Message, version: int) -> Message | Awaitable[Message]:
        """Handle a request of the controller in this process."""
        if isinstance(request, LeaderAndIsrRequest):
            return self.leader_and_isr(request, version)
        if isinstance(request, UpdateMetadataRequest):
            return self.update_metadata(request)
        assert isinstance(request, StopReplicaRequest)
        return self.stop_replica(request)

    # -- requests from the network --------------------------------------------------------------

    def handle_leader_and_isr(
        self, context: RequestContext, request: LeaderAndIsrRequest
    ) -> Coroutine[Any, Any, LeaderAndIsrResponse]:
        return self.leader_and_isr(request, context.header.api_version)

    def handle_update_metadata(
        self, context: RequestContext, request: UpdateMetadataRequest
    ) -> UpdateMetadataResponse | Coroutine[Any, Any, UpdateMetadataResponse]:
        return self.update_metadata(request)

    def handle_stop_replica(
        self, context: RequestContext, request: StopReplicaRequest
    ) -> Coroutine[Any, Any, StopReplicaResponse]:
        return self.stop_replica(request)

    # -- handling -------------------------------------------------------------------------------

    def _is_stale(self, epoch: int) -> bool:
        return self._broker_epoch.is_stale(epoch)

    async def leader_and_isr(
        self, request: LeaderAndIsrRequest, version: int
    ) -> LeaderAndIsrResponse:
        """Make replicas leader or follower, after the settings of the topics of new logs have
        been read."""
        if self._is_stale(request.broker_epoch):
            return leader_and_isr_refused(request, version, ErrorCode.STALE_BROKER_EPOCH)
        if self._strays is not None:
            await self._wait_for_stray_check(self._strays, request.broker_epoch)
        await self._prepare(request)
        if self._is_stale(request.broker_epoch):
            return leader_and_isr_refused(request, version, ErrorCode.STALE_BROKER_EPOCH)
        response = await self._applier.become_leader_or_follower(
            request, version, partial(self._is_stale, request.broker_epoch)
        )
        if self._epochs is not None and any(
            row.error_code == ErrorCode.FENCED_LEADER_EPOCH
            for topic in response.topics
            for row in topic.partition_errors
        ):
            await self._epochs.publish()
        if response.error_code == ErrorCode.NONE and not self._is_stale(request.broker_epoch):
            self._on_leaders(request.broker_epoch)
        if self._strays is not None:
            await self._strays.leaders_changed()
        return response

    async def _wait_for_stray_check(self, strays: StrayCheck, broker_epoch: int) -> None:
        try:
            async with asyncio.timeout(_STRAY_CHECK_SECONDS):
                await strays.wait_for(broker_epoch)
        except TimeoutError:
            logger.warning(
                "Handling a LeaderAndIsr request for broker epoch %d without the check for stray "
                "logs: no registration with this epoch was checked in %d s, the last one is %d",
                broker_epoch,
                _STRAY_CHECK_SECONDS,
                self._broker_epoch.value,
            )

    async def _prepare(self, request: LeaderAndIsrRequest) -> None:
        """Retry while ZooKeeper is away: a controller of Kafka does not send a request again
        that was responded to with an error, and the partitions would stay without a leader."""
        for attempt in range(_READ_ATTEMPTS):
            try:
                topics = self._topics_of_new_logs(request)
                if self._strays is not None:
                    await self._strays.make_way_for(request)
                    topics |= self._topics_of_new_logs(request)  # of logs that were renamed
                await self._dynamic_config.load_topics(topics)
                if self._strays is not None:
                    await self._strays.take_back(request)
                return
            except StoreError as error:
                if attempt == _READ_ATTEMPTS - 1:
                    raise
                if not attempt:
                    logger.warning("Failed to read topics and their settings, retrying: %s", error)
                await asyncio.sleep(_READ_BACKOFF_SECONDS)

    def _topics_of_new_logs(self, request: LeaderAndIsrRequest) -> set[str]:
        has_log = self._has_log
        names = {
            topic.topic_name
            for topic in request.topic_states
            for state in topic.partition_states
            if not has_log(topic.topic_name, state.partition_index)
        }
        names.update(
            state.topic_name
            for state in request.ungrouped_partition_states
            if not has_log(state.topic_name, state.partition_index)
        )
        return names

    def update_metadata(
        self, request: UpdateMetadataRequest
    ) -> UpdateMetadataResponse | Coroutine[Any, Any, UpdateMetadataResponse]:
        """Update the metadata cache, after the updates that came before.

        The update ends even if the caller is cancelled, as that of a controller in this process is
        when it resigns: the next controller does not say again what was deleted.
        """
        return self._start(self._update(request))

    def _start(
        self, steps: Steps[UpdateMetadataResponse]
    ) -> UpdateMetadataResponse | Coroutine[Any, Any, UpdateMetadataResponse]:
        update = _Update()
        self._updates.start(update.run(steps))
        if isinstance(update.outcome, UpdateMetadataResponse):
            return update.outcome
        return update.response()

    def _update(self, request: UpdateMetadataRequest) -> Steps[UpdateMetadataResponse]:
        """Checked when its turn comes: the controller may have been replaced meanwhile."""
        refused = self._refuse_update(request)
        if refused is not None:
            return refused
        deleted = yield from self._metadata.publish(request)
        try:
            yield from self._applier.step_down_where_replaced(request)
        finally:
            self._on_metadata(deleted)
        return UpdateMetadataResponse()

    async def forget_topics(self, topics: dict[str, TopicMetadata]) -> None:
        """Remove topics from the metadata that no longer exist, as if the controller had said so.

        A topic that was created again meanwhile stays.
        """
        started = self._start(self._forget(topics))
        if isinstance(started, Coroutine):
            await started

    def _forget(self, topics: dict[str, TopicMetadata]) -> Steps[UpdateMetadataResponse]:
        snapshot = self._metadata.snapshot
        states: list[UpdateMetadataTopicState] = []
        for name, topic in topics.items():
            yield
            if snapshot.topic_id(name) != topic.topic_id or name not in snapshot.topics:
                continue
            gone = [
                UpdateMetadataPartitionState(partition_index=index, leader=LEADER_DURING_DELETE)
                for index in snapshot.topics[name].partitions
            ]
            states.append(UpdateMetadataTopicState(name, topic.topic_id, gone))
        request = UpdateMetadataRequest(
            controller_id=snapshot.controller_id,
            controller_epoch=snapshot.controller_epoch,
            topic_states=states,
        )
        self._on_metadata((yield from self._metadata.publish(request, keep_brokers=True)))
        return UpdateMetadataResponse()

    def _refuse_update(self, request: UpdateMetadataRequest) -> UpdateMetadataResponse | None:
        """The response to a request with a stale epoch; else notes the controller's epoch."""
        if self._is_stale(request.broker_epoch):
            return UpdateMetadataResponse(ErrorCode.STALE_BROKER_EPOCH)
        if request.controller_epoch < self._applier.controller_epoch:
            return UpdateMetadataResponse(ErrorCode.STALE_CONTROLLER_EPOCH)
        self._applier.controller_epoch = request.controller_epoch
        return None

    async def stop_replica(self, request: StopReplicaRequest) -> StopReplicaResponse:
        """Stop and delete replicas; may pause between them."""
        kept: set[TopicPartition] = set()
        if self._strays is not None and not self._is_stale(request.broker_epoch):
            kept = await self._strays.not_being_deleted(request)
        return await run_in_turns(self._stop(request, kept))

    def _stop(
        self, request: StopReplicaRequest, kept: set[TopicPartition]
    ) -> Steps[StopReplicaResponse]:
        steps = self._applier.stop_replicas(request, kept)
        while not self._is_stale(request.broker_epoch):
            try:
                next(steps)
            except StopIteration as end:
                response: StopReplicaResponse = end.value
                return response
            yield
        # Since the last pause, perhaps: the replicas may have been created again.
        return stop_replica_refused(request, ErrorCode.STALE_BROKER_EPOCH)


def _in_next_iteration(callback: Callable[[], None]) -> None:
    asyncio.get_running_loop().call_soon(callback)


def _error_rows(request: Any, response: Any, code: int, message: str | None) -> None:
    response.partition_errors = stop_replica_refused(request, code).partition_errors


ROUTES = (
    ApiRoute(
        ApiKey.LEADER_AND_ISR,
        ReplicaControl.handle_leader_and_isr,
        check=OnCluster("CLUSTER_ACTION"),
        limits=CONTROL,
        of_brokers=True,
    ),
    ApiRoute(
        ApiKey.STOP_REPLICA,
        ReplicaControl.handle_stop_replica,
        check=OnCluster("CLUSTER_ACTION"),
        errors=_error_rows,
        limits=CONTROL,
        of_brokers=True,
    ),
    ApiRoute(
        ApiKey.UPDATE_METADATA,
        ReplicaControl.handle_update_metadata,
        check=OnCluster("CLUSTER_ACTION"),
        limits=CONTROL,
        of_brokers=True,
    ),
)
