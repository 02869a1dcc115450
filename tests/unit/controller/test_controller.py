"""The controller as a broker sees it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from ottla.broker.runtime.tasks import spawn
from ottla.controller.admin.topic_admin import NewPartitions, NewTopic
from ottla.controller.controller import Controller
from ottla.controller.events.events import ControllerState
from ottla.controller.registration import BrokerRegistration
from ottla.controller.requests.broker_channels import QueuedBrokerChannels
from ottla.controller.settings import ControllerSettings
from ottla.controller.tree import znodes
from ottla.controller.tree.embedded_store import EmbeddedStore
from ottla.controller.tree.embedded_tree import EmbeddedTree
from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.protocol.messages.alter_partition import AlterPartitionRequest
from ottla.protocol.topics import TopicPartition
from tests.doubles.controller_brokers import SimulatedBroker
from tests.doubles.controller_cluster import Cluster, broker_info, settle
from tests.doubles.controller_runtime import ManualRuntime
from tests.doubles.pace import steps_per_turn

T0 = TopicPartition("t", 0)


async def test_one_broker_from_start_to_stop() -> None:
    """As the head of controller.py shows it."""
    runtime = ManualRuntime()
    store = EmbeddedStore()
    await store.connect()
    broker = SimulatedBroker(1)
    registration = BrokerRegistration(store, broker_info(1), runtime.now_ms)
    broker.broker_epoch = await registration.register()
    channels = QueuedBrokerChannels(1, broker, runtime)
    measured: list[ControllerState] = []
    notified: list[int] = []
    controller = Controller(
        1,
        store,
        registration,
        channels,
        ControllerSettings(),
        runtime,
        on_controller_change=notified.append,
        on_event_processed=lambda state, _queued, _busy: measured.append(state),
    )
    assert (controller.is_active, controller.controller_id, controller.epoch) == (False, -1, 0)
    await controller.start()
    assert (controller.is_active, controller.controller_id, controller.epoch) == (True, 1, 1)
    assert notified == [1]
    rows = await controller.create_topics([NewTopic("t", 3, 1)], timeout_ms=1000)
    assert rows[0].error.code == 0
    assert sorted(broker.metadata) == [TopicPartition("t", index) for index in range(3)]
    assert all(hosted.leader == 1 for hosted in broker.hosted.values())
    assert controller.state is ControllerState.IDLE
    assert controller.queued_events <= 1
    await controller.stop()
    assert not controller.is_active
    assert await store.exists(znodes.CONTROLLER) is None
    assert notified == [1, -1]
    assert measured[0] is ControllerState.CONTROLLER_CHANGE
    assert measured[-1] is ControllerState.CONTROLLER_SHUTDOWN
    await store.close()
    await runtime.close()
    assert runtime.failures == []


CALLS: list[Callable[[Controller], Awaitable[object]]] = [
    lambda controller: controller.create_topics([NewTopic("t", 1, 1)]),
    lambda controller: controller.create_partitions([NewPartitions("t", 2)]),
    lambda controller: controller.delete_topics(["t"]),
    lambda controller: controller.elect_leaders(None, 0),
    lambda controller: controller.alter_partition_reassignments({T0: (1,)}),
    lambda controller: controller.list_partition_reassignments(),
    lambda controller: controller.controlled_shutdown(1, -1),
    lambda controller: controller.alter_partition(AlterPartitionRequest(), 3),
    lambda controller: controller.allocate_producer_ids(1, 1),
    lambda controller: controller.update_features([]),
]


@pytest.mark.parametrize("call", CALLS)
async def test_broker_that_is_not_the_controller_says_so(
    cluster: Cluster, call: Callable[[Controller], Awaitable[object]]
) -> None:
    cluster.controller._lifecycle._resign(2)
    with pytest.raises(KafkaError) as refused:
        await call(cluster.controller)
    assert refused.value.code == ErrorCode.NOT_CONTROLLER


async def test_second_broker_finds_the_controller(cluster: Cluster) -> None:
    store = EmbeddedStore(tree=cluster.tree)
    await store.connect()
    registration = BrokerRegistration(store, broker_info(9), cluster.runtime.now_ms)
    await registration.register()
    other = Controller(
        9,
        store,
        registration,
        QueuedBrokerChannels(9, None, cluster.runtime),
        ControllerSettings(),
        cluster.runtime,
    )
    cluster.brokers[9] = SimulatedBroker(9)
    await other.start()
    assert (other.is_active, other.controller_id) == (False, 1)
    await cluster.controller.stop(timeout_ms=0)
    await settle()
    assert (other.is_active, other.controller_id, other.epoch) == (True, 9, 2)
    assert cluster.controller.controller_id == -1


async def test_created_topics_are_known_everywhere_when_the_call_returns(
    cluster: Cluster,
) -> None:
    rows = await cluster.controller.create_topics([NewTopic("t", 1, 1)], timeout_ms=1000)
    assert rows[0].error.code == 0
    for broker in cluster.brokers.values():
        assert T0 in broker.metadata


LARGE: list[Callable[[Controller], Awaitable[object]]] = [
    lambda controller: controller.create_topics(
        [NewTopic(f"t{number}", 1, 1) for number in range(40)], validate_only=True
    ),
    lambda controller: controller.alter_partition_reassignments(
        {TopicPartition("t", number): (1, 9) for number in range(40)}
    ),
]


@pytest.mark.parametrize("call", LARGE)
async def test_other_tasks_run_while_large_requests_are_checked(
    cluster: Cluster, call: Callable[[Controller], Awaitable[object]]
) -> None:
    await cluster.controller.create_topics([NewTopic("t", 1, 1)])
    turns = 0

    async def other() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    task = spawn(other(), name="other")
    with steps_per_turn(1):
        await call(cluster.controller)
    task.cancel()
    assert turns >= 40


REFUSED: list[Callable[[Controller], Awaitable[object]]] = [
    lambda controller: controller.create_topics([NewTopic("t", 1, 1)]),
    lambda controller: controller.create_partitions([NewPartitions("t", 1)]),
    lambda controller: controller.delete_topics(["nothing"]),
    lambda controller: controller.elect_leaders([T0], 0),
]


@pytest.mark.parametrize("call", REFUSED)
async def test_call_that_changes_nothing_waits_for_no_broker(
    cluster: Cluster, call: Callable[[Controller], Awaitable[object]]
) -> None:
    cluster.channels.silent = {3}
    await cluster.controller.create_topics([NewTopic("t", 1, 1)], timeout_ms=0)
    returned: list[object] = []

    async def wait() -> None:
        returned.append(await call(cluster.controller))

    cluster.runtime.spawn(wait(), name="caller")
    await settle()
    assert len(returned) == 1


async def test_silent_broker_makes_the_caller_wait_no_longer_than_it_wants(
    cluster: Cluster,
) -> None:
    cluster.channels.silent = {3}
    codes: list[int] = []

    async def call() -> None:
        rows = await cluster.controller.create_topics(
            [NewTopic("t", 1, 1), NewTopic("bad", 0)], timeout_ms=1000
        )
        codes.extend(row.error.code for row in rows)

    cluster.runtime.spawn(call(), name="create")
    await settle()
    assert codes == []
    cluster.runtime.advance(1000)
    await settle()
    assert codes == [ErrorCode.REQUEST_TIMED_OUT, ErrorCode.INVALID_PARTITIONS]
    assert cluster.exists(znodes.state_path(T0))


async def test_caller_that_does_not_wait_gets_a_timeout(cluster: Cluster) -> None:
    rows = await cluster.controller.create_topics([NewTopic("t", 1, 1)], timeout_ms=0)
    assert rows[0].error.code == ErrorCode.REQUEST_TIMED_OUT
    grown = await cluster.controller.create_partitions([NewPartitions("t", 2)], timeout_ms=0)
    assert grown["t"].code == ErrorCode.REQUEST_TIMED_OUT
    await settle()
    assert cluster.leader("t", 1) > 0


async def test_partitions_without_a_live_replica_are_named(cluster: Cluster) -> None:
    rows = await cluster.controller.create_topics(
        [NewTopic("t", assignments={0: [1], 1: [9]})], timeout_ms=1000
    )
    assert rows[0].error.code == ErrorCode.REQUEST_TIMED_OUT
    assert "1 partitions have no live replica" in (rows[0].error.message or "")


async def test_unclean_election_switched_on_elects_at_once(cluster: Cluster) -> None:
    await cluster.create_topic("t", (2, 3))
    await cluster.change_isr("t", (2,))
    await cluster.remove_broker(2)
    assert cluster.leader("t") == -1
    controller = cluster.controller
    controller.update_settings(controller.settings._replace(unclean_leader_election_enable=True))
    await settle()
    assert cluster.leader("t") == 3


async def test_unclean_election_switched_on_for_one_topic(cluster: Cluster) -> None:
    for topic in ("t", "u"):
        await cluster.create_topic(topic, (2, 3))
        await cluster.change_isr(topic, (2,))
    await cluster.remove_broker(2)
    config = b'{"version":1,"config":{"unclean.leader.election.enable":"true"}}'
    cluster.set_node("/config/topics/t", config)
    cluster.controller.enable_topic_unclean_leader_election("t")
    await settle()
    assert cluster.leader("t") == 3
    assert cluster.leader("u") == -1


async def test_broker_that_has_just_registered_is_used(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its event waits in the queue behind the request."""
    await cluster.create_topic("t", (1,))
    monkeypatch.setattr(cluster.controller._lifecycle.watches, "put", lambda _event: None)
    await cluster.add_broker(4)
    assert 4 not in cluster.controller.context.brokers
    rows = await cluster.controller.create_topics([NewTopic("u", 1, 4)], timeout_ms=1000)
    assert rows[0].error.code == 0
    await cluster.add_broker(5)
    moved = await cluster.controller.alter_partition_reassignments({T0: (5,)})
    assert moved[T0].code == 0
    await cluster.add_broker(6)
    grown = await cluster.controller.create_partitions(
        [NewPartitions("u", 2, [[6, 1, 2, 3]])], timeout_ms=1000
    )
    assert grown["u"].code == 0


