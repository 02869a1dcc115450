"""Decodes frames into requests, and refuses invalid ones.

As in Kafka, an API key or version that is not supported, or bytes that cannot be decoded, close the
connection with one line in the log. Only an ApiVersions request of an unknown version gets a
response, in version 0, with UNSUPPORTED_VERSION and the supported versions (KIP-511), so that newer
clients can use an older version.
"""

import logging
import struct
from time import monotonic
from typing import Any, cast

from ottla.broker.metrics.statistics import NetworkStatistics
from ottla.broker.requests.bulk_requests import BulkRequests, Decoding
from ottla.broker.requests.request_channel import (
    HandlerEntry,
    RequestConnection,
    RequestContext,
    Route,
)
from ottla.broker.requests.request_context import LongRequestContext
from ottla.broker.runtime.log_limiter import LogLimiter
from ottla.protocol.errors import ProtocolError
from ottla.protocol.headers import (
    RequestHeader,
    decode_request,
    decode_request_header,
    decode_request_in_steps,
)
from ottla.protocol.message import Message

logger = logging.getLogger("ottla.net")

API_VERSIONS = 18
UNSUPPORTED_VERSION = 35

# The requests of group protocols that a setting enables.
_PROTOCOLS = {**dict.fromkeys((68, 69), "consumer"), **dict.fromkeys(range(76, 80), "share")}

# A client id is the client's choice; this much of it goes into a log line.
MAX_LOGGED_CLIENT_ID = 100

_FIXED_HEADER = struct.Struct(">hhi")


class RequestDecoder:
    """Decodes the frames of all connections against one table of routes."""

    __slots__ = ("_bulk", "_log_limiter", "_routes", "_statistics", "_unsupported_api_versions")

    def __init__(
        self,
        routes: dict[int, Route],
        statistics: NetworkStatistics,
        log_limiter: LogLimiter,
        bulk: BulkRequests | None = None,
    ) -> None:
        """`bulk` handles requests with very many elements; without it all are handled at once."""
        self._routes = routes
        self._bulk = bulk
        self._statistics = statistics
        self._log_limiter = log_limiter
        self._unsupported_api_versions: Route | None = None
        api_versions = routes.get(API_VERSIONS)
        if api_versions is not None:
            self._unsupported_api_versions = _unsupported_api_versions(api_versions)

    def route(self, api_key: int) -> Route | None:
        """The route of an API; None for one that this broker does not serve."""
        return self._routes.get(api_key)

    def decode(
        self, frame: bytearray | memoryview, connection: RequestConnection
    ) -> RequestContext | None:
        """Decode a request; None when there is none to handle and the connection is closed.

        The message's records are views of `frame`, which from now on belongs to the request.
        """
        received_at = monotonic()
        try:
            api_key, version, correlation_id = _FIXED_HEADER.unpack_from(frame)
        except struct.error:
            self._refuse(connection, f"sent {len(frame)} bytes, which are not a request")
            return None
        route = self._routes.get(api_key)
        if route is None or not route.min_version <= version <= route.max_version:
            if api_key == API_VERSIONS and self._unsupported_api_versions is not None:
                header = RequestHeader(api_key, 0, correlation_id)
                route = self._unsupported_api_versions
                return RequestContext(header, None, connection, route, len(frame), received_at)
            self._refuse_version(connection, frame, api_key, version, route)
            return None
        if not connection.authenticated and not route.entry.before_authentication:
            self._refuse(connection, f"sent a {route.entry.name} request before authentication")
            return None
        try:
            if len(frame) > route.small_frame_bytes and self._bulk is not None:
                return self._decode_large(frame, connection, route, received_at, self._bulk)
            header, request = decode_request(memoryview(frame))
        except ProtocolError as error:
            self._refuse(connection, f"sent a request that cannot be read: {error}")
            return None
        except Exception:
            # A defect: the decoder promises ProtocolError for any bytes that a client may send.
            logger.exception(
                "Unexpected error decoding %s version %d from %s:%d: closing the connection",
                route.entry.name,
                version,
                connection.client_host,
                connection.client_port,
            )
            connection.close("its request could not be decoded")
            return None
        return RequestContext(header, request, connection, route, len(frame), received_at)

    def _decode_large(
        self,
        frame: bytearray | memoryview,
        connection: RequestConnection,
        route: Route,
        received_at: float,
        bulk: BulkRequests,
    ) -> RequestContext:
        """Decode a request that may have very many elements, or the first of them: the rest is
        decoded when it is handled."""
        view = memoryview(frame)
        header, position = decode_request_header(view)
        steps = decode_request_in_steps(header, view, position)
        decoding = Decoding(header.api_key, steps, route.entry.limits)
        if decoding.decode_small():
            request = decoding.message
            return RequestContext(header, request, connection, route, len(frame), received_at)
        # The handler of the route gets the decoding instead of the request.
        pending = cast("Message", decoding)
        long_route = bulk.route(route, self._refuse_bulk)
        return LongRequestContext(header, pending, connection, long_route, len(frame), received_at)

    def _refuse_bulk(self, context: RequestContext, what: str) -> None:
        self._refuse(context.connection, what)
        context.close(what)

    def _refuse_version(
        self,
        connection: RequestConnection,
        frame: bytearray | memoryview,
        api_key: int,
        version: int,
        route: Route | None,
    ) -> None:
        if route is None:
            what = f"sent API key {api_key} version {version}, which is not supported"
        else:
            what = (
                f"sent {route.entry.name} (API key {api_key}) version {version}; supported "
                f"versions are {route.min_version} to {route.max_version}"
            )
        protocol = _PROTOCOLS.get(api_key)
        if protocol is not None:
            what += (
                f" ({protocol} groups are enabled by `{protocol}` in "
                "group.coordinator.rebalance.protocols)"
            )
        try:
            client_id = decode_request_header(memoryview(frame))[0].client_id
        except ProtocolError:
            client_id = None
        if client_id is not None:
            what += f"; client id {client_id[:MAX_LOGGED_CLIENT_ID]!r}"
        self._refuse(connection, what)

    def _refuse(self, connection: RequestConnection, what: str) -> None:
        self._statistics.protocol_errors += 1
        if self._log_limiter.allows(connection.client_host):
            software = connection.client_software_name or "unknown client software"
            logger.warning(
                "%s:%d (%s) on listener %s %s: closing the connection",
                connection.client_host,
                connection.client_port,
                f"{software} {connection.client_software_version}".strip(),
                connection.listener_name,
                what,
                extra={"peer": connection.client_host, "listener": connection.listener_name},
            )
        connection.close(what)


def _unsupported_api_versions(api_versions: Route) -> Route:
    """The route of ApiVersions requests in versions that are not supported."""

    def response(_: RequestContext, __: Any) -> Message:
        from ottla.protocol.messages.api_versions import ApiVersion, ApiVersionsResponse

        versions = ApiVersion(API_VERSIONS, api_versions.min_version, api_versions.max_version)
        return ApiVersionsResponse(error_code=UNSUPPORTED_VERSION, api_keys=[versions])

    route = Route(HandlerEntry(API_VERSIONS, api_versions.entry.name, 0, 0, response, True))
    route.statistics = api_versions.statistics
    return route
