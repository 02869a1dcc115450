"""What a follower does with a response in several turns of the loop, and what it does not fetch."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest

from ottla.broker.quotas.replication_quotas import ReplicationQuota
from ottla.broker.replication.fetcher import Fetcher
from ottla.protocol.messages.fetch import FetchableTopicResponse, FetchResponse, PartitionData
from tests.doubles.pace import steps_per_turn
from tests.doubles.replicas import TOPIC, TOPIC_ID
from tests.doubles.storage_logs import batch_of
from tests.unit.broker.replication.test_fetcher import FOLLOWER, LEADER, Pair, run

PARTITIONS = 4


def response() -> FetchResponse:
    """A batch for each partition."""
    rows = [
        PartitionData(index, high_watermark=1, records=memoryview(batch_of()))
        for index in range(PARTITIONS)
    ]
    topic = FetchableTopicResponse(topic_id=TOPIC_ID, partitions=rows)
    return FetchResponse(session_id=1, responses=[topic])


@pytest.fixture
def _short_turns() -> Iterator[None]:
    with steps_per_turn(1):
        yield


@pytest.mark.usefixtures("_short_turns")
def test_a_response_is_processed_in_several_turns() -> None:
    async def body(pair: Pair) -> None:
        for index in range(PARTITIONS):
            pair.begin(index=index)
        await pair.next_fetch()
        pair.leader.waiting.pop(0)[2].set_result(response())
        ends = []
        while not ends or ends[-1] < PARTITIONS - 1:
            await asyncio.sleep(0)
            logs = [pair.following.log(index) for index in range(PARTITIONS)]
            ends.append(sum(log.log_end_offset for log in logs))
            if ends[-1] == 2:
                # Not in the middle of a turn: the state of then counts.
                pair.fetcher.remove(pair.following.partition(3).key)
                pair.following.order(FOLLOWER, index=3, epoch=1, replicas=[LEADER, FOLLOWER])
        assert [each for each in ends if each] == [1, 2, 3]
        await asyncio.sleep(0)
        assert pair.following.log(3).log_end_offset == 0

    run(body)


def test_the_first_records_of_a_partition_wait_for_the_quota() -> None:
    async def body(pair: Pair) -> None:
        quota = ReplicationQuota()
        quota.throttle(TOPIC, None)
        quota.limit = 1
        pair.settings.throttle = quota
        pair.fetcher.stop()
        pair.fetcher = Fetcher(
            ("host", 9091),
            pair.settings,
            pair.following.manager,
            pair.following.group_commit,
            pair.following.clock.now_ms,
        )
        quota.record(1_000, int(asyncio.get_running_loop().time() * 1_000))
        pair.begin()
        await asyncio.sleep(0.03)
        assert not pair.leader.waiting
        quota.limit = 1 << 30
        await asyncio.sleep(0.03)
        await pair.leader.response()
        # Caught up: the quota does not take it out of the ISR.
        quota.limit = 1
        await pair.leader.response()

    run(body)


@pytest.mark.usefixtures("_short_turns")
def test_offsets_of_many_partitions_are_collected_in_several_turns() -> None:
    """A partition that comes or goes meanwhile is in the next request, or ignored."""

    async def body(pair: Pair) -> None:
        for index in range(PARTITIONS):
            pair.begin(index=index)
        await asyncio.sleep(0)  # the fetcher begins
        await asyncio.sleep(0)
        pair.begin(index=PARTITIONS)
        pair.fetcher.remove(pair.following.partition(PARTITIONS - 1).key)
        request, _ = await pair.next_fetch()
        assert {row.partition for row in request.topics[0].partitions} == set(range(PARTITIONS))
        pair.leader.waiting.pop(0)[2].set_result(response())
        request, _ = await pair.next_fetch()
        assert {row.partition for row in request.topics[0].partitions} == {0, 1, 2, PARTITIONS}
        assert pair.following.log(PARTITIONS - 1).log_end_offset == 0

    run(body)


@pytest.mark.parametrize("steps", range(24))
@pytest.mark.usefixtures("_short_turns")
def test_a_partition_that_goes_at_any_time_is_not_fetched_any_more(steps: int) -> None:
    """Also while the offsets of a request are collected whose response is empty."""

    async def body(pair: Pair) -> None:
        for index in range(PARTITIONS):
            pair.begin(index=index)
        await pair.next_fetch()
        pair.leader.waiting.pop(0)[2].set_result(response())
        for _ in range(steps):
            await asyncio.sleep(0)
        pair.fetcher.remove(pair.following.partition(0).key)
        forgotten: list[int] = []
        for _ in range(2):
            request, _ = await pair.next_fetch()
            forgotten += [each for row in request.forgotten_topics_data for each in row.partitions]
            pair.leader.waiting.pop(0)[2].set_result(FetchResponse(session_id=1))
        assert forgotten == [0]

    run(body)


@pytest.mark.usefixtures("_short_turns")
def test_a_partition_that_is_added_while_none_is_found_is_fetched_at_once() -> None:
    async def body(pair: Pair) -> None:
        pair.begin().offline = True
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        pair.begin(index=1)
        request, _ = await pair.next_fetch()
        assert [row.partition for row in request.topics[0].partitions] == [1]

    run(body)
