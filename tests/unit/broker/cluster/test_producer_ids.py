"""Blocks of producer ids."""

import asyncio
import logging

import pytest

from ottla.broker.cluster import producer_ids
from ottla.broker.cluster.producer_ids import ProducerIdManager
from ottla.controller.admin.producer_ids import ProducerIdBlock
from ottla.protocol.errors import ErrorCode
from tests.doubles.eventually import eventually_async


class Cluster:
    """Hands out blocks of ten, when `gate` is open; `failures` of the next calls fail."""

    def __init__(self) -> None:
        self.blocks = 0
        self.failures = 0
        self.gate = asyncio.Event()
        self.gate.set()

    async def allocate(self) -> ProducerIdBlock:
        await self.gate.wait()
        if self.failures:
            self.failures -= 1
            raise OSError("no connection to the controller")
        self.blocks += 1
        return ProducerIdBlock(10 * (self.blocks - 1), 10)


async def settle() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


def take(manager: ProducerIdManager) -> list[tuple[int, int]]:
    responses: list[tuple[int, int]] = []
    manager.take(lambda error, producer_id: responses.append((error, producer_id)))
    return responses


async def test_ids_are_handed_out_one_after_the_other() -> None:
    manager = ProducerIdManager(Cluster().allocate)
    first = take(manager)
    assert not first
    await settle()
    assert first == [(0, 0)]
    assert [take(manager) for _ in range(3)] == [[(0, 1)], [(0, 2)], [(0, 3)]]


async def test_the_next_block_is_fetched_before_the_last_id_is_gone() -> None:
    cluster = Cluster()
    manager = ProducerIdManager(cluster.allocate)
    take(manager)
    await settle()
    for _ in range(7):
        take(manager)
    await settle()
    assert cluster.blocks == 1
    take(manager)
    await settle()
    assert cluster.blocks == 2
    assert [take(manager)[0][1] for _ in range(3)] == [9, 10, 11]


async def test_many_who_wait_share_one_fetch() -> None:
    cluster = Cluster()
    cluster.gate.clear()
    manager = ProducerIdManager(cluster.allocate)
    responses = [take(manager) for _ in range(25)]
    cluster.gate.set()
    for _ in range(5):
        await settle()
    assert [response[0] for response in responses] == [(0, number) for number in range(25)]
    assert cluster.blocks == 3


async def test_a_failed_fetch_sends_the_clients_back(caplog: pytest.LogCaptureFixture) -> None:
    cluster = Cluster()
    cluster.failures = 1
    manager = ProducerIdManager(cluster.allocate)
    with caplog.at_level(logging.WARNING):
        responses = [take(manager), take(manager)]
        await settle()
    assert responses == [[(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, -1)]] * 2
    assert "no connection to the controller" in caplog.text
    again = take(manager)
    await settle()
    assert again == [(0, 0)]


async def test_a_block_is_in_hand_from_the_start_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(producer_ids, "RETRY_SECONDS", 0.0)
    cluster = Cluster()
    cluster.failures = 2
    manager = ProducerIdManager(cluster.allocate)
    manager.startup()
    await eventually_async(lambda: cluster.blocks == 1)
    cluster.failures = 1_000_000_000  # ZooKeeper is away
    assert [take(manager)[0] for _ in range(10)] == [(0, number) for number in range(10)]
    manager.shutdown()


async def test_no_block_is_fetched_after_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(producer_ids, "RETRY_SECONDS", 0.0)
    cluster = Cluster()
    cluster.failures = 1
    manager = ProducerIdManager(cluster.allocate)
    manager.startup()
    manager.shutdown()
    await settle()
    assert (cluster.failures, cluster.blocks) == (0, 0)


async def test_a_fetch_that_hangs_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(producer_ids, "ALLOCATION_DEADLINE_SECONDS", 0.001)
    cluster = Cluster()
    cluster.gate.clear()
    responded = asyncio.Event()
    responses: list[int] = []

    def reply(error: int, _: int) -> None:
        responses.append(error)
        responded.set()

    ProducerIdManager(cluster.allocate).take(reply)
    await asyncio.wait_for(responded.wait(), 10)
    assert responses == [ErrorCode.COORDINATOR_LOAD_IN_PROGRESS]


async def test_the_queue_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(producer_ids, "MAX_WAITING", 2)
    cluster = Cluster()
    cluster.gate.clear()
    manager = ProducerIdManager(cluster.allocate)
    waiting = [take(manager), take(manager)]
    assert take(manager) == [(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, -1)]
    cluster.gate.set()
    await settle()
    assert waiting == [[(0, 0)], [(0, 1)]]
