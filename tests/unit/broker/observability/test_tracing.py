"""Spans of requests to a real network server, with an exporter in memory."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import pytest
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode

from ottla.broker.config.errors import ConfigError
from ottla.broker.metrics.statistics import STAGES, RequestStatistics
from ottla.broker.observability import tracing as tracing_module
from ottla.broker.observability.tracing import (
    MAX_TOPICS,
    Peer,
    RequestTracing,
    TracedStatistics,
    topics_of,
)
from ottla.protocol.messages.fetch import FetchRequest, FetchTopic
from ottla.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic
from ottla.protocol.messages.produce import ProduceRequest, TopicProduceData
from tests.doubles.broker_process import ROOT
from tests.doubles.network import metadata_request, running_network

PEER = Peer(7, "the-cluster")
TOPIC_ID = bytes(range(16))


@contextmanager
def traced() -> Iterator[tuple[RequestTracing, InMemorySpanExporter]]:
    exporter = InMemorySpanExporter()
    names = {TOPIC_ID: "by-id"}
    yield RequestTracing(PEER, names.get, SimpleSpanProcessor(exporter)), exporter


def attributes(span: ReadableSpan) -> dict[str, Any]:
    return dict(span.attributes or {})


async def test_a_span_for_each_request() -> None:
    async with running_network() as network:
        with traced() as (tracing, exporter):
            tracing.install(network.channel.routes.values())
            client = await network.connect()
            await client.ask(metadata_request(), 1)
            await tracing.stop()
    (span,) = exporter.get_finished_spans()
    found = attributes(span)
    assert (span.name, span.kind, span.parent) == ("Metadata", SpanKind.SERVER, None)
    assert span.status.status_code is StatusCode.UNSET
    assert span.resource.attributes["service.name"] == "ottla"
    assert span.resource.attributes["service.instance.id"] == "7"
    assert (found["kafka.api.name"], found["kafka.api.version"]) == ("Metadata", 1)
    assert found["messaging.system"] == "kafka"
    assert found["messaging.kafka.cluster.id"] == "the-cluster"
    assert found["network.peer.address"] == "127.0.0.1"
    assert found["server.port"] == network.port
    assert "messaging.operation.name" not in found
    assert span.start_time is not None
    assert span.end_time is not None
    stages = [found[f"ottla.request.{stage}.duration"] for stage in STAGES]
    assert sum(stages) == pytest.approx((span.end_time - span.start_time) / 1e9, abs=1e-6)


def context(request: object, **more: Any) -> Any:
    connection = SimpleNamespace(
        local_address=("127.0.0.1", 9092),
        client_host="10.0.0.1",
        client_port=5,
        listener_name="CLIENTS",
    )
    defaults = {
        "request": request,
        "connection": connection,
        "header": SimpleNamespace(client_id="c" * 1000),
        "frame_bytes": 100,
        "received_at": 1.0,
        "dequeued_at": 1.0,
        "local_done_at": 1.0,
        "responded_at": 3.0,
        "send_started_at": 3.0,
        "throttle_time_ms": 0,
    }
    return SimpleNamespace(**{**defaults, **more})


def test_the_messaging_conventions() -> None:
    with traced() as (tracing, exporter):
        produce = ProduceRequest(topic_data=[TopicProduceData("orders")])
        TracedStatistics("Produce", tracing).record(9, context(produce), 3.0)
        fetch = FetchRequest(topics=[FetchTopic(topic_id=TOPIC_ID)])
        TracedStatistics("Fetch", tracing).record(16, context(fetch), 3.0)
        both = FetchRequest(topics=[FetchTopic("a"), FetchTopic("b")])
        TracedStatistics("Fetch", tracing).record(12, context(both), 3.0)
    first, second, third = exporter.get_finished_spans()
    assert (first.name, second.name, third.name) == ("send orders", "poll by-id", "poll")
    sent = attributes(first)
    assert sent["messaging.operation.name"] == sent["messaging.operation.type"] == "send"
    assert sent["messaging.destination.name"] == "orders"
    assert len(sent["messaging.client.id"]) == tracing_module.MAX_TEXT
    assert sent["ottla.request.remote.duration"] == 2.0
    assert attributes(second)["messaging.operation.type"] == "receive"
    assert attributes(third)["ottla.request.topics"] == ("a", "b")
    assert attributes(third)["ottla.request.topic_count"] == 2
    assert "messaging.destination.name" not in attributes(third)


def test_topics_of_a_span_are_bounded() -> None:
    topics = [MetadataRequestTopic(name="t" * 1000) for _ in range(1000)]
    names, count = topics_of(MetadataRequest(topics), lambda _: None)
    assert (len(names), count) == (MAX_TOPICS, 1000)
    assert {len(name) for name in names} == {tracing_module.MAX_TEXT}
    assert topics_of(None, lambda _: None) == ([], 0)


def test_a_failed_request_has_the_type_of_its_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tracing_module, "MAX_FAILURES", 2)
    with traced() as (tracing, exporter):
        statistics = TracedStatistics("Produce", tracing)
        request = context(ProduceRequest())
        for each in (context(None), context(None), request):
            statistics.record_failure(each, ValueError("secret"))
        statistics.record(9, request, 3.0)
        statistics.record(9, context(ProduceRequest()), 3.0)
    failed, other = exporter.get_finished_spans()
    assert statistics.errors == 3
    assert attributes(failed)["error.type"] == "ValueError"
    assert failed.status.status_code is StatusCode.ERROR
    assert other.status.status_code is StatusCode.UNSET
    assert tracing._failures == {}


@pytest.mark.parametrize(
    ("variable", "value"),
    [("OTEL_TRACES_EXPORTER", "zipkin"), ("OTEL_EXPORTER_OTLP_PROTOCOL", "grpc")],
)
def test_what_is_not_supported_stops_the_start(
    variable: str, value: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(variable, value)
    with pytest.raises(ConfigError, match=f"{variable}: '{value}'"):
        RequestTracing(PEER, lambda _: None)


def test_the_standard_variables_count(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_TRACES_EXPORTER", "none")
    monkeypatch.setenv("OTEL_SERVICE_NAME", "orders-cluster")
    monkeypatch.setenv("OTEL_RESOURCE_ATTRIBUTES", "service.instance.id=a,deployment=b")
    tracing = RequestTracing(PEER, lambda _: None)
    found = tracing._provider.resource.attributes
    assert found["service.name"] == "orders-cluster"
    assert (found["service.instance.id"], found["deployment"]) == ("a", "b")


def test_nothing_is_imported_without_it() -> None:
    """A broker without traces has the plain statistics and does not load OpenTelemetry."""
    program = (
        "import sys\n"
        "from ottla.broker.testing.embedded import Broker\n"
        "with Broker() as it:\n"
        "    routes = it.server.parts.request_channel.routes.values()\n"
        "    print({type(route.statistics).__name__ for route in routes})\n"
        "print([name for name in sys.modules if name.startswith('opentelemetry')])\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
        cwd=ROOT,
    )
    assert done.stdout.splitlines() == [f"{{'{RequestStatistics.__name__}'}}", "[]"]
