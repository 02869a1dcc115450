"""AlterPartition (56), versions 0 to 3: a leader changes its in-sync replicas (KIP-497).

Sent to the active controller; any other broker responds with NOT_CONTROLLER.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ottla.broker.requests.api_routes import ApiRoute
from ottla.broker.requests.request_channel import RequestContext
from ottla.broker.requests.request_context import OnCluster
from ottla.broker.requests.request_parts import CONTROL
from ottla.protocol.messages.alter_partition import AlterPartitionRequest, AlterPartitionResponse
from ottla.protocol.registry import ApiKey

if TYPE_CHECKING:
    from ottla.controller.controller import Controller


class AlterPartitionHandler:
    """Hands the request to the controller in this process."""

    def __init__(self, controller: Controller) -> None:
        self._controller = controller

    async def handle(
        self, context: RequestContext, request: AlterPartitionRequest
    ) -> AlterPartitionResponse:
        return await self._controller.alter_partition(request, context.header.api_version)


ROUTES = (
    ApiRoute(
        ApiKey.ALTER_PARTITION,
        AlterPartitionHandler.handle,
        check=OnCluster("CLUSTER_ACTION"),
        limits=CONTROL,
        of_brokers=True,
    ),
)
