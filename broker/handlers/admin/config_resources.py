"""ListConfigResources (74), versions 0 and 1: the names of what has settings (KIP-1142).

Version 0 lists client metrics resources only; Kafka 3.9 calls it ListClientMetricsResources. Kafka
3.9 in ZooKeeper mode does not list the API. This broker lists it where groups or client metrics
have settings, so that tools find the settings of groups without members.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING

from ottla.broker.handlers.admin.describe_configs import (
    BROKER,
    BROKER_LOGGER,
    CLIENT_METRICS,
    GROUP,
    TOPIC,
)
from ottla.broker.requests.api_routes import ApiRoute
from ottla.broker.requests.request_channel import RequestContext
from ottla.broker.requests.request_context import OnCluster
from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages.list_config_resources import (
    ConfigResource,
    ListConfigResourcesRequest,
    ListConfigResourcesResponse,
)
from ottla.protocol.registry import ApiKey
from ottla.protocol.steps import Steps

if TYPE_CHECKING:
    from ottla.broker.cluster.metadata_cache import MetadataCache
    from ottla.broker.config.dynamic_config import DynamicConfig

Names = Callable[[], Iterable[str]]

# The first version with types of resources.
_FIRST_WITH_TYPES = 1


class ConfigResourcesHandler:
    """Lists the resources of each type, in the order of Kafka 4.3."""

    def __init__(self, metadata: MetadataCache, dynamic_config: DynamicConfig) -> None:
        def brokers() -> Iterable[str]:
            return map(str, metadata.snapshot.brokers)

        self._names: Mapping[int, Names] = {
            GROUP: dynamic_config.group_names,
            CLIENT_METRICS: lambda: dynamic_config.client_metrics,
            BROKER_LOGGER: brokers,
            BROKER: brokers,
            TOPIC: lambda: metadata.snapshot.topics,
        }

    def list_resources(
        self, context: RequestContext, request: ListConfigResourcesRequest
    ) -> Steps[ListConfigResourcesResponse]:
        """Return the names; UNSUPPORTED_VERSION when a type is not one of the version."""
        has_types = context.header.api_version >= _FIRST_WITH_TYPES
        valid = self._names.keys() if has_types else {CLIENT_METRICS}
        wanted = set(request.resource_types) or valid
        if not wanted <= valid:
            return ListConfigResourcesResponse(error_code=ErrorCode.UNSUPPORTED_VERSION)
        found = []
        for kind, names in self._names.items():
            if kind not in wanted:
                continue
            for name in list(names()):  # of one moment
                found.append(ConfigResource(name, kind))
                yield
        return ListConfigResourcesResponse(config_resources=found)


ROUTES = (
    ApiRoute(
        ApiKey.LIST_CONFIG_RESOURCES,
        ConfigResourcesHandler.list_resources,
        check=OnCluster("DESCRIBE_CONFIGS"),
    ),
)
