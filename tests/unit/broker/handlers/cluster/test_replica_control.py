"""Requests of the controller, from the decoded request to the applied state."""

from __future__ import annotations

import asyncio
import copy
from collections.abc import Coroutine, Iterable
from typing import Any, cast

import pytest

from ottla.broker.cluster.broker_epoch import BrokerEpoch
from ottla.broker.cluster.metadata_cache import LEADER_DURING_DELETE
from ottla.broker.handlers.cluster import replica_control
from ottla.broker.handlers.cluster.replica_control import ReplicaControl
from ottla.broker.replication.partition import Partition
from ottla.broker.runtime.tasks import spawn
from ottla.controller.tree.store import ConnectionLost
from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages.leader_and_isr import (
    LeaderAndIsrPartitionState,
    LeaderAndIsrRequest,
    LeaderAndIsrTopicState,
)
from ottla.protocol.messages.stop_replica import (
    StopReplicaPartitionState,
    StopReplicaRequest,
    StopReplicaTopicState,
)
from ottla.protocol.messages.update_metadata import (
    UpdateMetadataBroker,
    UpdateMetadataPartitionState,
    UpdateMetadataRequest,
    UpdateMetadataTopicState,
)
from ottla.protocol.topics import TopicPartition
from tests.doubles.controller_cluster import settle
from tests.doubles.pace import steps_per_turn
from tests.doubles.replicas import TOPIC, TOPIC_ID, Replicas, codes


class TopicConfigs:
    """Fails a given number of times; `meanwhile` is called by each read."""

    def __init__(self, failures: int = 0) -> None:
        self.failures = failures
        self.reads: list[set[str]] = []
        self.broker_epoch: BrokerEpoch | None = None

    async def load_topics(self, topics: Iterable[str]) -> None:
        self.reads.append(set(topics))
        if self.broker_epoch is not None:
            self.broker_epoch.value += 1
        if self.failures:
            self.failures -= 1
            raise ConnectionLost("", "ZooKeeper gave no response")


class Strays:
    """The check of the logs after a registration."""

    def __init__(self, configs: TopicConfigs) -> None:
        self.configs = configs
        self.checked = asyncio.Event()
        self.checked.set()
        self.waited: list[int] = []
        #: The settings that were read before logs of earlier topics were set aside.
        self.before: list[list[set[str]]] = []
        self.kept: set[TopicPartition] = set()
        self.failures = 0

    async def wait_for(self, broker_epoch: int) -> None:
        self.waited.append(broker_epoch)
        await self.checked.wait()

    async def make_way_for(self, request: LeaderAndIsrRequest) -> None:
        self.before.append(list(self.configs.reads))
        if self.failures:
            self.failures -= 1
            raise ConnectionLost("", "ZooKeeper gave no response")

    async def take_back(self, request: LeaderAndIsrRequest) -> None:
        """Nothing was set aside."""

    async def leaders_changed(self) -> None:
        """There is no tree."""

    async def not_being_deleted(self, request: StopReplicaRequest) -> set[TopicPartition]:
        return self.kept


class Scene:
    def __init__(self, failures: int = 0) -> None:
        self.replicas = Replicas()
        self.configs = TopicConfigs(failures)
        self.resigned: list[Partition] = []
        self.replicas.leader_and_isr.on_leadership = lambda leaders, followers: (
            self.resigned.extend(followers)
        )
        self.strays = Strays(self.configs)
        self.broker_epoch = BrokerEpoch(7)
        self.control = ReplicaControl(
            self.replicas.leader_and_isr,
            self.replicas.metadata,
            cast(Any, self.configs),
            self.broker_epoch,
            lambda deleted: None,
            cast(Any, self.strays),
            lambda topic, partition: self.replicas.logs.get(topic, partition) is not None,
        )

    def request(self) -> LeaderAndIsrRequest:
        state = LeaderAndIsrPartitionState(
            partition_index=0, controller_epoch=1, leader=1, isr=[1], replicas=[1]
        )
        topic = LeaderAndIsrTopicState(TOPIC, TOPIC_ID, [state])
        return LeaderAndIsrRequest(
            controller_id=1, controller_epoch=1, broker_epoch=7, topic_states=[topic]
        )


@pytest.fixture(autouse=True)
def no_backoff(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replica_control, "_READ_BACKOFF_SECONDS", 0)


