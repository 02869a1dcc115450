"""ApiVersions (18), versions 0 to 4: the APIs and versions that this broker supports.

The first request of most clients. The response to an unknown version has the layout of version 0,
UNSUPPORTED_VERSION and the whole list, so that a newer client can downgrade; the network layer
sends it, because the request cannot be decoded. Version 3 and later have the name and version of
the client software, which are validated (KIP-511), and the supported and finalized features.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property

from ottla.broker.cluster.features import FeatureCache
from ottla.broker.requests.api_routes import ApiRoute
from ottla.broker.requests.request_channel import HandlerEntry, RequestContext
from ottla.controller.admin.own_features import OFF, OWN_FEATURES
from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages.api_versions import (
    ApiVersion,
    ApiVersionsRequest,
    ApiVersionsResponse,
    FinalizedFeatureKey,
    SupportedFeatureKey,
)
from ottla.protocol.registry import ApiKey

NotOffered = Callable[[], Mapping[int, int | None]]
"""The newest version to list by API key, None for none, where a cluster offers less than a broker
serves."""

# What is kept for each connection, and is a label of a metric. Kafka has no bound of its own; the
# protocol's is 32 KB, and the request comes before authentication.
_MAX_KEPT = 100

# From this version on a supported feature may have level 0.
_LEVEL_0_SINCE = 4

# KIP-511: the valid names and versions of clients, which are used as metric labels.
_SOFTWARE = re.compile(r"[a-zA-Z0-9](?:[a-zA-Z0-9\-.]*[a-zA-Z0-9])?")


class ApiVersionsHandler:
    """Builds the list from the handler table, so that it cannot differ from what is served."""

    def __init__(
        self,
        entries: Sequence[HandlerEntry],
        features: FeatureCache,
        not_offered: NotOffered = dict,
    ) -> None:
        """`entries` is read at the first request: by then it has the entry of ApiVersions too."""
        self._entries = entries
        self._features = features
        self._not_offered = not_offered

    @cached_property
    def _versions(self) -> list[ApiVersion]:
        return [
            ApiVersion(entry.api_key, entry.min_version, entry.max_version)
            for entry in sorted(self._entries, key=lambda entry: entry.api_key)
        ]

    def _offered(self) -> list[ApiVersion]:
        limits = self._not_offered()
        if not limits:
            return self._versions
        found = []
        for listed in self._versions:
            newest = limits.get(listed.api_key, listed.max_version)
            if newest is not None:
                newest = min(newest, listed.max_version)
                found.append(ApiVersion(listed.api_key, listed.min_version, newest))
        return found

    def response(self, error_code: int = ErrorCode.NONE, version: int = 0) -> ApiVersionsResponse:
        """The list, with an error code for the response to an unknown version."""
        features = self._features
        return ApiVersionsResponse(
            error_code=error_code,
            api_keys=self._offered(),
            supported_features=[
                SupportedFeatureKey(name, OFF if name in OWN_FEATURES else low, high)
                for name, (low, high) in features.supported.items()
                # Clients up to version 3 fail for a feature that can be off (KAFKA-17011).
                if version >= _LEVEL_0_SINCE or name not in OWN_FEATURES
            ],
            finalized_features_epoch=features.epoch,
            finalized_features=[
                FinalizedFeatureKey(name, level, level)
                for name, level in features.finalized.items()
            ],
        )

    def handle(self, context: RequestContext, request: ApiVersionsRequest) -> ApiVersionsResponse:
        if context.header.api_version >= 3:
            name, version = request.client_software_name, request.client_software_version
            if not (_SOFTWARE.fullmatch(name) and _SOFTWARE.fullmatch(version)):
                return ApiVersionsResponse(error_code=ErrorCode.INVALID_REQUEST)
            context.connection.client_software_name = name[:_MAX_KEPT]
            context.connection.client_software_version = version[:_MAX_KEPT]
        return self.response(version=context.header.api_version)


ROUTES = (ApiRoute(ApiKey.API_VERSIONS, ApiVersionsHandler.handle, before_authentication=True),)
