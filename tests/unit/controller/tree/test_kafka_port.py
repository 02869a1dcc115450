"""An address of ZooKeeper that is the port of a Kafka broker."""

from __future__ import annotations

import pytest

from ottla.controller.tree import kafka_port as module
from ottla.controller.tree.kafka_port import kafka_port
from ottla.controller.tree.store import ZooKeeperUnreachable
from ottla.controller.tree.zookeeper_store import ZooKeeperStore
from ottla.testing import Broker
from tests.doubles.scripted_zookeeper import DroppedSyns, ScriptedServer, never_responds, responds


async def test_the_start_names_the_port_of_a_broker() -> None:
    with Broker() as broker:
        store = ZooKeeperStore(f"{broker.bootstrap}/kafka", connection_timeout_ms=500)
        with pytest.raises(ZooKeeperUnreachable) as refused:
            await store.connect()
    assert str(refused.value).endswith(
        f"; {broker.bootstrap} is the port of a Kafka broker: write the address of ZooKeeper into "
        f"zookeeper.connect, usually port 2181"
    )


async def test_one_of_several_hosts() -> None:
    with Broker() as broker:
        assert await kafka_port(f"127.0.0.1:1,{broker.bootstrap}") == broker.bootstrap
    assert await kafka_port(f"127.0.0.1:1,{broker.bootstrap}") == ""


@pytest.mark.parametrize("hosts", ["no-such-host.invalid", "127.0.0.1:1", "[::1]:1", "x" * 70])
async def test_a_host_that_does_not_respond_is_no_broker(hosts: str) -> None:
    assert await kafka_port(hosts) == ""


@pytest.mark.parametrize("data", [b"HTTP/1.1 400 Bad Request\r\n\r\n", b"\0\0\0\1\0", b""])
async def test_another_program_is_no_broker(data: bytes) -> None:
    async with ScriptedServer(responds(data)) as other:
        assert await kafka_port(other.connect) == ""


async def test_a_silent_host_does_not_hold_the_start(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "SECONDS", 0.05)
    async with ScriptedServer(never_responds) as other:
        assert await kafka_port(other.connect) == ""
    with DroppedSyns() as dropped:
        assert await kafka_port(dropped) == ""
