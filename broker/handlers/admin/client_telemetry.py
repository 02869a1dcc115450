"""GetTelemetrySubscriptions (71) and PushTelemetry (72): KIP-714.

Version 0 each. Kafka lists them in KRaft mode only, when it has a metrics reporter for client
telemetry. This broker lists them when it exports metrics (`ottla.metrics.address`). Clients that
support KIP-714 send the requests by default.
"""

from __future__ import annotations

from itertools import islice

from ottla.broker.metrics.telemetry.exported import MAX_POINTS, ExportedMetrics
from ottla.broker.metrics.telemetry.manager import ClientMetricsManager
from ottla.broker.metrics.telemetry.otlp import Point, read_points
from ottla.broker.requests.api_routes import ApiRoute
from ottla.broker.requests.request_channel import RequestContext
from ottla.broker.runtime.tasks import WorkerPool
from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.protocol.messages.get_telemetry_subscriptions import (
    GetTelemetrySubscriptionsRequest,
    GetTelemetrySubscriptionsResponse,
)
from ottla.protocol.messages.push_telemetry import PushTelemetryRequest, PushTelemetryResponse
from ottla.protocol.records.compression import decompress
from ottla.protocol.records.errors import RecordsError
from ottla.protocol.registry import ApiKey

# zstd, lz4, gzip, snappy: in the order of preference of the broker.
_CODECS = [4, 3, 1, 2]
_LAST_CODEC = 4

# The limit of decompressed bytes, as a multiple of the compressed limit: far above that of real
# metrics, against decompression bombs.
_MAX_EXPANSION = 16


class ClientMetricsHandlers:
    """Hands the requests to the manager of client metrics."""

    def __init__(
        self, manager: ClientMetricsManager, exported: ExportedMetrics, workers: WorkerPool
    ) -> None:
        self._manager = manager
        self._exported = exported
        self._workers = workers

    def get_subscriptions(
        self, context: RequestContext, request: GetTelemetrySubscriptionsRequest
    ) -> GetTelemetrySubscriptionsResponse:
        try:
            instance = self._manager.ask(request.client_instance_id, _client(context))
        except KafkaError as error:
            return GetTelemetrySubscriptionsResponse(error_code=error.code)
        return GetTelemetrySubscriptionsResponse(
            client_instance_id=instance.instance_id,
            subscription_id=instance.subscription_id,
            accepted_compression_types=list(_CODECS),
            push_interval_ms=instance.interval_ms,
            telemetry_max_bytes=self._manager.max_bytes,
            delta_temporality=True,
            requested_metrics=list(instance.metrics),
        )

    async def push(
        self, context: RequestContext, request: PushTelemetryRequest
    ) -> PushTelemetryResponse:
        try:
            instance = self._manager.accept(
                request.client_instance_id,
                _client(context),
                request.subscription_id,
                request.terminating,
                len(request.metrics),
            )
            if not 0 <= request.compression_type <= _LAST_CODEC:
                raise KafkaError(ErrorCode.UNSUPPORTED_COMPRESSION_TYPE)
            if request.metrics:
                points = await self._workers.run(
                    _decode,
                    request.compression_type,
                    bytes(request.metrics),
                    self._manager.max_bytes * _MAX_EXPANSION,
                )
                self._exported.add(instance, points)
        except KafkaError as error:
            return PushTelemetryResponse(error_code=error.code)
        except RecordsError:
            return PushTelemetryResponse(error_code=ErrorCode.INVALID_RECORD)
        return PushTelemetryResponse()


def _decode(codec: int, data: bytes, max_bytes: int) -> list[Point]:
    return list(islice(read_points(decompress(codec, data, max_bytes)), MAX_POINTS))


def _client(context: RequestContext) -> dict[str, str]:
    """The labels of a client that the match patterns of subscriptions select."""
    connection = context.connection
    return {
        "client_id": context.header.client_id or "",
        "client_software_name": connection.client_software_name,
        "client_software_version": connection.client_software_version,
        "client_source_address": context.client_host,
        "client_source_port": str(context.client_port),
    }


ROUTES = (
    ApiRoute(
        ApiKey.GET_TELEMETRY_SUBSCRIPTIONS,
        ClientMetricsHandlers.get_subscriptions,
        check="unchecked",
    ),
    ApiRoute(ApiKey.PUSH_TELEMETRY, ClientMetricsHandlers.push, check="unchecked"),
)
