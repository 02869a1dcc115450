"""Requests of brokers to the active controller in this process: ControlledShutdown (7), versions 0
to 3; AlterPartition (56), versions 0 to 3 (KIP-497); AllocateProducerIds (67), version 0 (KIP-730).
Envelope (58), the forwarding of KRaft (KIP-590), is listed but closes the connection, as in Kafka.

A broker that is not the active controller responds with NOT_CONTROLLER.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from ottla.broker.requests.api_routes import ApiRoute
from ottla.broker.requests.request_channel import RequestContext
from ottla.broker.requests.request_context import OnCluster
from ottla.broker.requests.request_parts import CONTROL
from ottla.protocol.messages.allocate_producer_ids import (
    AllocateProducerIdsRequest,
    AllocateProducerIdsResponse,
)
from ottla.protocol.messages.alter_partition import AlterPartitionRequest, AlterPartitionResponse
from ottla.protocol.messages.controlled_shutdown import (
    ControlledShutdownRequest,
    ControlledShutdownResponse,
    RemainingPartition,
)
from ottla.protocol.registry import ApiKey

if TYPE_CHECKING:
    from ottla.controller.controller import Controller

logger = logging.getLogger("ottla.requests")


class AllocateProducerIdsHandler:
    """Hands the request to the controller in this process."""

    def __init__(self, controller: Controller) -> None:
        self._controller = controller

    async def handle(
        self, context: RequestContext, request: AllocateProducerIdsRequest
    ) -> AllocateProducerIdsResponse:
        block = await self._controller.allocate_producer_ids(
            request.broker_id, request.broker_epoch
        )
        return AllocateProducerIdsResponse(
            producer_id_start=block.first, producer_id_len=block.size
        )


class AlterPartitionHandler:
    """Hands the request to the controller in this process."""

    def __init__(self, controller: Controller) -> None:
        self._controller = controller

    async def handle(
        self, context: RequestContext, request: AlterPartitionRequest
    ) -> AlterPartitionResponse:
        return await self._controller.alter_partition(request, context.header.api_version)


class ControlledShutdownHandler:
    """Hands the request to the controller in this process."""

    def __init__(self, controller: Controller) -> None:
        self._controller = controller

    async def handle(
        self, context: RequestContext, request: ControlledShutdownRequest
    ) -> ControlledShutdownResponse:
        remaining = await self._controller.controlled_shutdown(
            request.broker_id, request.broker_epoch
        )
        return ControlledShutdownResponse(
            remaining_partitions=[
                RemainingPartition(each.topic, each.partition) for each in remaining
            ]
        )


ROUTES = (
    ApiRoute(
        ApiKey.ALLOCATE_PRODUCER_IDS,
        AllocateProducerIdsHandler.handle,
        check=OnCluster("CLUSTER_ACTION"),
    ),
    ApiRoute(
        ApiKey.ALTER_PARTITION,
        AlterPartitionHandler.handle,
        check=OnCluster("CLUSTER_ACTION"),
        limits=CONTROL,
        of_brokers=True,
    ),
    ApiRoute(
        ApiKey.CONTROLLED_SHUTDOWN,
        ControlledShutdownHandler.handle,
        check=OnCluster("CLUSTER_ACTION"),
        of_brokers=True,
    ),
)
