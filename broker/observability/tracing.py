"""OpenTelemetry traces: one span for each request, off by default.

`ottla.opentelemetry.traces.enable` turns it on; `pip install 'ottla[otel]'` has what it needs. The
exporter, the sampler and the resource are configured with the standard OTEL_ variables. When it is
off, nothing of this is imported, and a request does not even test it: tracing puts other statistics
into the routes (`TracedStatistics`), which count as before and make a span.

Names and attributes follow the messaging conventions of OpenTelemetry where they have one. The
protocol of Kafka has no field for a trace context, so each span is the root of its trace; the
context that producers put into record headers is for consumers and is not touched.
"""

from __future__ import annotations

import asyncio
import logging
import os
import threading
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from itertools import islice
from time import time_ns
from typing import TYPE_CHECKING, Any, NamedTuple

from ottla import __version__
from ottla.broker.config.errors import ConfigError
from ottla.broker.metrics.statistics import STAGES, RequestStatistics
from ottla.broker.observability.logs import RepeatFilter

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import SpanProcessor, TracerProvider
    from opentelemetry.trace import Span, Tracer

    from ottla.broker.requests.request_context import RequestContext, Route

logger = logging.getLogger("ottla.tracing")

# Texts of clients in an attribute, and topics in the list of a span. Most requests have one topic.
MAX_TEXT = 255
MAX_TOPICS = 16

# Requests that failed, until their span is made: normally in the same turn of the loop.
MAX_FAILURES = 1000

# For the spans that are not exported yet, when the broker stops.
STOP_SECONDS = 5.0

# (messaging.operation.name, messaging.operation.type) as the conventions have them for Kafka.
_OPERATIONS = {
    "Produce": ("send", "send"),
    "Fetch": ("poll", "receive"),
    "OffsetCommit": ("commit", "settle"),
    "TxnOffsetCommit": ("commit", "settle"),
}

TopicName = Callable[[bytes], str | None]


class Peer(NamedTuple):
    """Attributes of all spans of a broker."""

    broker_id: int
    cluster_id: str


class RequestTracing:
    """Makes the spans of one broker. Loop thread only, except for the export."""

    def __init__(
        self, peer: Peer, topic_name: TopicName, processor: SpanProcessor | None = None
    ) -> None:
        """`topic_name` finds the name of a topic id. `processor` is for tests; None: the exporter
        that the OTEL_ variables name.

        Raises ConfigError if a package is missing or a variable has no known value.
        """
        self._provider = _provider(peer, processor)
        self._tracer: Tracer = self._provider.get_tracer("ottla", __version__)
        self._topic_name = topic_name
        self._cluster_id = peer.cluster_id
        self._failures: dict[int, str] = {}

    def install(self, routes: Iterable[Route]) -> None:
        """Make a span for each request of these routes from now on. Before the first request."""
        for route in routes:
            route.statistics = TracedStatistics(route.entry.name, self)

    async def stop(self) -> None:
        """Export what is left, for `STOP_SECONDS` at most."""
        loop = asyncio.get_running_loop()
        done = asyncio.Event()

        def shut_down() -> None:
            self._provider.shutdown()
            with suppress(RuntimeError):  # the loop is closed: it took too long
                loop.call_soon_threadsafe(done.set)

        threading.Thread(target=shut_down, name="ottla-traces-stop", daemon=True).start()
        try:
            async with asyncio.timeout(STOP_SECONDS):
                await done.wait()
        except TimeoutError:
            logger.warning(
                "Traces were not exported within %d s of the shutdown: check the receiver that "
                "OTEL_EXPORTER_OTLP_ENDPOINT names",
                STOP_SECONDS,
            )

    def failed(self, context: RequestContext, error: Exception) -> None:
        """The handler of a request raised; its span gets the type of the error."""
        if len(self._failures) >= MAX_FAILURES:
            self._failures.clear()
        self._failures[id(context)] = type(error).__qualname__

    def trace(self, api: str, version: int, context: RequestContext, sent_at: float) -> None:
        """Make the span of a request whose response was sent at `sent_at` (monotonic seconds)."""
        from opentelemetry.context import Context
        from opentelemetry.trace import SpanKind

        error = self._failures.pop(id(context), None) if self._failures else None
        now_ns = time_ns()
        started_ns = now_ns - int((sent_at - context.received_at) * 1e9)
        topics, count = topics_of(context.request, self._topic_name)
        operation = _OPERATIONS.get(api)
        name = api if operation is None else operation[0]
        if operation is not None and count == 1 and topics:
            name = f"{name} {topics[0]}"
        span = self._tracer.start_span(name, Context(), SpanKind.SERVER, start_time=started_ns)
        if span.is_recording():
            span.set_attributes(self._attributes(api, version, context, topics, count))
            for stage, seconds in _stage_times(context, sent_at).items():
                span.set_attribute(f"ottla.request.{stage}.duration", seconds)
            if error is not None:
                _set_error(span, error)
        span.end(now_ns)

    def _attributes(
        self, api: str, version: int, context: RequestContext, topics: list[str], count: int
    ) -> dict[str, Any]:
        connection = context.connection
        host, port = connection.local_address
        attributes: dict[str, Any] = {
            "messaging.system": "kafka",
            "messaging.kafka.cluster.id": self._cluster_id,
            "server.address": host,
            "server.port": port,
            "network.peer.address": connection.client_host,
            "network.peer.port": connection.client_port,
            "network.transport": "tcp",
            "kafka.api.name": api,
            "kafka.api.version": version,
            "ottla.listener": connection.listener_name,
            "ottla.request.size": context.frame_bytes,
        }
        operation = _OPERATIONS.get(api)
        if operation is not None:
            name, kind = operation
            attributes["messaging.operation.name"] = name
            attributes["messaging.operation.type"] = kind
        if context.header.client_id:
            attributes["messaging.client.id"] = context.header.client_id[:MAX_TEXT]
        if count == 1 and topics:
            attributes["messaging.destination.name"] = topics[0]
        elif count:
            attributes["ottla.request.topics"] = topics
            attributes["ottla.request.topic_count"] = count
        group = getattr(context.request, "group_id", None)
        if isinstance(group, str) and group:
            attributes["messaging.consumer.group.name"] = group[:MAX_TEXT]
        return attributes


