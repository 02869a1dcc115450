"""Limits of connections in a whole broker, set at the start and changed at run time."""

from __future__ import annotations

import socket
from contextlib import ExitStack
from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource

from ottla.broker.config.broker_config import BrokerConfig, ConfigError
from ottla.broker.testing.embedded import Broker
from ottla.protocol.headers import encode_request
from ottla.protocol.messages.api_versions import ApiVersionsRequest
from tests.doubles.eventually import eventually

SECONDS = 60.0
HELLO = encode_request(1, "tester", ApiVersionsRequest("tester", "1"), 3)


class Peer:
    """A plain connection that may be waiting to be let in."""

    def __init__(self, port: int) -> None:
        self._sock = socket.create_connection(("127.0.0.1", port), SECONDS)
        self._sock.sendall(HELLO)

    def is_served(self) -> bool:
        """Waits for the response; False when the broker closes the connection instead."""
        try:
            return len(self._sock.recv(4)) == 4
        except ConnectionResetError:
            return False

    def close(self) -> None:
        self._sock.close()


def change(broker: Broker, name: str, value: str) -> None:
    admin = AdminClient({"bootstrap.servers": f"127.0.0.1:{broker.server.ports['INTERNAL']}"})
    entry = ConfigEntry(name, value, incremental_operation=AlterConfigOpType.SET)
    resource = ConfigResource(ConfigResource.Type.BROKER, "1", incremental_configs=[entry])
    for future in admin.incremental_alter_configs([resource]).values():
        future.result(SECONDS)


def open_on(broker: Broker, listener: str) -> int:
    return len(broker.server.parts.network_server.listeners[listener].connections)


@pytest.fixture
def settings() -> dict[str, str]:
    return {
        "broker_id": "1",
        "listeners": "INTERNAL://127.0.0.1:0,EXTERNAL://127.0.0.1:0",
        "listener_security_protocol_map": "INTERNAL:PLAINTEXT,EXTERNAL:PLAINTEXT",
        "inter_broker_listener_name": "INTERNAL",
    }


def test_a_full_listener_lets_others_wait_until_its_limit_is_raised(
    tmp_path: Path, settings: dict[str, str]
) -> None:
    limit = "listener.name.external.max.connections"
    settings[limit.replace(".", "_")] = "2"
    with Broker(tmp_path, **settings) as broker, ExitStack() as stack:
        external = broker.server.ports["EXTERNAL"]
        peers = [Peer(external) for _ in range(3)]
        for peer in peers:
            stack.callback(peer.close)
        assert peers[0].is_served()
        assert peers[1].is_served()
        # The third waits in the backlog; the other listener is open for all, also for admins.
        change(broker, limit, "3")
        assert peers[2].is_served()
        assert open_on(broker, "EXTERNAL") == 3


def test_a_full_broker_keeps_a_place_for_brokers(tmp_path: Path, settings: dict[str, str]) -> None:
    with Broker(tmp_path, max_connections="2", **settings) as broker, ExitStack() as stack:
        external = broker.server.ports["EXTERNAL"]
        peers = [Peer(external) for _ in range(2)]
        for peer in peers:
            stack.callback(peer.close)
            assert peer.is_served()
        eventually(lambda: open_on(broker, "EXTERNAL") == 2)
        internal = Peer(broker.server.ports["INTERNAL"])
        stack.callback(internal.close)
        assert internal.is_served()
        # A client had to go for it, as Kafka does it.
        eventually(lambda: open_on(broker, "EXTERNAL") == 1)


def test_an_address_has_a_limit_that_changes_at_run_time(
    tmp_path: Path, settings: dict[str, str]
) -> None:
    with Broker(tmp_path, **settings) as broker, ExitStack() as stack:
        external = broker.server.ports["EXTERNAL"]
        change(broker, "max.connections.per.ip.overrides", "127.0.0.1:0")
        refused = Peer(external)
        stack.callback(refused.close)
        assert not refused.is_served()


@pytest.mark.parametrize("name", ["max.connections", "max.connection.creation.rate"])
def test_a_limit_that_is_no_number_is_named(name: str) -> None:
    with pytest.raises(ConfigError, match=f"listener.name.plaintext.{name}"):
        BrokerConfig({f"listener.name.plaintext.{name}": "many"})