async def test_calls_are_worked_on_in_the_order_they_came(cluster: Cluster) -> None:
    ended: list[str] = []

    async def create(name: str) -> None:
        await cluster.controller.create_topics([NewTopic(name, 1, 1)], timeout_ms=1000)
        ended.append(name)

    for name in ("a", "b", "c"):
        cluster.runtime.spawn(create(name), name=name)
    await settle()
    assert ended == ["a", "b", "c"]


async def test_store_of_an_old_kafka_is_taken_as_it_is() -> None:
    """Topics without ids, states and brokers of old versions, unknown nodes beside them."""
    tree = EmbeddedTree(lambda: 1)
    cluster = Cluster((1, 2))
    cluster.tree = tree
    cluster.store.tree = tree
    for path, data in (
        ("/brokers", b""),
        ("/brokers/topics", b""),
        ("/brokers/topics/old", b'{"version":1,"partitions":{"0":[2,1]}}'),
        ("/brokers/topics/old/partitions", b""),
        ("/brokers/topics/old/partitions/0", b""),
        (
            "/brokers/topics/old/partitions/0/state",
            b'{"controller_epoch":3,"leader":2,"version":1,"leader_epoch":5,"isr":[2,1]}',
        ),
        ("/controller_epoch", b"3"),
        ("/zookeeper", b""),
        ("/something", b"else"),
    ):
        cluster.create_node(path, data)
    await cluster.start()
    assert cluster.controller.epoch == 4
    assert cluster.leader("old") == 2
    assert cluster.topic("old").topic_id is not None
    await cluster.stop()


async def test_kraft_controller_that_takes_over_is_reported_with_its_controller_epoch(
    cluster: Cluster,
) -> None:
    """Requests of the controllers before are stale by it."""
    taken = b'{"version":2,"brokerid":3000,"timestamp":"0","kraftControllerEpoch":5}'
    cluster.set_node(znodes.CONTROLLER_EPOCH, b"7")
    cluster.delete_node(znodes.CONTROLLER)
    cluster.create_node(znodes.CONTROLLER, taken)
    await settle()
    assert not cluster.controller.is_active
    ((problem, epoch),) = cluster.kraft
    assert (problem, epoch) == (cluster.controller.kraft_problem, 7)
    cluster.delete_node(znodes.CONTROLLER)  # the operator goes back
    await settle()
    assert cluster.controller.is_active
    assert (cluster.controller.kraft_problem, cluster.controller.epoch) == ("", 8)
