"""ControlledShutdown (7), versions 0 to 3: moves the leaders away from a broker that shuts down.

Sent to the active controller; any other broker responds with NOT_CONTROLLER.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ottla.broker.requests.api_routes import ApiRoute
from ottla.broker.requests.request_channel import RequestContext
from ottla.broker.requests.request_context import OnCluster
from ottla.protocol.messages.controlled_shutdown import (
    ControlledShutdownRequest,
    ControlledShutdownResponse,
    RemainingPartition,
)
from ottla.protocol.registry import ApiKey

if TYPE_CHECKING:
    from ottla.controller.controller import Controller


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
        ApiKey.CONTROLLED_SHUTDOWN,
        ControlledShutdownHandler.handle,
        check=OnCluster("CLUSTER_ACTION"),
        of_brokers=True,
    ),
)
