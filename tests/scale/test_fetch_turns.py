"""How much one turn of the event loop does for a Fetch of all partitions of a broker, in calls."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import cast

import pytest

from ottla.broker.requests.request_context import DEFERRED, started
from ottla.protocol.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from ottla.protocol.messages.update_metadata import (
    UpdateMetadataPartitionState,
    UpdateMetadataRequest,
    UpdateMetadataTopicState,
)
from ottla.protocol.topics import TopicPartition
from tests.doubles.published_metadata import publish
from tests.doubles.replicas import BROKER, TOPIC, TOPIC_ID
from tests.hostile.turns import TurnMeter
from tests.scale.test_turns import Peer, begin, context_of, in_turns, meter
from tests.unit.broker.handlers.scene import DataPath

__all__ = ["meter"]

PARTITIONS = 40_000
NO_SESSION, NEW_SESSION = -1, 0


class ManyPartitions(DataPath):
    """One log that stands for all of them."""

    def __init__(self) -> None:
        super().__init__()
        self.led = self.lead()
        for index in range(1, PARTITIONS):
            self.manager.partitions[TopicPartition(TOPIC, index)] = self.led
        states = [
            UpdateMetadataPartitionState(
                partition_index=index, leader=BROKER, isr=[BROKER], replicas=[BROKER]
            )
            for index in range(PARTITIONS)
        ]
        publish(
            self.metadata,
            UpdateMetadataRequest(
                controller_epoch=1, topic_states=[UpdateMetadataTopicState(TOPIC, TOPIC_ID, states)]
            ),
        )

    async def fetch_all(self, offset: int, session_epoch: int) -> Peer:
        """The connection, which gets the response."""
        rows = [
            FetchPartition(partition=index, fetch_offset=offset, partition_max_bytes=1 << 20)
            for index in range(PARTITIONS)
        ]
        request = FetchRequest(
            max_wait_ms=10_000,
            min_bytes=1_000,
            max_bytes=1 << 20,
            session_epoch=session_epoch,
            topics=[FetchTopic(topic_id=TOPIC_ID, partitions=rows)],
        )
        context = context_of(request, 17)
        result = started(self.fetch.handle(context, request))
        assert isinstance(result, Coroutine)
        response = await result
        if response is not DEFERRED:
            await context.respond_in_turns(response)
        return cast("Peer", context.connection)


@pytest.mark.parametrize("session_epoch", [NO_SESSION, NEW_SESSION])
async def test_records_of_all_partitions(meter: TurnMeter, session_epoch: int) -> None:
    path = ManyPartitions()
    path.append(1)
    await begin(meter)
    peer = await in_turns(path.fetch_all(0, session_epoch))
    assert peer.sent > 20 * PARTITIONS
    assert len(path.sessions.cache) == (session_epoch == NEW_SESSION)


async def test_all_partitions_are_waited_for(meter: TurnMeter) -> None:
    path = ManyPartitions()
    await begin(meter)
    peer = await in_turns(path.fetch_all(0, NO_SESSION))
    assert peer.sent == 0

    async def append() -> None:
        path.append(100)  # more than `min_bytes`

    await in_turns(append())
    for _ in range(PARTITIONS):
        if peer.sent:
            break
        await asyncio.sleep(0)
    assert peer.sent > 20 * PARTITIONS
