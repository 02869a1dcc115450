"""How the work of the controller grows with the cluster, in requests, bytes and calls of functions.

Counts depend on the work alone, not on the machine. The same operations are done in clusters of
growing size; each count may grow no faster than its stated exponent of the growth.
"""

from __future__ import annotations

import asyncio
import asyncio.events
import math
import threading
from collections.abc import Callable, Coroutine, Sequence
from itertools import islice, pairwise
from typing import Any, NamedTuple

import pytest

from ottla.broker.runtime.tasks import spawn
from ottla.controller.admin.topic_admin import NewTopic
from ottla.controller.lifecycle import ISR_METADATA_DELAY_MS
from ottla.controller.model import BrokerInfo, LeaderAndIsr, ReplicaAssignment, TopicState
from ottla.controller.registration import create_persistent_paths
from ottla.controller.requests.broker_channels import Callback, Encoded
from ottla.controller.tree import znodes
from ottla.controller.tree.store import CreateOp, Op
from ottla.protocol.codec import encode_with_version
from ottla.protocol.message import Message
from ottla.protocol.messages.alter_partition import (
    AlterPartitionRequest,
    AlterPartitionRequestPartitionData,
    AlterPartitionRequestTopicData,
    BrokerState,
)
from ottla.protocol.messages.leader_and_isr import LeaderAndIsrRequest, LeaderAndIsrResponse
from ottla.protocol.messages.stop_replica import (
    StopReplicaPartitionError,
    StopReplicaRequest,
    StopReplicaResponse,
)
from ottla.protocol.messages.update_metadata import UpdateMetadataResponse
from ottla.protocol.topics import TopicPartition
from tests.doubles.controller_cluster import Cluster, settle
from tests.hostile.turns import TurnMeter

PARTITIONS_OF_TOPIC = 20
REPLICAS = 3


class Counts(NamedTuple):
    requests: int
    bytes: int
    calls: int


class Exponents(NamedTuple):
    """The most by which each count grows with the size of the cluster."""

    requests: float
    bytes: float
    calls: float


class Channels:
    """Encodes and counts requests; each broker responds in the next turn of the loop."""

    def __init__(self) -> None:
        self.open: dict[int, BrokerInfo] = {}
        self.requests = 0
        self.bytes = 0

    def add_broker(self, broker: BrokerInfo) -> None:
        self.open[broker.broker_id] = broker

    update_broker = add_broker

    def remove_broker(self, broker_id: int) -> None:
        self.open.pop(broker_id, None)

    def send(
        self,
        broker_id: int,
        request: Message,
        version: int,
        callback: Callback,
        encoded: Encoded | None = None,
    ) -> None:
        self.requests += 1
        if encoded is not None:
            spawn(self._send_encoded(encoded, version, callback), name="send")
            return
        self.bytes += len(encode_with_version(request, version))
        response: Message = UpdateMetadataResponse()
        if isinstance(request, LeaderAndIsrRequest):
            response = LeaderAndIsrResponse()
        elif isinstance(request, StopReplicaRequest):
            response = StopReplicaResponse(
                partition_errors=[
                    StopReplicaPartitionError(topic.topic_name, state.partition_index, 0)
                    for topic in request.topic_states
                    for state in topic.partition_states
                ]
            )
        asyncio.get_running_loop().call_soon(callback, response)

    async def _send_encoded(self, encoded: Encoded, version: int, callback: Callback) -> None:
        """As to a broker in another process: what several brokers get is encoded once."""
        message = await encoded()
        self.bytes += len(encode_with_version(message, version))
        callback(UpdateMetadataResponse())


def replicas_of(number: int, brokers: int) -> tuple[int, ...]:
    return tuple((number + each) % brokers + 1 for each in range(REPLICAS))


