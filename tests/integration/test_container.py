"""A broker in a container with nothing but a published port, without an engine.

What a broker recognizes as one: tests/unit/broker/cluster/test_container_network.py.
"""

from __future__ import annotations

import pytest
from confluent_kafka.admin import AdminClient

from ottla.broker.cluster.container_network import ContainerNetwork
from ottla.broker.server import broker as assembly
from ottla.broker.testing.embedded import Broker


class FromOutside(ContainerNetwork):
    """All connections come through a published port; on loopback none would."""

    def is_from_outside(self, client: str, local: str) -> bool:
        return True


def advertised_host(monkeypatch: pytest.MonkeyPatch, **settings: object) -> str:
    """The address of the broker in Metadata, which the client must reach to list the topics."""
    network = FromOutside((), frozenset())
    monkeypatch.setattr(assembly, "container_of", lambda names: network if names else None)
    with Broker(**settings) as broker:
        broker.create_topic("orders")
        port = broker.bootstrap.rpartition(":")[2]
        cluster = AdminClient({"bootstrap.servers": f"127.0.0.1:{port}"}).list_topics(timeout=30)
        assert "orders" in cluster.topics
        [node] = cluster.brokers.values()
        assert node.port == int(port)
        return str(node.host)


def test_a_wildcard_listener_sends_clients_of_the_host_to_localhost(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert advertised_host(monkeypatch, listeners="PLAINTEXT://0.0.0.0:0") == "localhost"


def test_the_user_decides(monkeypatch: pytest.MonkeyPatch) -> None:
    settings = {
        "listeners": "PLAINTEXT://0.0.0.0:0",
        "advertised_listeners": "PLAINTEXT://127.0.0.1:0",
    }
    assert advertised_host(monkeypatch, **settings) == "127.0.0.1"
