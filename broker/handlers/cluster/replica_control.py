"""LeaderAndIsr (4), StopReplica (5), UpdateMetadata (6): the requests of the controller.

They come over the network from the controller on another broker, or by a call from the controller
in this process. Each request has the broker epoch of a registration: one with the epoch of an
earlier registration of this broker is refused with STALE_BROKER_EPOCH (KIP-380).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine
from typing import TYPE_CHECKING, Any

from ottla.broker.cluster.broker_epoch import UNKNOWN_BROKER_EPOCH, BrokerEpoch
from ottla.broker.cluster.metadata_cache import LEADER_DURING_DELETE
from ottla.broker.requests.refused_requests import (
    leader_and_isr_refused,
    stop_replica_refused,
)
from ottla.broker.requests.request_channel import RequestContext
from ottla.broker.runtime.slices import run_in_slices
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
from ottla.protocol.steps import run_at_once

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

# As long again, for the check for stray logs. A broker epoch that is no registration of this broker
# would wait for ever; Kafka handles such a request at once.
_STRAY_CHECK_SECONDS = 10.0

# To apply a partition takes 2 us, so these take 4 ms at once.
_MAX_PARTITIONS_AT_ONCE = 2000


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
    ) -> None:
        """`on_metadata` is called after each change of the metadata, with the partitions that are
        deleted. LeaderAndIsr requests wait for the check of `strays` after a registration: a log
        of a deleted topic would refuse the new topic of that name. `has_log`: whether there is a
        log of a partition here, which has the settings of its topic. `epochs` are those of replicas
        that refuse a state."""
        self._epochs = epochs
        self._has_log = has_log
        self._strays = strays
        self._broker_epoch = broker_epoch
        self._on_metadata = on_metadata
        self._applier = applier
        self._metadata = metadata
        self._dynamic_config = dynamic_config
        # Held while metadata are updated in slices: each update begins with the one before.
        self._updating = asyncio.Lock()

    def handle(self, request: Message, version: int) -> Message | Awaitable[Message]:
        """Handles a request of the controller in this process."""
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
        return epoch != UNKNOWN_BROKER_EPOCH and epoch < self._broker_epoch.value

    async def leader_and_isr(
        self, request: LeaderAndIsrRequest, version: int
    ) -> LeaderAndIsrResponse:
        """Makes replicas leader or follower, after the settings of the topics of new logs have
        been read."""
        if self._is_stale(request.broker_epoch):
            return leader_and_isr_refused(request, version, ErrorCode.STALE_BROKER_EPOCH)
        if self._strays is not None:
            await self._wait_for_stray_check(self._strays, request.broker_epoch)
        await self._prepare(request)
        if self._is_stale(request.broker_epoch):
            return leader_and_isr_refused(request, version, ErrorCode.STALE_BROKER_EPOCH)
        response = await self._applier.become_leader_or_follower(request, version)
        if self._epochs is not None and any(
            row.error_code == ErrorCode.FENCED_LEADER_EPOCH
            for topic in response.topics
            for row in topic.partition_errors
        ):
            await self._epochs.publish()
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
                *(broker_epoch, _STRAY_CHECK_SECONDS, self._broker_epoch.value),
            )

    async def _prepare(self, request: LeaderAndIsrRequest) -> None:
        """Retries while ZooKeeper is away: a controller of Kafka does not send a request again
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
        """Updates the metadata cache: in slices, if the request has very many partitions."""
        if self._updating.locked() or _has_many_partitions(request):
            return self._update_in_slices(request)
        refused = self._refuse_update(request)
        if refused is not None:
            return refused
        deleted = self._metadata.update(request)
        run_at_once(self._applier.step_down_where_replaced(request))
        self._on_metadata(deleted)
        return UpdateMetadataResponse()

    async def _update_in_slices(self, request: UpdateMetadataRequest) -> UpdateMetadataResponse:
        """One after the other, in the order in which they came. A controller that was replaced
        while its request waited is refused."""
        async with self._updating:
            refused = self._refuse_update(request)
            if refused is not None:
                return refused
            deleted = await run_in_slices(self._metadata.update_in_steps(request))
            try:
                await run_in_slices(self._applier.step_down_where_replaced(request))
            finally:
                # Also if the controller of this process resigns meanwhile, which cancels this: the
                # next one does not say again what was deleted.
                self._on_metadata(deleted)
        return UpdateMetadataResponse()

    async def forget_topics(self, topics: dict[str, TopicMetadata]) -> None:
        """Takes topics out of the metadata that do not exist any more, as if the controller had
        said so. One that was created again meanwhile stays."""
        async with self._updating:
            snapshot = self._metadata.snapshot
            states = [
                UpdateMetadataTopicState(
                    name,
                    topic.topic_id,
                    [
                        UpdateMetadataPartitionState(
                            partition_index=index, leader=LEADER_DURING_DELETE
                        )
                        for index in snapshot.topics[name].partitions
                    ],
                )
                for name, topic in topics.items()
                if snapshot.topic_id(name) == topic.topic_id and name in snapshot.topics
            ]
            request = UpdateMetadataRequest(
                controller_id=snapshot.controller_id,
                controller_epoch=snapshot.controller_epoch,
                topic_states=states,
            )
            steps = self._metadata.update_in_steps(request, keep_brokers=True)
            self._on_metadata(await run_in_slices(steps))

    def _refuse_update(self, request: UpdateMetadataRequest) -> UpdateMetadataResponse | None:
        """The response to a request with a stale epoch; else notes the controller's epoch."""
        if self._is_stale(request.broker_epoch):
            return UpdateMetadataResponse(ErrorCode.STALE_BROKER_EPOCH)
        if request.controller_epoch < self._applier.controller_epoch:
            return UpdateMetadataResponse(ErrorCode.STALE_CONTROLLER_EPOCH)
        self._applier.controller_epoch = request.controller_epoch
        return None

    async def stop_replica(self, request: StopReplicaRequest) -> StopReplicaResponse:
        """Stops and deletes replicas; other tasks run after some partitions."""
        kept: set[TopicPartition] = set()
        if self._strays is not None and not self._is_stale(request.broker_epoch):
            kept = await self._strays.not_being_deleted(request)
        steps = self._applier.stop_replicas(request, kept)
        while not self._is_stale(request.broker_epoch):
            try:
                next(steps)
            except StopIteration as end:
                response: StopReplicaResponse = end.value
                return response
            await asyncio.sleep(0)
        # Perhaps since the last step: the replicas may have been created again.
        return stop_replica_refused(request, ErrorCode.STALE_BROKER_EPOCH)


def _has_many_partitions(request: UpdateMetadataRequest) -> bool:
    partitions = len(request.ungrouped_partition_states)
    for topic in request.topic_states:
        partitions += len(topic.partition_states)
    return partitions > _MAX_PARTITIONS_AT_ONCE
