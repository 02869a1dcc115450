"""How much one turn of a follower's event loop does for a Fetch response of small transactions.

A broker that was away copies all that was written meanwhile, 10 MB with each response.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from ottla.broker.replication.follower_truncation import FollowerTruncation
from ottla.protocol.messages.fetch import FetchableTopicResponse, FetchResponse, PartitionData
from ottla.protocol.records.batch import LEADER_EPOCH_POSITION
from tests.doubles.replicas import TOPIC_ID, Replicas
from tests.doubles.storage_logs import NOW_MS, batch_of, marker
from tests.hostile.turns import TurnMeter
from tests.scale.test_turns import begin, in_turns, meter
from tests.unit.broker.replication.test_fetcher import Pair

__all__ = ["meter"]

PARTITIONS = 10
SEGMENTS = 1_000
RECORD = [(NOW_MS, None, b"", [])]


def transactions(producers: int) -> tuple[bytes, int]:
    """1 MB of transactions with a record each, the last one aborted; and the offset after them."""
    content, offset = bytearray(), 0
    while len(content) < 1 << 20:
        producer = offset // 2 % producers
        content += batch_of(
            RECORD,
            base_offset=offset,
            producer_id=producer,
            producer_epoch=0,
            base_sequence=offset // 2 // producers,
            transactional=True,
            leader_epoch=0,
        )
        is_last = len(content) + 200 > 1 << 20
        end = marker(producer, committed=not is_last)
        end[:8] = (offset + 1).to_bytes(8, "big")
        end[LEADER_EPOCH_POSITION : LEADER_EPOCH_POSITION + 4] = bytes(4)
        content += end
        offset += 2
    return bytes(content), offset


@pytest.mark.parametrize("producers", [1, 2])
async def test_transactions_of_all_partitions(meter: TurnMeter, producers: int) -> None:
    content, end = transactions(producers)
    pair = Pair()
    try:
        for index in range(PARTITIONS):
            pair.begin(index=index)
        await pair.next_fetch()
        rows = [PartitionData(each, records=memoryview(content)) for each in range(PARTITIONS)]
        topic = FetchableTopicResponse(topic_id=TOPIC_ID, partitions=rows)
        await begin(meter)
        pair.leader.waiting.pop(0)[2].set_result(FetchResponse(session_id=1, responses=[topic]))
        for _ in range(100 * PARTITIONS):
            await asyncio.sleep(0)
        assert {pair.following.log(index).log_end_offset for index in range(PARTITIONS)} == {end}
    finally:
        pair.fetcher.stop()


async def test_a_thousand_segments_are_truncated(meter: TurnMeter) -> None:
    replicas = Replicas(broker_id=2)
    replicas.lead(epoch=1, replicas=[1, 2], isr=[1, 2])
    log = replicas.log()
    for _ in range(SEGMENTS):
        replicas.append(1)
        log.roll(NOW_MS)
    partition = replicas.follow(1, epoch=2, replicas=[1, 2], isr=[1])

    async def run(work: Callable[[], None]) -> None:
        work()

    await begin(meter)
    assert await in_turns(FollowerTruncation(lambda _: None, run).truncate_to(partition, log, 1))
    assert log.log_end_offset == 1
    assert meter.most_calls < meter.all_calls // 5  # of 100 segments
