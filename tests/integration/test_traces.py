"""Traces of real clients' requests arrive at an OTLP receiver."""

from __future__ import annotations

import gzip
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest
from confluent_kafka import Producer
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.trace.v1.trace_pb2 import Span

from ottla.broker.testing.embedded import Broker

DEADLINE_S = 60.0


class Receiver:
    """A collector that keeps the spans it gets on OTLP/HTTP."""

    def __init__(self) -> None:
        receiver = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                if self.headers.get("Content-Encoding") == "gzip":
                    body = gzip.decompress(body)
                receiver.requests.append((self.path, ExportTraceServiceRequest.FromString(body)))
                self.send_response(200)
                self.send_header("Content-Length", "0")
                self.end_headers()

            def log_message(self, format: str, *args: object) -> None:
                """Nothing is printed."""

        self.requests: list[tuple[str, ExportTraceServiceRequest]] = []
        self._server = HTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        self._thread = threading.Thread(target=self._server.serve_forever)
        self._thread.start()

    def close(self) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()

    def spans(self) -> list[Span]:
        return [
            span
            for _, request in self.requests
            for resource in request.resource_spans
            for scope in resource.scope_spans
            for span in scope.spans
        ]


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    found = Receiver()
    yield found
    found.close()


def produce(broker: Broker) -> None:
    producer = Producer({"bootstrap.servers": broker.bootstrap, "client.id": "orders-service"})
    producer.produce("orders", b"v")
    assert producer.flush(DEADLINE_S) == 0


def test_spans_arrive_at_a_receiver(receiver: Receiver, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", receiver.url)
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_COMPRESSION", "gzip")
    monkeypatch.setenv("OTEL_SERVICE_NAME", "the-cluster")
    with Broker(ottla_opentelemetry_traces_enable="true") as broker:
        produce(broker)
    assert {path for path, _ in receiver.requests} == {"/v1/traces"}
    resource = receiver.requests[0][1].resource_spans[0].resource
    assert "the-cluster" in {each.value.string_value for each in resource.attributes}
    (span,) = [each for each in receiver.spans() if each.name == "send orders"]
    texts = {each.key: each.value.string_value for each in span.attributes}
    assert texts["messaging.destination.name"] == "orders"
    assert texts["messaging.client.id"] == "orders-service"
    assert span.kind == Span.SPAN_KIND_SERVER
    assert span.end_time_unix_nano > span.start_time_unix_nano
    assert "ApiVersions" in {each.name for each in receiver.spans()}


def test_the_sampler_is_that_of_the_variables(
    receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", receiver.url)
    monkeypatch.setenv("OTEL_TRACES_SAMPLER", "always_off")
    with Broker(ottla_opentelemetry_traces_enable="true") as broker:
        produce(broker)
    assert receiver.spans() == []


def test_a_receiver_that_is_away_delays_no_client(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:9")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TIMEOUT", "1")
    with Broker(ottla_opentelemetry_traces_enable="true") as broker:
        produce(broker)
