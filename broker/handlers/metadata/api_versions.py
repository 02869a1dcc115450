"""ApiVersions (18), versions 0 to 4: which APIs and versions this broker answers.

Kafka: the first request of most clients. An unknown version is answered in the layout of version 0
with UNSUPPORTED_VERSION and the whole list, which is how a newer client finds out what to use; the
network layer does that, as the request cannot be decoded. From version 3 the client names its
software, which is checked (KIP-511), and finalized features are listed: none in ZooKeeper mode.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from ottla.broker.requests.request_channel import HandlerEntry, RequestContext
from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages.api_versions import ApiVersion, ApiVersionsRequest, ApiVersionsResponse

# KIP-511: what may stand in a client's name and version, so that both can be metric labels.
_SOFTWARE = re.compile(r"[a-zA-Z0-9](?:[a-zA-Z0-9\-.]*[a-zA-Z0-9])?")


class ApiVersionsHandler:
    """Answers from the handler table, so that the list cannot differ from what is served."""

    def __init__(self, entries: Iterable[HandlerEntry]) -> None:
        self._versions = [
            ApiVersion(entry.api_key, entry.min_version, entry.max_version)
            for entry in sorted(entries, key=lambda entry: entry.api_key)
        ]

    def response(self, error_code: int = ErrorCode.NONE) -> ApiVersionsResponse:
        """The list, with an error code for the answer to an unknown version."""
        return ApiVersionsResponse(error_code=error_code, api_keys=self._versions)

    def handle(self, context: RequestContext, request: ApiVersionsRequest) -> ApiVersionsResponse:
        if context.header.api_version >= 3:
            name, version = request.client_software_name, request.client_software_version
            if not (_SOFTWARE.fullmatch(name) and _SOFTWARE.fullmatch(version)):
                return ApiVersionsResponse(error_code=ErrorCode.INVALID_REQUEST)
            context.connection.client_software_name = name
            context.connection.client_software_version = version
        return self.response()
