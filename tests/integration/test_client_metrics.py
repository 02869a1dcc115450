"""Clients push their metrics to the broker, and its metrics port shows them (KIP-714)."""

from __future__ import annotations

import time
import urllib.request

from confluent_kafka import Producer

from ottla.broker.testing.embedded import Broker
from ottla.protocol.client.blocking import BlockingClient
from ottla.protocol.messages.list_config_resources import (
    ListConfigResourcesRequest,
    ListConfigResourcesResponse,
)
from tests.doubles.command_line import CommandLine

SECONDS = 60.0


def scrape(broker: Broker) -> str:
    address = f"http://127.0.0.1:{broker.server.metrics_port}/metrics"
    with urllib.request.urlopen(address, timeout=SECONDS) as response:
        text: str = response.read().decode()
    return text


def test_a_real_client_is_asked_and_pushes() -> None:
    with Broker(ottla_metrics_address="127.0.0.1:0") as broker:
        ottla = CommandLine(broker.bootstrap)
        ottla.done("configs", "set", "metrics", "all", "metrics=*", "interval.ms=500")
        assert "interval.ms" in ottla.done("configs", "describe", "metrics", "all").output
        with BlockingClient(broker.bootstrap) as client:
            listed = client.call(ListConfigResourcesRequest([16]))
        assert isinstance(listed, ListConfigResourcesResponse)
        assert [each.resource_name for each in listed.config_resources] == ["all"]
        producer = Producer(
            {"bootstrap.servers": broker.bootstrap, "client.id": "pusher", "log_level": 0}
        )
        deadline = time.monotonic() + SECONDS
        while 'client_id="pusher"' not in (text := scrape(broker)):
            assert time.monotonic() < deadline, text
            producer.produce("t", b"v")
            assert producer.flush(SECONDS) == 0
            time.sleep(0.05)
    (line,) = (
        line
        for line in text.splitlines()
        if line.startswith("ottla_client_producer_connection_creation_total{")
    )
    assert 'client_software_name="' in line
    assert 'client_software_name=""' not in line


def test_without_a_port_that_shows_them_clients_are_not_asked() -> None:
    with Broker() as broker:
        with BlockingClient(broker.bootstrap) as client:
            versions = client.api_versions()
        assert not {71, 72} & set(versions)
        assert 75 in versions
        response = CommandLine(broker.bootstrap)("configs", "set", "metrics", "all", "metrics=*")
        assert response.code == 1