class TracedStatistics(RequestStatistics):
    """Counts the requests of an API and makes their spans."""

    __slots__ = ("_tracing",)

    def __init__(self, api_name: str, tracing: RequestTracing) -> None:
        super().__init__(api_name)
        self._tracing = tracing

    def record(self, api_version: int, request: RequestContext, sent_at: float) -> None:
        super().record(api_version, request, sent_at)
        self._tracing.trace(self.api_name, api_version, request, sent_at)

    def record_failure(self, request: RequestContext, error: Exception) -> None:
        super().record_failure(request, error)
        self._tracing.failed(request, error)


def topics_of(request: object, topic_name: TopicName) -> tuple[list[str], int]:
    """The first `MAX_TOPICS` topics that a request names, shortened; and how many it names.

    Responses of incremental fetch sessions may have topics that the request does not repeat.
    """
    listed = getattr(request, "topic_data", None) or getattr(request, "topics", None)
    if not isinstance(listed, list):
        return [], 0
    found = []
    for topic in islice(listed, MAX_TOPICS):
        name = topic if isinstance(topic, str) else _name_of(topic)
        if not name:
            topic_id = getattr(topic, "topic_id", None)
            name = topic_name(topic_id) if isinstance(topic_id, bytes) else None
        if name:
            found.append(name[:MAX_TEXT])
    return found, len(listed)


def _name_of(topic: object) -> str | None:
    for field in ("name", "topic"):
        value = getattr(topic, field, None)
        if isinstance(value, str) and value:
            return value
    return None


def _stage_times(context: RequestContext, sent_at: float) -> Mapping[str, float]:
    """Seconds in each stage, as the histograms have them."""
    seconds = (
        context.dequeued_at - context.received_at,
        context.local_done_at - context.dequeued_at,
        context.responded_at - context.local_done_at,
        context.throttle_time_ms / 1000,
        context.send_started_at - context.responded_at,
        sent_at - context.send_started_at,
    )
    return dict(zip(STAGES, seconds, strict=True))


def _set_error(span: Span, error: str) -> None:
    from opentelemetry.trace import Status, StatusCode

    span.set_attribute("error.type", error)
    span.set_status(Status(StatusCode.ERROR, error))


def _provider(peer: Peer, processor: SpanProcessor | None) -> TracerProvider:
    try:
        from opentelemetry.sdk.resources import SERVICE_NAME, OTELResourceDetector, Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor
    except ImportError as error:
        raise ConfigError(
            "ottla.opentelemetry.traces.enable needs more packages: pip install 'ottla[otel]' "
            f"({error})."
        ) from None
    attributes: dict[str, str | int] = {
        "service.version": __version__,
        "service.instance.id": str(peer.broker_id),
    }
    given = OTELResourceDetector().detect().attributes
    if SERVICE_NAME not in given:
        attributes[SERVICE_NAME] = "ottla"
    own = {name: value for name, value in attributes.items() if name not in given}
    provider = TracerProvider(resource=Resource.create(own), shutdown_on_exit=False)
    if processor is None:
        exporter = _exporter()
        processor = None if exporter is None else BatchSpanProcessor(exporter)
    if processor is not None:
        provider.add_span_processor(processor)
    for name in list(logging.root.manager.loggerDict):
        # A receiver that is away is reported every few seconds, a full queue for each span.
        if name.startswith("opentelemetry."):
            logging.getLogger(name).addFilter(RepeatFilter())
    return provider


def _exporter() -> Any:
    """The exporter that the OTEL_ variables name; None for `none`."""
    kind = os.environ.get("OTEL_TRACES_EXPORTER") or "otlp"
    protocol = (
        os.environ.get("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL")
        or os.environ.get("OTEL_EXPORTER_OTLP_PROTOCOL")
        or "http/protobuf"
    )
    if kind == "none":
        return None
    if kind == "console":
        from opentelemetry.sdk.trace.export import ConsoleSpanExporter

        return ConsoleSpanExporter()
    if kind != "otlp":
        raise ConfigError(
            f"OTEL_TRACES_EXPORTER: {kind!r} is not known: otlp, console and none are."
        )
    if protocol != "http/protobuf":
        raise ConfigError(
            f"OTEL_EXPORTER_OTLP_PROTOCOL: {protocol!r} is not supported: http/protobuf is, to "
            "port 4318 of a collector by default."
        )
    try:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
    except ImportError as error:
        raise ConfigError(
            "OTEL_TRACES_EXPORTER=otlp needs one more package: pip install 'ottla[otel]' "
            f"({error})."
        ) from None
    return OTLPSpanExporter()
