from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from ottla.broker.handlers.share.share_state import ShareStateHandlers
from ottla.broker.requests.request_channel import RequestContext
from ottla.broker.share.coordinator.routed_persister import RETRY_SECONDS, RoutedPersister
from ottla.broker.share.coordinator.share_coordinator import ShareCoordinator
from ottla.broker.share.persister import PersistedState, SharePartitionKey, StateSummary
from ottla.protocol.client.errors import BrokerConnectionError
from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.protocol.message import Message
from ottla.protocol.topics import SHARE_STATE_TOPIC
from tests.doubles.coordinator_log import MemoryLog
from tests.doubles.eventually import eventually_async
from tests.doubles.request_context import FakeContext
from tests.unit.broker.share.coordinator.test_share_coordinator import ACCEPTED, coordinator, update

KEY = SharePartitionKey("group", bytes(16), 2)
HERE, THERE = 1, 2


class Cluster:
    """Two brokers; `leader` has all partitions of the topic. `failures` come first."""

    def __init__(self, leader: int = THERE) -> None:
        self.log = MemoryLog()
        self.leader = leader
        self.has_topic = True
        self.topic_code = 0
        self.created: list[str] = []
        self.sent: list[int] = []
        self.pauses: list[float] = []
        self.failures: list[Exception] = []
        self.coordinators = {
            each: coordinator(self.log, elected=each == leader) for each in (HERE, THERE)
        }
        self.persister = RoutedPersister(
            HERE,
            self.coordinators[HERE],
            cast(Any, self),
            self.send,
            self.ensure,
            lambda: sum(self.pauses),
            self.pause,
        )

    @property
    def snapshot(self) -> Any:
        found = SimpleNamespace(leader=self.leader) if self.has_topic else None
        return SimpleNamespace(
            brokers={HERE: None, THERE: None}, partition=lambda topic, index: found
        )

    async def ensure(self, name: str) -> int:
        self.created.append(name)
        self.has_topic = not self.topic_code
        return self.topic_code

    async def pause(self, seconds: float) -> None:
        self.pauses.append(seconds)

    async def send(self, broker_id: int, request: Message) -> Message:
        self.sent.append(broker_id)
        if self.failures:
            raise self.failures.pop(0)
        handlers = ShareStateHandlers(self.coordinators[broker_id])
        handle = {
            "InitializeShareGroupStateRequest": handlers.initialize,
            "ReadShareGroupStateRequest": handlers.read,
            "WriteShareGroupStateRequest": handlers.write,
            "DeleteShareGroupStateRequest": handlers.delete,
            "ReadShareGroupStateSummaryRequest": handlers.summary,
        }[type(request).__name__]
        context = FakeContext(84, 0)
        handle(cast(RequestContext, context), cast(Any, request))
        await eventually_async(lambda: bool(context.responses))
        return context.responses[0]


def elect(made: ShareCoordinator) -> None:
    for index in range(4):
        made.partitions.elect(index, 2)


@pytest.mark.parametrize("leader", [HERE, THERE])
async def test_the_state_is_that_of_the_coordinator(leader: int) -> None:
    cluster = Cluster(leader)
    cluster.has_topic = False
    persister = cluster.persister
    await persister.initialize(KEY, 0, -1)
    assert cluster.created == [SHARE_STATE_TOPIC]
    assert await persister.read(KEY, 1) == PersistedState(0, -1, ())
    await persister.write(KEY, update())
    assert await persister.read(KEY, 1) == PersistedState(0, 0, (ACCEPTED,))
    assert await persister.summary(KEY, 1) == StateSummary(0, 1, 0, 5)
    await persister.delete(KEY)
    assert (await persister.summary(KEY, 1)).start_offset == -1
    assert set(cluster.sent) == ({THERE} if leader == THERE else set())


async def test_errors_of_the_coordinator() -> None:
    cluster = Cluster()
    await cluster.persister.initialize(KEY, 3, 0)
    with pytest.raises(KafkaError) as refused:
        await cluster.persister.write(KEY, update(2))
    assert refused.value.code == ErrorCode.FENCED_STATE_EPOCH
    assert cluster.pauses == []


async def test_a_coordinator_that_moves_and_loses_a_response() -> None:
    cluster = Cluster()
    await cluster.persister.initialize(KEY, 0, 0)
    cluster.failures = [BrokerConnectionError("reset"), TimeoutError()]
    await cluster.persister.write(KEY, update())
    assert len(cluster.pauses) == 2
    # The broker that led the partition is not the coordinator any more; metadata comes late.
    for index in range(4):
        cluster.coordinators[THERE].partitions.resign(index, 2)

    async def pause(seconds: float) -> None:
        cluster.pauses.append(seconds)
        cluster.leader = HERE
        elect(cluster.coordinators[HERE])

    cluster.persister._pause = pause
    assert await cluster.persister.read(KEY, 1) == PersistedState(0, 0, (ACCEPTED,))
    assert len(cluster.pauses) == 3


async def test_retries_have_an_end() -> None:
    cluster = Cluster(leader=-1)
    with pytest.raises(KafkaError) as refused:
        await cluster.persister.read(KEY, 1)
    assert refused.value.code == ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert sum(cluster.pauses) <= RETRY_SECONDS
    cluster = Cluster()
    cluster.failures = [TimeoutError()] * 100
    with pytest.raises(KafkaError) as refused:
        await cluster.persister.read(KEY, 1)
    assert refused.value.code == ErrorCode.REQUEST_TIMED_OUT
    assert len(cluster.failures) > 80


async def test_partitions_of_the_topic_without_a_leader_do_not_stop_the_others() -> None:
    """The creation of the topic waits until all its partitions have leaders."""
    cluster = Cluster()
    cluster.topic_code = ErrorCode.COORDINATOR_NOT_AVAILABLE
    await cluster.persister.initialize(KEY, 0, -1)
    assert (await cluster.persister.read(KEY, 1)).start_offset == -1
    assert cluster.created == []


async def test_a_topic_that_cannot_be_created() -> None:
    cluster = Cluster()
    cluster.has_topic = False
    cluster.topic_code = ErrorCode.INVALID_REPLICATION_FACTOR
    with pytest.raises(KafkaError, match=SHARE_STATE_TOPIC):
        await cluster.persister.initialize(KEY, 0, -1)


async def test_nothing_has_a_state_before_the_topic_exists() -> None:
    """The first request of a cluster can set the start offset of a group."""
    cluster = Cluster()
    cluster.has_topic = False
    assert await cluster.persister.summary(KEY, -1) == StateSummary(0, 0, -1, -1)
    assert cluster.pauses == []
