"""Requests of this broker to the active controller, wherever it is, and to other brokers.

To the controller in this process they are plain calls; to others they go over the inter-broker
listener, on a connection that is kept.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, cast

from ottla.controller.admin.topic_admin import NewTopic
from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.protocol.message import Message
from ottla.protocol.messages.allocate_producer_ids import (
    AllocateProducerIdsRequest,
    AllocateProducerIdsResponse,
)
from ottla.protocol.messages.alter_partition import AlterPartitionRequest, AlterPartitionResponse
from ottla.protocol.messages.create_topics import (
    CreatableReplicaAssignment,
    CreatableTopic,
    CreatableTopicConfig,
    CreateTopicsRequest,
    CreateTopicsResponse,
)

if TYPE_CHECKING:
    from ottla.broker.cluster.broker_epoch import BrokerEpoch
    from ottla.broker.cluster.inter_broker_client import InterBrokerClient
    from ottla.broker.cluster.metadata_cache import MetadataCache
    from ottla.broker.config.broker_config import BrokerConfig
    from ottla.controller.admin.producer_ids import ProducerIdBlock
    from ottla.controller.controller import Controller

logger = logging.getLogger("ottla.broker")

NO_CONTROLLER = -1
# A broker that stops looks so often whether the controller of its process knows of others that do.
_LOOK_MS = 200


class ControllerChannel:
    """Sends this broker's requests to the active controller. Loop only."""

    def __init__(
        self,
        broker_id: int,
        broker_epoch: BrokerEpoch,
        metadata: MetadataCache,
        inter_broker_client: InterBrokerClient,
    ) -> None:
        """`connect` it to the controller of this process before use: the controller is built from
        parts that use the channel."""
        self._broker_id = broker_id
        self._broker_epoch = broker_epoch
        self._metadata = metadata
        self._inter_broker_client = inter_broker_client
        self._local_controller: Controller | None = None

    def connect(self, controller: Controller) -> None:
        """`controller` is the one in this process, whether it is active or not."""
        self._local_controller = controller

    @property
    def _controller(self) -> Controller:
        if self._local_controller is None:
            raise RuntimeError("ControllerChannel.connect was not called")
        return self._local_controller

    async def create_topics(self, topics: list[NewTopic]) -> dict[str, int]:
        """Create topics; the result is an error code by name."""
        if self._controller.is_active:
            rows = await self._controller.create_topics(topics)
            return {row.name: row.error.code for row in rows}
        from ottla.broker.cluster.controller_channel import (
            create_topics_request,
            create_topics_response,
        )

        response = await self._send(
            create_topics_request(topics, self._inter_broker_client.timeout_ms)
        )
        return create_topics_response(response)

    async def alter_partition(
        self, newest_version: int, build: Callable[[int], AlterPartitionRequest]
    ) -> AlterPartitionResponse:
        """Request changes of in-sync replicas; raise when the controller cannot be reached.

        `build` returns the request in a version, up to `newest_version`; it is called with the
        newest one that the controller has. UnsupportedApiError when it has none of them: a Kafka
        controller before 2.7.
        """

        def build_as_broker(version: int) -> AlterPartitionRequest:
            request = build(version)
            request.broker_id = self._broker_id
            request.broker_epoch = self._broker_epoch.value
            return request

        if self._controller.is_active:
            request = build_as_broker(newest_version)
            return await self._controller.alter_partition(request, newest_version)
        controller_id = self._controller_id()
        response = await self._inter_broker_client.request_in_version(
            controller_id, AlterPartitionRequest.API_KEY, newest_version, build_as_broker
        )
        return cast("AlterPartitionResponse", response)

    async def allocate_producer_ids(self) -> ProducerIdBlock:
        """The next block of producer ids."""
        from ottla.controller.admin.producer_ids import ProducerIdBlock

        if self._controller.is_active:
            return await self._controller.allocate_producer_ids(
                self._broker_id, self._broker_epoch.value
            )
        request = AllocateProducerIdsRequest(self._broker_id, self._broker_epoch.value)
        response = cast("AllocateProducerIdsResponse", await self._send(request))
        if response.error_code != ErrorCode.NONE:
            raise KafkaError(response.error_code)
        return ProducerIdBlock(response.producer_id_start, response.producer_id_len)

    async def controlled_shutdown(self) -> int:
        """Request other leaders of what this broker leads; the number of those left."""
        from ottla.protocol.messages.controlled_shutdown import (
            ControlledShutdownRequest,
            ControlledShutdownResponse,
        )

        if self._controller.is_active:
            left = await self._controller.controlled_shutdown(
                self._broker_id, self._broker_epoch.value
            )
            return len(left)
        request = ControlledShutdownRequest(self._broker_id, self._broker_epoch.value)
        response = cast("ControlledShutdownResponse", await self._send(request))
        if response.error_code != ErrorCode.NONE:
            raise KafkaError(response.error_code)
        return len(response.remaining_partitions)

    async def is_alone(self, timeout_ms: int) -> bool:
        """Wait until no other broker is left that could take over partitions, up to `timeout_ms`;
        whether it is so. The others are gone or, as far as a controller of this process knows,
        shutting down like this one."""
        own = {self._broker_id}
        for waited_ms in range(0, max(timeout_ms, 1), _LOOK_MS):
            controller = self._local_controller
            if controller is not None and controller.is_everybody_stopping:
                return True
            if await self._metadata.wait_until(
                lambda snapshot: snapshot.brokers.keys() == own,
                min(timeout_ms - waited_ms, _LOOK_MS),
            ):
                return True
        return False

    async def wait_for_other_controller(self, controller_id: int, timeout_ms: int) -> None:
        """Wait until there is a controller that is not this one, up to `timeout_ms`."""
        await self._metadata.wait_until(
            lambda snapshot: snapshot.controller_id not in (controller_id, NO_CONTROLLER),
            timeout_ms,
        )

    @property
    def known_controller(self) -> int:
        """The controller that this broker would ask, NO_CONTROLLER for none."""
        controller = self._local_controller
        if controller is not None and controller.is_active:
            return self._broker_id
        return self._metadata.snapshot.controller_id

    async def _send(self, request: Message) -> Message:
        controller_id = self._controller_id()
        return await self._inter_broker_client.request(controller_id, request)

    def _controller_id(self) -> int:
        controller_id = self.known_controller
        if controller_id == NO_CONTROLLER:
            raise KafkaError(ErrorCode.NOT_CONTROLLER, "there is no controller now")
        return controller_id