async def test_topic_configurations_are_read_before_each_new_log() -> None:
    scene = Scene()
    for _ in range(2):
        await scene.control.leader_and_isr(scene.request(), 7)
    assert scene.configs.reads == [{TOPIC}, set()]
    key = TopicPartition(TOPIC, 0)
    scene.replicas.leader_and_isr.stop_stray(key)
    scene.replicas.logs.delete_async(*key)
    assert codes(await scene.control.leader_and_isr(scene.request(), 7)) == [0]
    assert scene.configs.reads[2:] == [{TOPIC}]


async def test_setting_aside_the_logs_of_earlier_topics_is_retried() -> None:
    """They would refuse the new topics, and no request about those may follow for a long time."""
    scene = Scene()
    scene.strays.failures = 3
    assert codes(await scene.control.leader_and_isr(scene.request(), 7)) == [0]
    assert scene.strays.before == [[]] * 4
    assert scene.configs.reads == [{TOPIC}]


async def test_the_read_of_topic_configurations_is_retried() -> None:
    scene = Scene(failures=3)
    response = await scene.control.leader_and_isr(scene.request(), 7)
    assert codes(response) == [0]
    assert scene.configs.reads == [{TOPIC}] * 4
    assert scene.replicas.partition().is_leader


async def test_a_read_that_keeps_failing_fails_the_request() -> None:
    scene = Scene(failures=1_000)
    with pytest.raises(ConnectionLost):
        await scene.control.leader_and_isr(scene.request(), 7)
    assert scene.replicas.manager.partitions == {}


async def test_a_request_of_an_earlier_registration_is_stale_also_after_the_read() -> None:
    scene = Scene()
    scene.configs.broker_epoch = scene.broker_epoch
    response = await scene.control.leader_and_isr(scene.request(), 7)
    assert response.error_code == ErrorCode.STALE_BROKER_EPOCH
    assert scene.replicas.manager.partitions == {}


async def test_leader_and_isr_waits_for_the_check_of_the_logs() -> None:
    """A log of a topic that was deleted while this broker was away refuses the new topic."""
    scene = Scene()
    scene.strays.checked.clear()
    applied = asyncio.gather(scene.control.leader_and_isr(scene.request(), 7))
    await settle()
    assert not applied.done()
    assert scene.strays.waited == [7]
    scene.strays.checked.set()
    (response,) = await applied
    assert codes(response) == [0]
    assert scene.strays.before == [[]], "settings go with the last replica of a topic"


