"""Client telemetry (KIP-714): GetTelemetrySubscriptions (71), PushTelemetry (72) and
ListClientMetricsResources (74), version 0 each.

Kafka on ZooKeeper lists none of them. This broker does when it has somewhere to show the metrics,
that is when `ottla.metrics.address` is set, as Kafka in KRaft mode lists them when it has a plug-in
that takes them. Clients that know the requests send them by themselves.
"""

from __future__ import annotations

from ottla.broker.metrics.telemetry.exported import ExportedMetrics
from ottla.broker.metrics.telemetry.manager import ClientMetricsManager
from ottla.broker.metrics.telemetry.otlp import Point, read_points
from ottla.broker.requests.request_channel import RequestContext
from ottla.broker.runtime.tasks import WorkerPool
from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.protocol.messages.get_telemetry_subscriptions import (
    GetTelemetrySubscriptionsRequest,
    GetTelemetrySubscriptionsResponse,
)
from ottla.protocol.messages.list_client_metrics_resources import (
    ClientMetricsResource,
    ListClientMetricsResourcesRequest,
    ListClientMetricsResourcesResponse,
)
from ottla.protocol.messages.push_telemetry import PushTelemetryRequest, PushTelemetryResponse
from ottla.protocol.records.compression import decompress
from ottla.protocol.records.errors import RecordsError

# zstd, lz4, gzip, snappy: the order is what the broker likes best.
_CODECS = [4, 3, 1, 2]
_LAST_CODEC = 4

# Metrics are text, which shrinks well; no honest client comes near, a bomb gets no further.
_MOST_EXPANSION = 16


class ClientMetricsHandlers:
    """All three."""

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
                    self._manager.max_bytes * _MOST_EXPANSION,
                )
                self._exported.add(instance, points)
        except KafkaError as error:
            return PushTelemetryResponse(error_code=error.code)
        except RecordsError:
            return PushTelemetryResponse(error_code=ErrorCode.INVALID_RECORD)
        return PushTelemetryResponse()

    def list_resources(
        self, context: RequestContext, request: ListClientMetricsResourcesRequest
    ) -> ListClientMetricsResourcesResponse:
        return ListClientMetricsResourcesResponse(
            client_metrics_resources=[ClientMetricsResource(name) for name in self._manager.names]
        )


def _decode(codec: int, data: bytes, max_bytes: int) -> list[Point]:
    return list(read_points(decompress(codec, data, max_bytes)))


def _client(context: RequestContext) -> dict[str, str]:
    """What patterns of subscriptions are matched against."""
    connection = context.connection
    return {
        "client_id": context.header.client_id or "",
        "client_software_name": connection.client_software_name,
        "client_software_version": connection.client_software_version,
        "client_source_address": context.client_host,
        "client_source_port": str(context.client_port),
    }