def create_topics_request(topics: list[NewTopic], timeout_ms: int) -> CreateTopicsRequest:
    """The request for these topics."""
    return CreateTopicsRequest(
        topics=[
            CreatableTopic(
                topic.name,
                topic.num_partitions,
                topic.replication_factor,
                [
                    CreatableReplicaAssignment(index, list(replicas))
                    for index, replicas in (topic.assignments or {}).items()
                ],
                [
                    CreatableTopicConfig(name, value)
                    for name, value in (topic.configs or {}).items()
                ],
            )
            for topic in topics
        ],
        timeout_ms=timeout_ms,
    )


def create_topics_response(response: Message) -> dict[str, int]:
    """An error code by topic."""
    rows = cast("CreateTopicsResponse", response).topics
    return {row.name: row.error_code for row in rows}


async def hand_over(
    config: BrokerConfig, channel: ControllerChannel, left_service: Callable[[], str]
) -> bool:
    """Ask the controller up to `controlled.shutdown.max.retries` times; whether all moved.

    `left_service` returns why this broker leads no partition and no controller knows it, as text;
    empty while it is in service. Then nobody is asked.

    A partition whose other replicas are not in sync stays, and has no leader while this broker is
    away: stopping continues all the same, as in Kafka. Others that could take its partitions are
    not waited for where none is left, or all are stopping. Where the controller is stopped, too,
    the next one is asked as soon as it is elected.
    """
    left, asked = 0, NO_CONTROLLER
    for attempt in range(config.controlled_shutdown_max_retries):
        problem = left_service()
        if problem:
            logger.warning(
                "Proceeding to shut down without controlled shutdown: %s. This broker has left "
                "service and leads no partition",
                problem,
            )
            return False
        if left and await channel.is_alone(config.controlled_shutdown_retry_backoff_ms):
            logger.info("Controlled shutdown: no other broker of the cluster stays")
            return False
        if attempt and not left:
            await channel.wait_for_other_controller(
                asked, config.controlled_shutdown_retry_backoff_ms
            )
        left, asked = 0, channel.known_controller
        if asked == NO_CONTROLLER:
            logger.warning(
                "Proceeding to shut down without controlled shutdown: no controller has reached "
                "this broker, which leads no partition"
            )
            return False
        try:
            async with asyncio.timeout(config.controller_socket_timeout_ms / 1000):
                left = await channel.controlled_shutdown()
        except Exception as error:
            logger.warning(
                "Failed to send ControlledShutdown to the controller, attempt %d of %d: %s",
                attempt + 1,
                config.controlled_shutdown_max_retries,
                str(error) or type(error).__name__,
            )
            continue
        if not left:
            logger.info("Controlled shutdown succeeded: no partition waits for a leader")
            return True
        logger.warning("Controlled shutdown: %d partitions have no other in-sync replica", left)
    logger.warning(
        "Proceeding to shut down although controlled shutdown failed: partitions without another "
        "in-sync replica have no leader until this broker is back"
    )
    return False
