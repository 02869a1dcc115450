from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from ottla.broker.cluster.broker_epoch import BrokerEpoch
from ottla.broker.config.broker_config import BrokerConfig
from ottla.broker.replication.fetcher import Fetcher, FetcherSettings
from ottla.broker.replication.fetcher_manager import FetcherManager
from ottla.broker.replication.partition import Partition
from ottla.protocol.client.aio_connection import AsyncConnection
from ottla.protocol.messages.update_metadata import (
    UpdateMetadataBroker,
    UpdateMetadataEndpoint,
    UpdateMetadataRequest,
)
from ottla.protocol.topics import TopicPartition
from tests.doubles.eventually import eventually_async
from tests.doubles.published_metadata import publish
from tests.doubles.replicas import Replicas

FOLLOWER = 1


class Unreachable(FetcherSettings):
    """Records the addresses of connection attempts, which all fail."""

    def __init__(self) -> None:
        super().__init__(BrokerConfig({"replica.fetch.backoff.ms": "5"}), FOLLOWER, BrokerEpoch())
        self.tried: set[tuple[str, int]] = set()

    async def connect(self, host: str, port: int) -> AsyncConnection:
        self.tried.add((host, port))
        raise ConnectionRefusedError


class Scene:
    def __init__(self, fetchers: int = 1) -> None:
        self.replicas = Replicas()
        self.settings = Unreachable()
        self.manager = FetcherManager(
            self.settings,
            self.replicas.manager,
            self.replicas.group_commit,
            self.replicas.metadata,
            "PLAINTEXT",
            self.replicas.clock.now_ms,
            fetchers,
        )

    def partition(self, index: int, leader: int) -> Partition:
        return self.replicas.follow(leader, index)

    async def tries(self, *ports: int) -> None:
        """From now on these addresses are tried, and no others."""
        expected = {("host", port) for port in ports}
        self.settings.tried.clear()
        await eventually_async(lambda: self.settings.tried >= expected)
        await asyncio.sleep(0.02)
        assert self.settings.tried == expected

    def live(self, ports: dict[int, int]) -> None:
        """These brokers live, at these ports."""
        brokers = [
            UpdateMetadataBroker(
                id=broker_id, endpoints=[UpdateMetadataEndpoint(port, "host", "PLAINTEXT")]
            )
            for broker_id, port in ports.items()
        ]
        publish(
            self.replicas.metadata,
            UpdateMetadataRequest(controller_id=1, controller_epoch=1, live_brokers=brokers),
        )
        self.manager.metadata_changed()


def run(body: Callable[[Scene], Awaitable[None]], fetchers: int = 1) -> None:
    async def whole() -> None:
        scene = Scene(fetchers)
        try:
            await body(scene)
        finally:
            scene.manager.close()
            await scene.tries()  # a closed manager sends no requests

    asyncio.run(whole())


def test_each_leader_has_its_fetcher() -> None:
    async def body(scene: Scene) -> None:
        scene.manager.add_fetcher_for_partitions(
            [scene.partition(0, 2), scene.partition(1, 3), scene.partition(2, 2)]
        )
        await scene.tries(9092, 9093)

    run(body)


def test_a_partition_moves_with_its_leader() -> None:
    async def body(scene: Scene) -> None:
        scene.manager.add_fetcher_for_partitions([scene.partition(0, 2)])
        scene.manager.add_fetcher_for_partitions([scene.replicas.follow(3, 0, epoch=1)])
        await scene.tries(9093)

    run(body)


def test_another_number_of_fetchers_moves_the_partitions() -> None:
    async def body(scene: Scene) -> None:
        partitions = [scene.partition(index, 2) for index in range(8)]
        scene.manager.add_fetcher_for_partitions(partitions)
        assert len(scene.manager._fetchers) == 1
        scene.manager.resize(4)
        fetchers = scene.manager._fetchers.values()
        assert len(fetchers) > 1
        assert sum(len(list(each.partitions())) for each in fetchers) == len(partitions)
        await scene.tries(9092)
        scene.manager.resize(1)
        assert len(scene.manager._fetchers) == 1
        await scene.tries(9092)

    run(body)


def test_what_is_stopped_is_requested_no_more() -> None:
    async def body(scene: Scene) -> None:
        partition = scene.partition(0, 2)
        scene.manager.add_fetcher_for_partitions([partition])
        scene.manager.remove_fetcher_for_partitions([partition])
        await scene.tries()

    run(body)


def test_a_leader_that_is_not_known_yet_is_waited_for() -> None:
    async def body(scene: Scene) -> None:
        partition = scene.partition(0, 2)
        scene.live({1: 9091})
        scene.manager.add_fetcher_for_partitions([partition])
        await scene.tries()
        scene.live({1: 9091, 2: 9192})
        await scene.tries(9192)

    run(body)


def test_a_leader_that_moved_is_found_again() -> None:
    async def body(scene: Scene) -> None:
        scene.manager.add_fetcher_for_partitions([scene.partition(0, 2)])
        scene.live({1: 9091, 2: 9999})
        await scene.tries(9999)

    run(body)


def test_a_leader_that_went_is_tried_until_another_is_named() -> None:
    async def body(scene: Scene) -> None:
        scene.manager.add_fetcher_for_partitions([scene.partition(0, 2)])
        scene.live({1: 9091})
        await scene.tries(9092)

    run(body)


def test_several_fetchers_share_the_partitions_of_a_leader() -> None:
    async def body(scene: Scene) -> None:
        scene.manager.add_fetcher_for_partitions([scene.partition(index, 2) for index in range(20)])
        numbers = {key[1] for key in scene.manager._fetchers}
        assert numbers == {0, 1}

    run(body, fetchers=2)


def test_a_partition_is_taken_from_its_fetcher_only(monkeypatch: pytest.MonkeyPatch) -> None:
    """A broker may have hundreds of fetchers, and one request names thousands of partitions."""
    removed: list[object] = []
    remove = Fetcher.remove

    def count(fetcher: Fetcher, key: TopicPartition) -> None:
        removed.append(key)
        remove(fetcher, key)

    monkeypatch.setattr(Fetcher, "remove", count)

    async def body(scene: Scene) -> None:
        partitions = [scene.partition(index, 2 + index % 2) for index in range(40)]
        scene.manager.add_fetcher_for_partitions(partitions)
        assert removed == []
        assert len(scene.manager._fetchers) == 4
        scene.manager.add_fetcher_for_partitions(partitions)
        scene.manager.remove_fetcher_for_partitions(partitions)
        assert removed == 2 * [partition.key for partition in partitions]
        assert not scene.manager._fetchers

    run(body, fetchers=2)
