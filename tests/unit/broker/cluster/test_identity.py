from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from ottla.broker.cluster.container_network import ContainerNetwork
from ottla.broker.cluster.identity import broker_info, establish, reach, wildcard_listeners
from ottla.broker.config.broker_config import BrokerConfig, ConfigError, Endpoint
from ottla.controller.registration import InconsistentClusterId
from ottla.controller.tree.embedded_store import EmbeddedStore
from ottla.storage.config import LogConfig
from ottla.storage.directories.log_manager import LogManager
from tests.doubles.memory_file_system import MemoryFileSystem


class Machine:
    """A disk that outlives its brokers, and a znode tree."""

    def __init__(self) -> None:
        self.store = EmbeddedStore()
        self._files = MemoryFileSystem()

    async def start(self, **settings: str) -> tuple[int, str]:
        """(broker id, cluster id) of a broker that starts here."""
        given = {name.replace("_", "."): text for name, text in settings.items()}
        config = BrokerConfig({"log.dirs": "/disk", **given})
        logs = LogManager(config.log_directories(), LogConfig(), self._files)
        return await establish(config, self.store, logs)


def run(body: Callable[[Machine], Awaitable[None]]) -> None:
    async def whole() -> None:
        machine = Machine()
        await machine.store.connect()
        try:
            await body(machine)
        finally:
            await machine.store.close()

    asyncio.run(whole())


def test_ids_are_made_once_and_kept() -> None:
    async def body(machine: Machine) -> None:
        broker_id, cluster_id = await machine.start()
        assert broker_id == 1001, "the first above reserved.broker.max.id"
        assert await machine.start() == (broker_id, cluster_id)

    run(body)


def test_an_id_that_is_given() -> None:
    async def body(machine: Machine) -> None:
        assert (await machine.start(broker_id="7"))[0] == 7
        # Who does not say gets the id of the data.
        assert (await machine.start())[0] == 7
        with pytest.raises(ConfigError, match=r"broker\.id is 8.*/disk belongs to broker 7"):
            await machine.start(broker_id="8")

    run(body)


def test_data_of_another_cluster_is_not_taken() -> None:
    async def body(machine: Machine) -> None:
        await machine.start()
        other = EmbeddedStore()
        await other.connect()
        machine.store, mine = other, machine.store
        with pytest.raises(InconsistentClusterId):
            await machine.start()
        machine.store = mine
        await other.close()

    run(body)


def test_what_is_registered() -> None:
    config = BrokerConfig(
        {
            "listeners": "IN://:0,OUT://0.0.0.0:9093",
            "advertised.listeners": "IN://inside:0,OUT://outside:19093",
            "listener.security.protocol.map": "IN:PLAINTEXT,OUT:PLAINTEXT",
            "inter.broker.listener.name": "IN",
            "broker.rack": "r",
        }
    )
    info = broker_info(config, 3, {"IN": 40001, "OUT": 9093})
    assert (info.broker_id, info.rack) == (3, "r")
    assert [(e.listener_name, e.host, e.port) for e in info.endpoints] == [
        ("IN", "inside", 40001),
        ("OUT", "outside", 19093),
    ]
    assert wildcard_listeners(config) == frozenset()


def test_listeners_without_an_address_of_their_own() -> None:
    assert wildcard_listeners(BrokerConfig({"listeners": "PLAINTEXT://:9092"})) == {"PLAINTEXT"}
    info = broker_info(BrokerConfig({"listeners": "PLAINTEXT://:0"}), 1, {"PLAINTEXT": 4000})
    assert info.endpoints[0].host
    assert info.endpoints[0].port == 4000


IN_A_CONTAINER = ContainerNetwork((), frozenset())


@pytest.mark.parametrize(
    ("listeners", "container", "found"),
    [
        ("PLAINTEXT://:9092", None, set()),
        ("PLAINTEXT://:9092", IN_A_CONTAINER, {"PLAINTEXT"}),
        ("PLAINTEXT://0.0.0.0:9092", None, {"PLAINTEXT"}),
        ("PLAINTEXT://[::]:9092", None, {"PLAINTEXT"}),
        ("PLAINTEXT://10.0.0.1:9092", None, set()),
    ],
)
def test_brokers_of_a_cluster_say_the_same_about_a_listener_without_a_host(
    listeners: str, container: ContainerNetwork | None, found: set[str]
) -> None:
    config = BrokerConfig({"listeners": listeners, "zookeeper.connect": "zk:2181"})
    assert wildcard_listeners(config, container) == found


@pytest.mark.parametrize(
    ("host", "words"),
    [
        ("", "from every network of this machine"),
        ("::", "from every network of this machine"),
        ("127.0.0.1", "from this machine only"),
        ("::1", "from this machine only"),
        ("db.example", "wherever db.example is reachable"),
    ],
)
def test_reach_as_text(host: str, words: str) -> None:
    assert reach(Endpoint("PLAINTEXT", "PLAINTEXT", host, 9092)) == words
