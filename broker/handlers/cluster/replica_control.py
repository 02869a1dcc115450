"""LeaderAndIsr (4), StopReplica (5), UpdateMetadata (6): the controller's orders, all versions.

They come over the network from another broker's controller, or by a plain call from our own. Every
order names the broker epoch of the registration it was made for: one for an earlier life of this
broker is refused with STALE_BROKER_EPOCH (KIP-380).
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine
from typing import TYPE_CHECKING, Any

from ottla.broker.cluster.broker_epoch import UNKNOWN_BROKER_EPOCH, BrokerEpoch
from ottla.broker.requests.request_channel import RequestContext
from ottla.protocol.errors import ErrorCode
from ottla.protocol.message import Message
from ottla.protocol.messages.leader_and_isr import LeaderAndIsrRequest, LeaderAndIsrResponse
from ottla.protocol.messages.stop_replica import StopReplicaRequest, StopReplicaResponse
from ottla.protocol.messages.update_metadata import UpdateMetadataRequest, UpdateMetadataResponse

if TYPE_CHECKING:
    from ottla.broker.cluster.metadata_cache import MetadataCache
    from ottla.broker.config.dynamic_config import DynamicConfig
    from ottla.broker.replication.leader_and_isr import LeaderAndIsrApplier
    from ottla.protocol.topics import TopicPartition


class ReplicaControl:
    """Carries out the controller's requests; also the controller's channel to its own broker."""

    def __init__(
        self,
        roles: LeaderAndIsrApplier,
        metadata: MetadataCache,
        dynamic_config: DynamicConfig,
        broker_epoch: BrokerEpoch,
        on_metadata: Callable[[list[TopicPartition]], None],
    ) -> None:
        """`on_metadata` is called after each change of the metadata, with the partitions that are
        deleted."""
        self._broker_epoch = broker_epoch
        self._on_metadata = on_metadata
        self._roles = roles
        self._metadata = metadata
        self._dynamic_config = dynamic_config

    def handle(self, request: Message, version: int) -> Message | Awaitable[Message]:
        """A request of the controller in this process."""
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
    ) -> UpdateMetadataResponse:
        return self.update_metadata(request)

    def handle_stop_replica(
        self, context: RequestContext, request: StopReplicaRequest
    ) -> StopReplicaResponse:
        return self.stop_replica(request)

    # -- what they do ---------------------------------------------------------------------------

    def _is_stale(self, epoch: int) -> bool:
        return epoch != UNKNOWN_BROKER_EPOCH and epoch < self._broker_epoch.value

    async def leader_and_isr(
        self, request: LeaderAndIsrRequest, version: int
    ) -> LeaderAndIsrResponse:
        """Takes roles, after the settings of topics that are new here have been read."""
        if self._is_stale(request.broker_epoch):
            return LeaderAndIsrResponse(error_code=ErrorCode.STALE_BROKER_EPOCH)
        names = {topic.topic_name for topic in request.topic_states}
        names.update(state.topic_name for state in request.ungrouped_partition_states)
        await self._dynamic_config.load_topics(names)
        return await self._roles.become_leader_or_follower(request, version)

    def update_metadata(self, request: UpdateMetadataRequest) -> UpdateMetadataResponse:
        """Publishes the next picture of the cluster."""
        if self._is_stale(request.broker_epoch):
            return UpdateMetadataResponse(ErrorCode.STALE_BROKER_EPOCH)
        if request.controller_epoch < self._roles.controller_epoch:
            return UpdateMetadataResponse(ErrorCode.STALE_CONTROLLER_EPOCH)
        self._roles.controller_epoch = request.controller_epoch
        deleted = self._metadata.update(request)
        self._on_metadata(deleted)
        return UpdateMetadataResponse()

    def stop_replica(self, request: StopReplicaRequest) -> StopReplicaResponse:
        """Stops and deletes replicas."""
        if self._is_stale(request.broker_epoch):
            return StopReplicaResponse(error_code=ErrorCode.STALE_BROKER_EPOCH)
        return self._roles.stop_replicas(request)