class Scene:
    """A controller with so many brokers and partitions, which are spread over the brokers."""

    def __init__(self, brokers: int, partitions: int) -> None:
        self.brokers, self.partitions = brokers, partitions
        self.cluster = Cluster(tuple(range(1, brokers + 1)))
        self.channels = Channels()
        # The double's brokers apply each request, which is not what is counted.
        self.cluster.controller._lifecycle.channels = self.channels
        self.cluster.controller._lifecycle.batch.channels = self.channels
        self.cluster.controller._lifecycle.broker_changes.channels = self.channels

    async def start(self) -> None:
        cluster = self.cluster
        await cluster.store.connect()
        await create_persistent_paths(cluster.store)
        for first in range(0, self.partitions, PARTITIONS_OF_TOPIC):
            topic = f"topic-{first:06}"
            assignments: dict[int, ReplicaAssignment] = {}
            ops: list[Op] = []
            for index in range(PARTITIONS_OF_TOPIC):
                replicas = replicas_of(first + index, self.brokers)
                assignments[index] = ReplicaAssignment(replicas)
                partition = TopicPartition(topic, index)
                state = znodes.encode_state(LeaderAndIsr(replicas[0], 0, replicas))
                ops.append(CreateOp(znodes.partition_path(partition)))
                ops.append(CreateOp(znodes.state_path(partition), state))
            topic_state = TopicState((first + 1).to_bytes(16, "big"), assignments)
            cluster.write(
                CreateOp(znodes.topic_path(topic), znodes.encode_topic(topic_state)),
                CreateOp(znodes.partitions_path(topic)),
                *ops,
            )
        await cluster.start()

    async def counted(
        self, meter: TurnMeter, work: Callable[[Scene], Coroutine[Any, Any, None]]
    ) -> Counts:
        await settle()
        self.channels.requests = self.channels.bytes = 0
        # Only now: counting makes the set-up of a large scene several times as long.
        meter.watch(threading.current_thread())
        await asyncio.sleep(0)
        meter.reset()
        await work(self)
        await settle()
        self.cluster.runtime.advance(ISR_METADATA_DELAY_MS)
        await settle()
        meter.stop()
        return Counts(self.channels.requests, self.channels.bytes, meter.all_calls)

    async def report_isrs(self, isrs: dict[TopicPartition, tuple[int, ...]]) -> None:
        """Each leader proposes the ISRs of its partitions."""
        context = self.cluster.controller.context
        by_leader: dict[int, dict[str, list[AlterPartitionRequestPartitionData]]] = {}
        for partition, isr in isrs.items():
            state = context.leadership[partition]
            topics = by_leader.setdefault(state.leader, {})
            topics.setdefault(partition.topic, []).append(
                AlterPartitionRequestPartitionData(
                    partition_index=partition.partition,
                    leader_epoch=state.leader_epoch,
                    new_isr_with_epochs=[BrokerState(broker_id=each) for each in isr],
                    partition_epoch=state.partition_epoch,
                )
            )
        for leader, topics in by_leader.items():
            request = AlterPartitionRequest(
                broker_id=leader,
                broker_epoch=context.brokers[leader].epoch,
                topics=[
                    AlterPartitionRequestTopicData(
                        topic_id=context.topic_ids[topic], partitions=rows
                    )
                    for topic, rows in topics.items()
                ],
            )
            response = await self.cluster.controller.alter_partition(request, 3)
            rows_ = [row for topic in response.topics for row in topic.partitions]
            assert not any(row.error_code for row in rows_)
            await settle()


async def create_topic(scene: Scene) -> None:
    topic = NewTopic("new", assignments={0: replicas_of(0, scene.brokers)})
    (row,) = await scene.cluster.controller.create_topics([topic], timeout_ms=1)
    assert not row.error.code


async def delete_topics(scene: Scene, count: int) -> None:
    topics = list(islice(scene.cluster.controller.context.assignments, count))
    await scene.cluster.controller.delete_topics(topics, timeout_ms=1)
    await settle()
    assert not scene.cluster.controller.context.topics_to_delete


async def delete_topic(scene: Scene) -> None:
    await delete_topics(scene, 1)


async def lose_broker(scene: Scene) -> None:
    await scene.cluster.remove_broker(2)
    context = scene.cluster.controller.context
    assert not any(context.has_offline_leader(each) for each in context.leadership)


async def lose_and_return(scene: Scene) -> None:
    """A broker returns, and all its leaders take it back into the ISRs."""
    await lose_broker(scene)
    await scene.cluster.add_broker(2)
    context = scene.cluster.controller.context
    await scene.report_isrs(
        {each: context.assignment(each).replicas for each in context.partitions_on(2)}
    )


async def reassign(scene: Scene, count: int) -> None:
    context = scene.cluster.controller.context
    targets = {}
    for partition in tuple(islice(context.partitions(), count)):
        replicas = context.assignment(partition).replicas
        other = next(each for each in range(1, scene.brokers + 1) if each not in replicas)
        targets[partition] = (*replicas[:2], other)
    rows = await scene.cluster.controller.alter_partition_reassignments(dict(targets))
    assert not any(row.code for row in rows.values())
    await settle()
    await scene.report_isrs(
        {
            each: tuple(dict.fromkeys((*context.leadership[each].isr, *target)))
            for each, target in targets.items()
        }
    )
    await settle()
    assert not context.partitions_being_reassigned


async def reassign_one(scene: Scene) -> None:
    await reassign(scene, 1)


async def reassign_all_of_a_topic(scene: Scene) -> None:
    await reassign(scene, PARTITIONS_OF_TOPIC)


@pytest.fixture
def meter(monkeypatch: pytest.MonkeyPatch) -> TurnMeter:
    meter = TurnMeter()
    original = asyncio.events.Handle._run
    monkeypatch.setattr(asyncio.events.Handle, "_run", lambda handle: meter.run(handle, original))
    return meter


