"""A produce request to many partitions is appended in several turns of the loop."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

import pytest

from ottla.broker.replication import large_produces
from ottla.broker.replication.deferred_validation import ProduceEntry
from ottla.broker.replication.large_produces import append_in_turns
from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages.produce import PartitionProduceResponse
from tests.doubles.replicas import TOPIC, Replicas
from tests.doubles.storage_logs import batch_of

PARTITIONS = 7


@pytest.fixture(autouse=True)
def _few(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(large_produces, "MAX_PARTITIONS_PER_TURN", 3)


def entries(partitions: Sequence[int] = range(PARTITIONS)) -> list[ProduceEntry]:
    return [
        (TOPIC, index, batch_of(), PartitionProduceResponse(index, 0, -1, -1, -1))
        for index in partitions
    ]


def led(*, replicas: Sequence[int] = (1,)) -> Replicas:
    made = Replicas()
    for index in range(PARTITIONS):
        made.lead(index, replicas=replicas)
    return made


class Requested:
    """A request in progress."""

    def __init__(self, replicas: Replicas, given: list[ProduceEntry], acks: int) -> None:
        self.completed = 0
        self.rows = [row for *_, row in given]
        append_in_turns(replicas.manager, acks, 1_000, given, self._complete)

    def _complete(self) -> None:
        self.completed += 1

    async def end(self) -> list[int]:
        """The error codes."""
        async with asyncio.timeout(60):
            while not self.completed:  # noqa: ASYNC110 - the product has no event for a test
                await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert self.completed == 1
        return [row.error_code for row in self.rows]


async def test_some_partitions_in_a_turn() -> None:
    replicas = led()
    requested = Requested(replicas, entries(), acks=1)
    appended = []
    while not requested.completed:
        await asyncio.sleep(0)
        appended.append(sum(replicas.log(index).log_end_offset for index in range(PARTITIONS)))
    assert appended == [3, 6, 7]
    assert await requested.end() == [0] * PARTITIONS
    assert [row.base_offset for row in requested.rows] == [0] * PARTITIONS


async def test_batches_of_one_partition_keep_their_order() -> None:
    requested = Requested(led(), entries([0] * PARTITIONS), acks=1)
    await requested.end()
    assert [row.base_offset for row in requested.rows] == list(range(PARTITIONS))


async def test_acks_all_waits_for_all_parts() -> None:
    replicas = led(replicas=(1, 2))
    requested = Requested(replicas, entries(), acks=-1)
    for _ in range(10):
        await asyncio.sleep(0)
    for index in range(PARTITIONS):
        assert not requested.completed
        partition = replicas.partition(index)
        partition.followers[2].record_fetch(1, 0, 1, 0)
        assert partition.maybe_increment_high_watermark()
        replicas.manager.complete_delayed_requests(partition)
    assert await requested.end() == [0] * PARTITIONS


async def test_what_a_part_raises_is_the_error_of_its_partitions(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    replicas = led()
    append = replicas.manager.append_records

    def fail_once(
        acks: int,
        timeout_ms: int,
        given: Sequence[ProduceEntry],
        callback: Callable[[], None],
        **options: object,
    ) -> None:
        if given[0][1] == 3:
            raise RuntimeError("as planned")
        append(acks, timeout_ms, given, callback, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(replicas.manager, "append_records", fail_once)
    codes = await Requested(replicas, entries(), acks=1).end()
    assert codes == [0, 0, 0, *[ErrorCode.UNKNOWN_SERVER_ERROR] * 3, 0]
