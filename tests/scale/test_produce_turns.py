"""How much one turn of the event loop does for a Produce to very many partitions, in calls."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import cast

import pytest

from ottla.broker.requests.request_context import DEFERRED, started
from ottla.broker.requests.request_parts import PRODUCE
from ottla.protocol.messages.produce import (
    PartitionProduceData,
    ProduceRequest,
    TopicProduceData,
)
from ottla.protocol.records.builder import build_batch
from ottla.protocol.topics import TopicPartition
from tests.doubles.replicas import TOPIC
from tests.hostile.turns import TurnMeter
from tests.scale.test_turns import Peer, begin, context_of, in_turns, meter
from tests.unit.broker.handlers.scene import DataPath

__all__ = ["meter"]

PARTITIONS = PRODUCE.most - 1  # and the topic


class ManyPartitions(DataPath):
    """One log that stands for all of them."""

    def __init__(self) -> None:
        super().__init__()
        self.led = self.lead()
        for index in range(1, PARTITIONS):
            self.manager.partitions[TopicPartition(TOPIC, index)] = self.led

    async def ask(self, request: ProduceRequest) -> Peer:
        """The connection, when it has the response."""
        context = context_of(request, 11)
        result = started(self.produce.handle(context, request))
        if isinstance(result, Coroutine):
            result = await result
            if result is not DEFERRED:
                await context.respond_in_turns(result)
        peer = cast("Peer", context.connection)
        for _ in range(PARTITIONS):
            if peer.sent:
                break
            await asyncio.sleep(0)
        return peer


def request_of(transactional_id: str | None) -> ProduceRequest:
    """A batch for each partition."""
    producer = {} if transactional_id is None else {"producer_id": 7, "transactional": True}
    rows = []
    for index in range(PARTITIONS):
        batch = build_batch([(0, None, b"", [])], base_sequence=index, producer_epoch=0, **producer)
        rows.append(PartitionProduceData(index, memoryview(bytearray(batch))))
    return ProduceRequest(transactional_id, 1, 1_000, [TopicProduceData(TOPIC, rows)])


@pytest.mark.parametrize("transactional_id", [None, "x"])
async def test_records_for_all_partitions(meter: TurnMeter, transactional_id: str | None) -> None:
    path = ManyPartitions()
    request = request_of(transactional_id)
    await begin(meter)
    peer = await in_turns(path.ask(request))
    assert peer.sent > 20 * PARTITIONS
    assert path.led.leader_log().log_end_offset == PARTITIONS