Work = Callable[[Scene], Coroutine[Any, Any, None]]
#: With the partitions of each broker the same.
BROKERS, PARTITIONS_OF_BROKER = (10, 40, 160), 20
#: With the brokers the same; `large_counts` has 100,000.
PARTITIONS, BROKERS_OF_PARTITIONS = (1_000, 10_000), 10
#: Exponents of requests, bytes and calls, of the brokers and of the partitions. Bytes: each
#: UpdateMetadata has all live brokers.
GROWTH: list[tuple[Work, Exponents, Exponents]] = [
    (create_topic, Exponents(1, 2, 1), Exponents(0, 0, 0)),
    (delete_topic, Exponents(1, 2, 1), Exponents(0, 0, 0)),
    (reassign_one, Exponents(1, 2, 1), Exponents(0, 0, 0)),
    (lose_and_return, Exponents(1, 1.5, 1), Exponents(0, 1, 1)),
    (lose_broker, Exponents(1, 1.5, 1), Exponents(0, 1, 1)),
]


def name_of(each: object) -> str:
    return getattr(each, "__name__", "")


#: What does not grow, such as the head of a request, or grows in steps.
TOLERANCE = 0.15
#: Where most grows, a term that grows with the square shows in the second digit.
BATCH_TOLERANCE = 0.03


async def measured(meter: TurnMeter, work: Work, brokers: int, partitions: int) -> Counts:
    scene = Scene(brokers, partitions)
    await scene.start()
    found = await scene.counted(meter, work)
    await scene.cluster.stop()
    return found


def check(
    small: Counts,
    large: Counts,
    growth: float,
    allowed: Exponents,
    tolerance: float = TOLERANCE,
    name: str = "",
) -> None:
    for field, before, after, most in zip(Counts._fields, small, large, allowed, strict=True):
        exponent = math.log(after / before, growth)
        text = f"{name} {field}: {before} -> {after}, exponent {exponent:.2f}"
        assert exponent <= most + tolerance, text


def ratios(sizes: Sequence[int]) -> list[float]:
    return [large / small for small, large in pairwise(sizes)]


async def measured_in_turn(meter: TurnMeter, brokers: int, partitions: int) -> dict[Work, Counts]:
    """All operations in one scene, which takes longer to set up than they take."""
    scene = Scene(brokers, partitions)
    await scene.start()
    found = {work: await scene.counted(meter, work) for work, _, _ in GROWTH}
    await scene.cluster.stop()
    return found


async def test_growth_with_the_brokers(meter: TurnMeter) -> None:
    found = [await measured_in_turn(meter, each, PARTITIONS_OF_BROKER * each) for each in BROKERS]
    for (small, large), growth in zip(pairwise(found), ratios(BROKERS), strict=True):
        for work, allowed, _ in GROWTH:
            check(small[work], large[work], growth, allowed, name=name_of(work))


async def check_partitions(meter: TurnMeter, sizes: Sequence[int]) -> None:
    found = [await measured_in_turn(meter, BROKERS_OF_PARTITIONS, each) for each in sizes]
    for (small, large), growth in zip(pairwise(found), ratios(sizes), strict=True):
        for work, _, allowed in GROWTH:
            check(small[work], large[work], growth, allowed, name=name_of(work))


async def test_growth_with_the_partitions(meter: TurnMeter) -> None:
    await check_partitions(meter, PARTITIONS)


#: Of what one request changes, in a cluster of the same size.
OF_BATCH: list[tuple[Callable[[Scene, int], Coroutine[Any, Any, None]], int, int, Exponents]] = [
    (reassign, 60, 960, Exponents(0.6, 1, 0.95)),
    (delete_topics, 3, 48, Exponents(0, 1, 1)),
]


@pytest.mark.parametrize(("work", "few", "many", "allowed"), OF_BATCH, ids=name_of)
async def test_growth_with_what_is_changed_at_once(
    meter: TurnMeter,
    work: Callable[[Scene, int], Coroutine[Any, Any, None]],
    few: int,
    many: int,
    allowed: Exponents,
) -> None:
    small = await measured(meter, lambda scene: work(scene, few), 6, 1000)
    large = await measured(meter, lambda scene: work(scene, many), 6, 1000)
    check(small, large, many / few, allowed, BATCH_TOLERANCE)


async def test_partitions_of_a_request_share_requests(meter: TurnMeter) -> None:
    """A batch sends hardly more requests than a single partition."""
    one = await measured(meter, reassign_one, 6, 120)
    many = await measured(meter, reassign_all_of_a_topic, 6, 120)
    assert many.requests < 5 * one.requests
    assert many.calls < PARTITIONS_OF_TOPIC / 2 * one.calls
