"""How much an idle fetch round does, in calls of functions: it follows what changed.

A round is a request of a follower, the wait and the empty response, on both sides.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Awaitable, Callable, Iterator
from typing import Any, cast

import pytest

from ottla.broker.requests.request_context import DEFERRED, RequestContext
from ottla.protocol.messages.fetch import FetchPartition, FetchRequest, FetchTopic, ReplicaState
from ottla.protocol.messages.update_metadata import (
    UpdateMetadataPartitionState,
    UpdateMetadataRequest,
    UpdateMetadataTopicState,
)
from tests.doubles.pace import endless_turns
from tests.doubles.published_metadata import publish
from tests.doubles.replicas import TOPIC, TOPIC_ID
from tests.doubles.request_context import FakeContext, finished
from tests.unit.broker.handlers.scene import DataPath
from tests.unit.broker.replication.test_fetcher import BOTH, LEADER, Pair

ROUNDS = 7
WAIT_MS = 500
LAG_TIME_MAX_MS = 30_000  # Kafka's default
#: Of what does not grow, such as the head of a request.
TOLERANCE = 0.15


def least(counts: list[int]) -> int:
    """The count of a round that reads no partition: of silent ones every second reads all."""
    assert len(counts) == ROUNDS
    ordered = sorted(counts)
    assert ordered[ROUNDS // 2 - 1] < 1.2 * ordered[0], counts
    return ordered[0]


class Calls:
    """Counts the calls of functions while it works."""

    def __init__(self) -> None:
        self.count = 0

    def _add(self, frame: object, event: str, argument: object) -> None:
        if event in ("call", "c_call"):
            self.count += 1

    async def of(self, work: Callable[[], Awaitable[object]]) -> int:
        self.count = 0
        sys.setprofile(self._add)
        try:
            await work()
        finally:
            sys.setprofile(None)
        return self.count


@pytest.fixture(autouse=True)
def whole_turns() -> Iterator[None]:
    """Nothing pauses: the counts do not depend on the speed of the machine."""
    with endless_turns():
        yield


async def calls_of_a_pair(partitions: int) -> tuple[int, int]:
    """Of a follower and its leader: an idle round, and one with a record of one partition."""
    pair = Pair()
    pair.leading.manager.context.lag_time_max_ms = LAG_TIME_MAX_MS
    publish(pair.leading.metadata, update_of(partitions))
    for replicas in (pair.leading, pair.following):
        replicas.publish = lambda *_: None  # type: ignore[method-assign]  # once is enough
    try:
        for index in range(partitions):
            pair.leading.lead(index, replicas=BOTH, isr=BOTH)
            pair.fetcher.add(pair.following.follow(LEADER, index, isr=BOTH))
            pair.leading.append(1, index=index)
        for _ in range(6):
            await pair.leader.response()
        idle = [await Calls().of(pair.leader.response) for _ in range(ROUNDS)]

        async def append() -> None:
            pair.leading.append(1, index=3)
            await pair.leader.response()

        busy = await Calls().of(append)
        pair.assert_equal(3)
    finally:
        pair.fetcher.stop()
    return least(idle), busy


def update_of(partitions: int) -> UpdateMetadataRequest:
    states = [
        UpdateMetadataPartitionState(partition_index=index, leader=1, isr=[1], replicas=[1])
        for index in range(partitions)
    ]
    topic = UpdateMetadataTopicState(TOPIC, TOPIC_ID, states)
    return UpdateMetadataRequest(controller_id=1, controller_epoch=1, topic_states=[topic])


async def test_growth_with_the_partitions() -> None:
    small, busy_small = await calls_of_a_pair(10)
    large, busy_large = await calls_of_a_pair(1000)
    assert math.log(large / small, 100) <= TOLERANCE, (small, large)
    # The follower compares its own partitions once after each response with records.
    assert busy_large - busy_small < 10 * 1000, (busy_small, busy_large)


class Peers:
    """A leader of ten partitions and the sessions of so many brokers that follow them."""

    PARTITIONS = 10

    def __init__(self, peers: int) -> None:
        self.path = DataPath()
        self.path.manager.context.lag_time_max_ms = LAG_TIME_MAX_MS
        self.path.sessions.cache._slots = peers
        brokers = range(2, peers + 2)
        self.path.live.update(brokers)
        self.followers = [(broker, 0) for broker in brokers]
        for index in range(self.PARTITIONS):
            self.path.lead(index, replicas=[1, *brokers])
            self.path.append(1, index=index)
        self.epoch = 0

    def round(self) -> None:
        """Each broker fetches, waits and gets its response."""
        contexts: list[tuple[int, FakeContext, Any]] = []
        for number, (broker, session) in enumerate(self.followers):
            context = FakeContext(FetchRequest.API_KEY, 17)
            request = self._request(broker, session)
            handled = self.path.fetch.handle(cast("RequestContext", context), request)
            contexts.append((number, context, finished(handled)))
        self.path.timer.advance(8 * WAIT_MS)  # where nothing happens the wait is longer
        for number, context, result in contexts:
            response: Any = context.responses[0] if result is DEFERRED else result
            assert response.error_code == 0
            self.followers[number] = (self.followers[number][0], response.session_id)
        self.epoch += 1

    def _request(self, broker: int, session: int) -> FetchRequest:
        rows = [
            FetchPartition(
                partition=index,
                fetch_offset=1,
                current_leader_epoch=0,
                last_fetched_epoch=0,
                partition_max_bytes=1 << 20,
            )
            for index in range(self.PARTITIONS)
        ]
        return FetchRequest(
            replica_state=ReplicaState(broker, 1),
            max_wait_ms=WAIT_MS,
            min_bytes=1,
            max_bytes=1 << 20,
            session_id=session,
            session_epoch=self.epoch,
            topics=[] if session else [FetchTopic(topic_id=TOPIC_ID, partitions=rows)],
        )


async def calls_of_peers(peers: int) -> int:
    scene = Peers(peers)
    for _ in range(6):
        scene.round()

    async def work() -> None:
        scene.round()

    counts = [await Calls().of(work) for _ in range(ROUNDS)]
    return least(counts)


async def test_growth_with_the_peers() -> None:
    small, large = await calls_of_peers(10), await calls_of_peers(100)
    assert math.log(large / small, 10) <= 1 + TOLERANCE, (small, large)
    assert large / 100 < 400, "calls of one round of one peer, at the leader"
