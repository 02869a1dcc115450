"""DescribeCluster (60), versions 0 to 2: the cluster id, the controller and the live brokers.

No broker is fenced where there is ZooKeeper: version 2 may ask for them, and lists the same ones.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ottla.broker.handlers.common.authorized_operations import CLUSTER_OPERATIONS
from ottla.broker.handlers.common.first_metadata import after_first_metadata
from ottla.broker.requests.api_routes import ApiRoute
from ottla.broker.requests.request_channel import RequestContext
from ottla.broker.requests.request_context import HandlerResult
from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages.describe_cluster import (
    DescribeClusterBroker,
    DescribeClusterRequest,
    DescribeClusterResponse,
)
from ottla.protocol.registry import ApiKey

if TYPE_CHECKING:
    from ottla.broker.cluster.endpoints import Endpoints
    from ottla.broker.cluster.metadata_cache import MetadataCache

_BROKERS = 1
_CONTROLLERS = 2


class DescribeClusterHandler:
    """Responds from the metadata cache."""

    def __init__(self, cluster_id: str, metadata: MetadataCache, endpoints: Endpoints) -> None:
        self._cluster_id = cluster_id
        self._metadata = metadata
        self._endpoints = endpoints
        self._after_first_metadata = after_first_metadata(metadata, self.handle)

    def handle_after_first_metadata(self, context: RequestContext, request: Any) -> HandlerResult:
        """`handle`, for requests that may come before the first UpdateMetadata."""
        return self._after_first_metadata(context, request)

    def handle(
        self, context: RequestContext, request: DescribeClusterRequest
    ) -> DescribeClusterResponse:
        if request.endpoint_type != _BROKERS:
            # Controllers have endpoints of their own in KRaft mode only.
            is_known = request.endpoint_type == _CONTROLLERS
            code = ErrorCode.MISMATCHED_ENDPOINT_TYPE if is_known else 0
            return DescribeClusterResponse(
                error_code=code or ErrorCode.UNSUPPORTED_ENDPOINT_TYPE,
                error_message=f"Unsupported endpoint type {request.endpoint_type}",
            )
        nodes = self._endpoints.nodes(context)
        controller_id = self._metadata.snapshot.controller_id
        response = DescribeClusterResponse(
            cluster_id=self._cluster_id,
            controller_id=controller_id if any(n.node_id == controller_id for n in nodes) else -1,
            brokers=[DescribeClusterBroker(*node) for node in nodes],
        )
        if request.include_cluster_authorized_operations:
            response.cluster_authorized_operations = CLUSTER_OPERATIONS
        return response


ROUTES = (
    ApiRoute(
        ApiKey.DESCRIBE_CLUSTER,
        DescribeClusterHandler.handle_after_first_metadata,
        check="describe_cluster",
    ),
)
