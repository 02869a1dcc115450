"""AllocateProducerIds (67), version 0: a block of producer ids for a broker (KIP-730).

Sent to the active controller; any other broker responds with NOT_CONTROLLER.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ottla.broker.requests.api_routes import ApiRoute
from ottla.broker.requests.request_channel import RequestContext
from ottla.broker.requests.request_context import OnCluster
from ottla.protocol.messages.allocate_producer_ids import (
    AllocateProducerIdsRequest,
    AllocateProducerIdsResponse,
)
from ottla.protocol.registry import ApiKey

if TYPE_CHECKING:
    from ottla.controller.controller import Controller


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


ROUTES = (
    ApiRoute(
        ApiKey.ALLOCATE_PRODUCER_IDS,
        AllocateProducerIdsHandler.handle,
        check=OnCluster("CLUSTER_ACTION"),
    ),
)
