from __future__ import annotations

from ipaddress import IPv4Address, IPv4Network
from typing import cast

from ottla.broker.cluster.container_network import ContainerNetwork
from ottla.broker.cluster.endpoints import Endpoints, LeaderHint, LeaderHints, Node
from ottla.broker.cluster.metadata_cache import MetadataCache
from ottla.broker.requests.request_channel import RequestContext
from tests.doubles.replicas import BROKER, TOPIC, Replicas
from tests.doubles.request_context import FakeContext


def context(listener: str = "PLAINTEXT") -> RequestContext:
    fake = FakeContext(3, 0)
    fake.listener_name = listener
    fake.local_address = ("10.1.2.3", 9999)
    return cast(RequestContext, fake)


def known_cluster() -> MetadataCache:
    replicas = Replicas()
    replicas.publish(0, leader=2, epoch=7)
    replicas.publish(1, leader=9, epoch=3)
    return replicas.metadata


def test_brokers_are_shown_as_registered() -> None:
    endpoints = Endpoints(BROKER, known_cluster(), frozenset())
    assert endpoints.node(context(), 2) == Node(2, "host", 9092, None)
    assert [node.node_id for node in endpoints.nodes(context())] == [1, 2, 3]


def test_a_wildcard_listener_shows_the_address_that_the_client_used() -> None:
    endpoints = Endpoints(BROKER, known_cluster(), frozenset({"PLAINTEXT"}))
    assert endpoints.node(context(), BROKER) == Node(BROKER, "10.1.2.3", 9091, None)
    other = endpoints.node(context(), 2)
    assert other is not None
    assert other.host == "host", "what the others use is their business"


def test_a_wildcard_listener_of_workers_shows_it_for_all_of_its_machine() -> None:
    """They are registered with one rack and one host name, which the client may not resolve."""
    metadata = known_cluster()
    snapshot = metadata.snapshot
    snapshot.brokers[2] = snapshot.brokers[2]._replace(rack="elsewhere")
    wildcard = frozenset({"PLAINTEXT"})
    endpoints = Endpoints(BROKER, metadata, wildcard, is_worker=True)
    hosts = {node.node_id: (node.host, node.port) for node in endpoints.nodes(context())}
    assert hosts == {BROKER: ("10.1.2.3", 9091), 2: ("host", 9092), 3: ("10.1.2.3", 9093)}


def test_who_is_not_there() -> None:
    endpoints = Endpoints(BROKER, known_cluster(), frozenset())
    assert endpoints.node(context(), 9) is None
    assert endpoints.node(context("SSL"), 2) is None
    assert endpoints.nodes(context("SSL")) == []


def test_leaders() -> None:
    metadata = known_cluster()
    hints = LeaderHints(metadata, Endpoints(BROKER, metadata, frozenset()))
    assert hints.find(context(), TOPIC, 0) == LeaderHint(2, 7, Node(2, "host", 9092, None))
    assert hints.find(context(), TOPIC, 1) == LeaderHint(9, 3, None)
    assert hints.find(context(), TOPIC, 2) is None
    assert hints.find(context(), "other", 0) is None


def test_a_container_shows_localhost_to_clients_of_its_host() -> None:
    network = ContainerNetwork((IPv4Network("10.1.0.0/16"),), frozenset({IPv4Address("10.1.0.1")}))
    wildcard = frozenset({"PLAINTEXT"})

    def host(listeners: frozenset[str], client: str) -> str:
        fake = context()
        cast(FakeContext, fake).client_host = client
        node = Endpoints(BROKER, known_cluster(), listeners, network).node(fake, BROKER)
        assert node is not None
        return node.host

    assert host(wildcard, "10.1.0.1") == "localhost"
    assert host(wildcard, "10.1.0.7") == "10.1.2.3", "another container"
    assert host(wildcard, "127.0.0.1") == "10.1.2.3", "this container"
    assert host(frozenset(), "10.1.0.1") == "host", "advertised.listeners is set"