async def test_a_broker_epoch_that_never_was_a_registration_does_not_wait_for_ever(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(replica_control, "_STRAY_CHECK_SECONDS", 0)
    scene = Scene()
    scene.strays.checked.clear()
    request = scene.request()
    request.broker_epoch = 2**63 - 1
    response = await scene.control.leader_and_isr(request, 7)
    assert codes(response) == [0]
    assert "without the check for stray logs" in caplog.text


def metadata(leader: int, leader_epoch: int, topic_id: bytes = TOPIC_ID) -> UpdateMetadataRequest:
    state = UpdateMetadataPartitionState(
        partition_index=0, leader=leader, leader_epoch=leader_epoch, isr=[leader], replicas=[leader]
    )
    return UpdateMetadataRequest(
        controller_id=1,
        controller_epoch=1,
        broker_epoch=7,
        topic_states=[UpdateMetadataTopicState(TOPIC, topic_id, [state])],
    )


@pytest.mark.parametrize(
    ("request_", "steps_down"),
    [
        (metadata(leader=2, leader_epoch=5), True),
        (metadata(leader=-1, leader_epoch=5), True),
        (metadata(leader=2, leader_epoch=0, topic_id=b"n" * 16), True),
        (metadata(leader=1, leader_epoch=5), False),  # its LeaderAndIsr is to come
        (metadata(leader=2, leader_epoch=4), False),  # this broker knows more
        (metadata(leader=-2, leader_epoch=-2), False),  # is being deleted: StopReplica is to come
    ],
)
def test_a_leader_that_was_replaced_steps_down(
    request_: UpdateMetadataRequest, steps_down: bool
) -> None:
    scene = Scene()
    led = scene.replicas.lead(replicas=[1, 2], isr=[1, 2], epoch=4)
    waiting = scene.replicas.append(1, acks=-1)
    scene.control.update_metadata(request_)
    assert led.is_leader is not steps_down
    assert scene.resigned == ([led] if steps_down else [])
    if steps_down:
        assert waiting.code == ErrorCode.NOT_LEADER_OR_FOLLOWER
        assert scene.replicas.append(1).code == ErrorCode.NOT_LEADER_OR_FOLLOWER
        # It is made leader again as any other broker.
        scene.replicas.lead(replicas=[1, 2], isr=[1, 2], epoch=6)
        assert scene.replicas.append(1).code == 0
    else:
        assert not waiting.is_completed
        assert scene.replicas.append(1).code == 0


NEW_ID = b"n" * 16


def test_metadata_of_a_deleted_topic_that_come_late_do_not_replace_those_of_the_new_one() -> None:
    """The controller sent them again after a time-out, and the first ones arrive last."""
    scene = Scene()
    deleted: list[list[TopicPartition]] = []
    scene.control._on_metadata = deleted.append
    old, deletion, new = (
        metadata(leader=2, leader_epoch=0),
        metadata(leader=-2, leader_epoch=-2),
        metadata(leader=1, leader_epoch=0, topic_id=NEW_ID),
    )
    for request in (old, deletion):
        scene.control.update_metadata(copy.deepcopy(request))
    scene.control.update_metadata(copy.deepcopy(old))
    assert scene.replicas.metadata.snapshot.topics == {}
    new.live_brokers = [UpdateMetadataBroker(id=1)]
    scene.control.update_metadata(new)
    assert codes(scene.replicas.order(1, topic_id=NEW_ID)) == [0]
    led = scene.replicas.partition()
    for request in (old, deletion):
        scene.control.update_metadata(copy.deepcopy(request))
        assert scene.replicas.metadata.snapshot.topic_id(TOPIC) == NEW_ID
    assert deleted == [[], [TopicPartition(TOPIC, 0)], [], [], [], []]
    assert led.is_leader
    scene.replicas.metadata.forget_deleted()  # registered with a restored ensemble
    scene.control.update_metadata(old)
    assert scene.replicas.metadata.snapshot.topic_id(TOPIC) == TOPIC_ID


def test_a_topic_whose_deletion_was_cancelled_comes_back_with_the_next_controller() -> None:
    """Its deletion waited for a broker, and the new controller has delete.topic.enable=false."""
    scene = Scene()
    alive, deletion = metadata(leader=2, leader_epoch=0), metadata(leader=-2, leader_epoch=-2)
    for request in (alive, deletion):
        scene.control.update_metadata(copy.deepcopy(request))
    alive.controller_epoch = deletion.controller_epoch = alive.controller_epoch + 1
    scene.control.update_metadata(copy.deepcopy(deletion))
    assert scene.replicas.metadata.snapshot.topics == {}
    alive.live_brokers = [UpdateMetadataBroker(id=1)]
    scene.control.update_metadata(alive)
    assert scene.replicas.metadata.snapshot.topic_id(TOPIC) == TOPIC_ID
    assert list(scene.replicas.metadata.snapshot.brokers) == [1]


async def test_a_late_deletion_leaves_the_new_topic_alone() -> None:
    scene = Scene()
    scene.replicas.lead()
    log = scene.replicas.log()
    state = StopReplicaPartitionState(partition_index=0, leader_epoch=-2, delete_partition=True)
    request = StopReplicaRequest(
        controller_id=1,
        controller_epoch=1,
        broker_epoch=7,
        topic_states=[StopReplicaTopicState(TOPIC, [state])],
    )
    scene.strays.kept = {TopicPartition(TOPIC, 0)}
    response = await scene.control.stop_replica(request)
    (row,) = response.partition_errors
    assert row.error_code == ErrorCode.FENCED_LEADER_EPOCH
    assert scene.replicas.partition().is_leader
    scene.strays.kept = set()
    (row,) = (await scene.control.stop_replica(request)).partition_errors
    assert row.error_code == 0
    assert log.local.closed


def full_metadata(topics: int, controller_epoch: int = 1) -> UpdateMetadataRequest:
    return UpdateMetadataRequest(
        controller_id=controller_epoch,
        controller_epoch=controller_epoch,
        broker_epoch=7,
        topic_states=[
            UpdateMetadataTopicState(
                f"topic-{number}",
                bytes(15) + b"1",
                [
                    UpdateMetadataPartitionState(
                        partition_index=index, leader=controller_epoch, isr=[1], replicas=[1]
                    )
                    for index in range(10)
                ],
            )
            for number in range(topics)
        ],
    )


async def test_metadata_of_many_partitions_are_published_as_a_whole() -> None:
    scene = Scene()
    with steps_per_turn(1):
        result = scene.control.update_metadata(full_metadata(3))
        assert isinstance(result, Coroutine)
        task = spawn(result, name="update")
        seen = []
        while not task.done():
            seen.append(scene.replicas.metadata.snapshot.partition_count)
            await asyncio.sleep(0)
    assert len(set(seen)) == 2
    assert len(seen) > 30
    assert task.result().error_code == 0
    assert seen[-1] - seen[0] == 30


async def test_updates_that_come_meanwhile_are_applied_after_it_in_their_order() -> None:
    scene = Scene()
    requests = [
        full_metadata(3),
        full_metadata(1, controller_epoch=3),
        full_metadata(2, controller_epoch=2),
    ]
    results = []
    with steps_per_turn(1):
        for request in requests:
            result = scene.control.update_metadata(request)
            assert isinstance(result, Coroutine)
            results.append(spawn(result, name="update"))
            await asyncio.sleep(0)
        found = [(await result).error_code for result in results]
    assert found == [0, 0, ErrorCode.STALE_CONTROLLER_EPOCH]
    snapshot = scene.replicas.metadata.snapshot
    leaders = []
    for number in range(3):
        state = snapshot.partition(f"topic-{number}", 0)
        assert state is not None
        leaders.append(state.leader)
    assert (leaders, snapshot.controller_id) == ([3, 1, 1], 3)
    # Nothing is in progress any more: the next one is applied at once.
    assert not isinstance(
        scene.control.update_metadata(full_metadata(1, controller_epoch=3)), Coroutine
    )


async def test_deleted_partitions_are_reported_although_the_request_is_cancelled() -> None:
    """As that of a controller in this process is, when it resigns."""
    scene = Scene()
    reported: list[list[TopicPartition]] = []
    topics = 3
    request = full_metadata(topics)
    for topic in request.topic_states:
        topic.topic_id = topic.topic_name.encode().ljust(16, b"-")
    scene.control.update_metadata(copy.deepcopy(request))
    scene.control._on_metadata = reported.append
    for topic in request.topic_states:
        for state in topic.partition_states:
            state.leader = LEADER_DURING_DELETE
    with steps_per_turn(1):
        result = scene.control.update_metadata(request)
        assert isinstance(result, Coroutine)
        task = spawn(result, name="update")
        known = scene.replicas.metadata.snapshot
        await asyncio.sleep(0)
        assert scene.replicas.metadata.snapshot is known
        task.cancel()
        await settle()
    assert [len(each) for each in reported] == [topics * 10]


def deletion(partitions: int) -> StopReplicaRequest:
    states = [StopReplicaPartitionState(each, -2, True) for each in range(partitions)]
    return StopReplicaRequest(
        controller_epoch=1,
        broker_epoch=7,
        topic_states=[StopReplicaTopicState(TOPIC, states)],
    )


async def test_many_replicas_are_deleted_in_turns() -> None:
    scene = Scene()
    deleted: list[int] = []
    scene.replicas.leader_and_isr.on_deleted = lambda keys: deleted.append(len(keys))
    for index in range(70):
        scene.replicas.lead(index)
    with steps_per_turn(1):
        task = spawn(scene.control.stop_replica(deletion(70)), name="stop")
        await asyncio.sleep(0)
    left = len(scene.replicas.manager.partitions)
    assert 0 < left < 70
    response = await task
    assert [row.error_code for row in response.partition_errors] == [0] * 70
    assert scene.replicas.manager.partitions == {}
    assert scene.replicas.logs.logs() == []
    assert sum(deleted) == 70


@pytest.mark.parametrize("newer", ["broker", "controller"])
async def test_a_newer_registration_or_controller_ends_the_deletion(newer: str) -> None:
    scene = Scene()
    for index in range(70):
        scene.replicas.lead(index)
    with steps_per_turn(1):
        task = spawn(scene.control.stop_replica(deletion(70)), name="stop")
        await asyncio.sleep(0)
    if newer == "broker":
        scene.broker_epoch.value += 1
    else:
        scene.replicas.leader_and_isr.controller_epoch += 1
    left = len(scene.replicas.manager.partitions)
    expected = {
        "broker": ErrorCode.STALE_BROKER_EPOCH,
        "controller": ErrorCode.STALE_CONTROLLER_EPOCH,
    }
    assert (await task).error_code == expected[newer]
    assert len(scene.replicas.manager.partitions) == left > 0


async def test_a_broker_whose_id_is_taken_leads_nothing_until_it_registers_again() -> None:
    """Requests that were on their way, or are applied just then, are of its last registration."""
    scene = Scene()
    assert codes(await scene.control.leader_and_isr(scene.request(), 7)) == [0]
    scene.broker_epoch.taken()
    response = await scene.control.leader_and_isr(scene.request(), 7)
    assert response.error_code == ErrorCode.STALE_BROKER_EPOCH
    scene.broker_epoch.registered(9)
    request = scene.request()
    request.broker_epoch = 9
    response = await scene.control.leader_and_isr(request, 7)
    assert response.error_code == ErrorCode.NONE
