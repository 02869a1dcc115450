"""What brokers are sent, in every version of the inter-broker protocol."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from ottla.broker.runtime.tasks import spawn
from ottla.controller.model import BrokerInfo, Endpoint, LeaderAndIsr, ReplicaAssignment
from ottla.controller.requests import shared_metadata
from ottla.controller.requests.broker_channels import Callback, Encoded
from ottla.controller.requests.request_batch import (
    Delivery,
    RequestBatch,
    ResponseCallbacks,
    wait_for,
)
from ottla.controller.settings import ControllerSettings
from ottla.controller.state.context import ControllerContext
from ottla.protocol.codec import decoder, encoder
from ottla.protocol.errors import ErrorCode
from ottla.protocol.headers import encode_request
from ottla.protocol.message import Message
from ottla.protocol.messages.leader_and_isr import (
    LeaderAndIsrPartitionState,
    LeaderAndIsrRequest,
    LeaderAndIsrResponse,
)
from ottla.protocol.messages.stop_replica import (
    StopReplicaPartitionError,
    StopReplicaRequest,
    StopReplicaResponse,
)
from ottla.protocol.messages.update_metadata import (
    UpdateMetadataPartitionState,
    UpdateMetadataRequest,
    UpdateMetadataResponse,
    UpdateMetadataTopicState,
)
from ottla.protocol.topics import TopicPartition
from tests.doubles.controller_cluster import settle
from tests.doubles.controller_runtime import ManualRuntime
from tests.doubles.pace import steps_per_turn

A0, A1, B0 = TopicPartition("a", 0), TopicPartition("a", 1), TopicPartition("b", 0)
A_ID = b"A" * 16
PROTOCOLS = ("0.8.2", "0.9.0", "0.10.0-IV1", "0.10.2", "1.0", "2.2", "2.4-IV0", "2.4", "2.6")
PROTOCOLS += ("2.8", "3.2", "3.4", "3.9")


class Recording:
    """Channels that keep what is sent, after a trip over the wire."""

    def __init__(self) -> None:
        self.sent: list[tuple[int, Message]] = []
        self.callbacks: list[Callback] = []
        self.encoded: list[Encoded | None] = []

    def add_broker(self, broker: BrokerInfo) -> None:
        raise AssertionError("not for the batch to do")

    def update_broker(self, broker: BrokerInfo) -> None:
        raise AssertionError("not for the batch to do")

    def remove_broker(self, broker_id: int) -> None:
        raise AssertionError("not for the batch to do")

    def send(
        self,
        broker_id: int,
        request: Message,
        version: int,
        callback: Callback,
        encoded: Encoded | None = None,
    ) -> None:
        frame = encoder(type(request), version)(request)
        decoded, end = decoder(type(request), version)(frame, 0)
        assert end == len(frame)
        self.sent.append((broker_id, decoded))
        self.callbacks.append(callback)
        self.encoded.append(encoded)


class World:
    def __init__(self, protocol: str = "3.9") -> None:
        self.context = ControllerContext()
        self.context.brokers = {
            broker_id: BrokerInfo(
                broker_id,
                (
                    Endpoint("PLAINTEXT", "PLAINTEXT", f"host{broker_id}", 9092),
                    Endpoint("SECURE", "SASL_SSL", f"host{broker_id}", 9093),
                ),
                f"rack{broker_id}",
                epoch=100 + broker_id,
            )
            for broker_id in (1, 2)
        }
        self.context.add_topic("a", A_ID)
        self.context.add_topic("b", None)
        for partition, leader in ((A0, 1), (A1, 2), (B0, 1)):
            self.context.set_assignment(partition, ReplicaAssignment((1, 2, 3)))
            self.context.leadership[partition] = LeaderAndIsr(leader, 5, (1, 2), 0, 9, 4)
        self.channels = Recording()
        self.leader_and_isr: list[tuple[int, int, LeaderAndIsrResponse, LeaderAndIsrRequest]] = []
        self.metadata: list[tuple[int, int]] = []
        self.deletions: list[tuple[int, int, dict[TopicPartition, int]]] = []
        self.batch = RequestBatch(
            1,
            self.context,
            self.channels,
            ControllerSettings(inter_broker_protocol_version=protocol),
            ResponseCallbacks(
                lambda *each: self.leader_and_isr.append(each),
                lambda *each: self.metadata.append(each),
                lambda *each: self.deletions.append(each),
            ),
        )

    def add_leadership(self, partition: TopicPartition, *brokers: int, is_new: bool) -> None:
        self.batch.add_leader_and_isr(
            brokers,
            partition,
            self.context.leadership[partition],
            self.context.assignment(partition),
            is_new=is_new,
        )


@pytest.mark.parametrize("protocol", PROTOCOLS)
async def test_leader_and_isr_in_every_protocol_version(protocol: str) -> None:
    world = World(protocol)
    world.add_leadership(A0, 1, 2, is_new=True)
    world.add_leadership(B0, 1, is_new=False)
    await world.batch.send(4)
    requests = [r for to, r in world.channels.sent if isinstance(r, LeaderAndIsrRequest)]
    assert len(requests) == 2
    first = requests[0]
    assert (first.controller_id, first.controller_epoch) == (1, 4)
    states = first.ungrouped_partition_states or [
        state for topic in first.topic_states for state in topic.partition_states
    ]
    assert [(state.leader, state.leader_epoch, state.isr) for state in states] == [
        (1, 5, [1, 2]),
        (1, 5, [1, 2]),
    ]
    assert [leader.broker_id for leader in first.live_leaders] == [1]
    assert first.live_leaders[0].port == 9092
    if world.batch.versions.leader_and_isr >= 2:
        assert [topic.topic_name for topic in first.topic_states] == ["a", "b"]
        assert first.broker_epoch == 101
    if world.batch.versions.leader_and_isr >= 5:
        assert [topic.topic_id for topic in first.topic_states] == [A_ID, bytes(16)]


@pytest.mark.parametrize("protocol", PROTOCOLS)
async def test_update_metadata_in_every_protocol_version(protocol: str) -> None:
    world = World(protocol)
    world.batch.add_update_metadata([1, 2, 7], [A0, B0])
    await world.batch.send(4)
    assert [to for to, _ in world.channels.sent] == [1, 2]  # 7 is not there
    request = world.channels.sent[1][1]
    assert isinstance(request, UpdateMetadataRequest)
    states = request.ungrouped_partition_states or [
        state for topic in request.topic_states for state in topic.partition_states
    ]
    assert len(states) == 2
    assert states[0].replicas == [1, 2, 3]
    assert [broker.id for broker in request.live_brokers] == [1, 2]
    version = world.batch.versions.update_metadata
    if version >= 1:
        assert [endpoint.port for endpoint in request.live_brokers[0].endpoints] == [9092, 9093]
        assert [e.security_protocol for e in request.live_brokers[0].endpoints] == [0, 3]
    else:
        assert (request.live_brokers[0].v0_host, request.live_brokers[0].v0_port) == ("host1", 9092)
    if version >= 2:
        assert request.live_brokers[0].rack == "rack1"
    if version >= 4:
        assert states[0].offline_replicas == [3]
    if version >= 5:
        assert request.broker_epoch == 102
    if version >= 7:
        assert request.topic_states[0].topic_id == A_ID


@pytest.mark.parametrize("protocol", PROTOCOLS)
async def test_stop_replica_in_every_protocol_version(protocol: str) -> None:
    world = World(protocol)
    world.batch.add_stop_replica([1], A0, delete=True)
    world.batch.add_stop_replica([1], B0, delete=False)
    await world.batch.send(4)
    requests = [r for _, r in world.channels.sent if isinstance(r, StopReplicaRequest)]
    found: dict[tuple[str, int], bool] = {}
    for request in requests:
        for old in request.ungrouped_partitions:
            found[old.topic_name, old.partition_index] = request.delete_partitions
        for middle in request.topics:
            for index in middle.partition_indexes:
                found[middle.name, index] = request.delete_partitions
        for topic in request.topic_states:
            for state in topic.partition_states:
                found[topic.topic_name, state.partition_index] = state.delete_partition
                assert state.leader_epoch == 5
    assert found == {("a", 0): True, ("b", 0): False}
    assert len(requests) == (1 if world.batch.versions.stop_replica >= 3 else 2)


async def test_one_request_a_broker_in_the_order_that_brokers_need() -> None:
    world = World()
    world.batch.add_stop_replica([2], B0, delete=False)
    world.add_leadership(A0, 2, is_new=False)
    world.add_leadership(A1, 2, is_new=False)
    await world.batch.send(4)
    kinds = [(to, request.NAME) for to, request in world.channels.sent]
    assert kinds == [
        (2, "LeaderAndIsrRequest"),
        (1, "UpdateMetadataRequest"),
        (2, "UpdateMetadataRequest"),
        (2, "StopReplicaRequest"),
    ]
    world.channels.sent.clear()
    await world.batch.send(4)
    assert world.channels.sent == []


async def test_what_is_said_twice() -> None:
    world = World()
    world.add_leadership(A0, 2, is_new=True)
    world.add_leadership(A0, 2, is_new=False)  # it is still new to the broker
    world.batch.add_stop_replica([1], B0, delete=True)
    world.batch.add_stop_replica([1], B0, delete=False)  # and is still to be deleted
    await world.batch.send(4)
    leader_and_isr, *_, stop = (request for _, request in world.channels.sent)
    assert isinstance(leader_and_isr, LeaderAndIsrRequest)
    assert leader_and_isr.topic_states[0].partition_states[0].is_new
    assert isinstance(stop, StopReplicaRequest)
    assert stop.topic_states[0].partition_states[0].delete_partition


async def test_topics_that_are_deleted_have_no_leader_any_more() -> None:
    world = World()
    world.context.topics_to_delete["a"] = None
    world.batch.add_update_metadata([1], [A0])
    world.batch.add_stop_replica([1], A0, delete=True)
    await world.batch.send(4)
    metadata, stop = (request for _, request in world.channels.sent)
    assert isinstance(metadata, UpdateMetadataRequest)
    state = metadata.topic_states[0].partition_states[0]
    assert (state.leader, state.leader_epoch) == (-2, -2)
    assert isinstance(stop, StopReplicaRequest)
    assert stop.topic_states[0].partition_states[0].leader_epoch == -2


async def test_partitions_without_leadership_are_left_out() -> None:
    world = World()
    del world.context.leadership[A0]
    world.batch.add_update_metadata([1], [A0])
    await world.batch.send(4)
    request = world.channels.sent[0][1]
    assert isinstance(request, UpdateMetadataRequest)
    assert request.topic_states == []


async def test_responses_find_their_way() -> None:
    world = World()
    world.context.topics_with_deletion_started.add("a")
    world.add_leadership(A0, 2, is_new=False)
    world.batch.add_stop_replica([2], A0, delete=True)
    world.batch.add_stop_replica([2], B0, delete=True)
    await world.batch.send(4)
    leadership, _, metadata, stop = world.channels.callbacks
    response = LeaderAndIsrResponse()
    leadership(response)
    assert [each[:3] for each in world.leader_and_isr] == [(2, 102, response)]
    assert world.leader_and_isr[0][3].topic_states[0].topic_name == "a"
    assert not world.batch.metadata_deliveries[2].done
    metadata(UpdateMetadataResponse(error_code=ErrorCode.STALE_BROKER_EPOCH))
    assert world.metadata == [(2, ErrorCode.STALE_BROKER_EPOCH)]
    assert world.batch.metadata_deliveries[2].done
    rows = [
        StopReplicaPartitionError(topic_name="a", partition_index=0, error_code=0),
        StopReplicaPartitionError(topic_name="b", partition_index=0, error_code=0),  # a move
    ]
    stop(StopReplicaResponse(partition_errors=rows))
    assert world.deletions == [(2, 102, {A0: 0})]
    stop(StopReplicaResponse(error_code=77, partition_errors=rows))
    assert world.deletions[1] == (2, 102, {A0: 77})
    stop(StopReplicaResponse(error_code=77))  # as for a request that failed as a whole
    assert world.deletions[2] == (2, 102, {A0: 77})


async def test_broker_that_went_returns_nothing_but_ends_the_waiting() -> None:
    world = World()
    world.add_leadership(A0, 2, is_new=False)
    await world.batch.send(4)
    for callback in world.channels.callbacks:
        callback(None)
    assert world.leader_and_isr == []
    assert world.metadata == []
    assert all(delivery.done for delivery in world.batch.metadata_deliveries.values())


async def test_clear_forgets() -> None:
    world = World()
    world.add_leadership(A0, 2, is_new=False)
    world.batch.add_stop_replica([2], B0, delete=False)
    world.batch.clear()
    await world.batch.send(4)
    assert world.channels.sent == []


@pytest.mark.parametrize("protocol", PROTOCOLS)
async def test_the_metadata_are_encoded_once_for_all_brokers(
    protocol: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    encodings: list[int] = []
    encode = shared_metadata.sliced_encoder

    def counted(cls: Any, version: int) -> Any:
        encodings.append(version)
        return encode(cls, version)

    monkeypatch.setattr(shared_metadata, "sliced_encoder", counted)
    world = World(protocol)
    world.batch.add_update_metadata([1, 2], [A0, A1, B0])
    await world.batch.send(4)
    version = world.batch.versions.update_metadata
    if version < shared_metadata.MIN_VERSION:
        assert world.channels.encoded == [None, None]
        return
    for (broker_id, request), encoded in zip(
        world.channels.sent, world.channels.encoded, strict=True
    ):
        assert isinstance(request, UpdateMetadataRequest)
        assert request.broker_epoch == 100 + broker_id
        assert encoded is not None
        message = await encoded()
        assert (message.NAME, message.API_KEY) == (request.NAME, request.API_KEY)
        assert encode_request(7, "c", message, version) == encode_request(7, "c", request, version)
    assert encodings == [version]


async def test_metadata_of_many_partitions_are_encoded_in_turns() -> None:
    states = [UpdateMetadataPartitionState(partition_index=index) for index in range(100)]
    request = UpdateMetadataRequest(topic_states=[UpdateMetadataTopicState("t", A_ID, states)])
    shared = shared_metadata.SharedMetadata(request, 8)
    tasks = [spawn(shared.request_for(epoch), name="encode") for epoch in (1, 2)]
    turns = 0
    with steps_per_turn(8):
        while not all(task.done() for task in tasks):
            await asyncio.sleep(0)
            turns += 1
    assert turns >= 100 // 8
    for task in tasks:
        request.broker_epoch += 1 if request.broker_epoch > 0 else 2
        assert encoder(type(task.result()), 8)(task.result()) == encoder(type(request), 8)(request)


class Held(Recording):
    """Channels that keep the requests themselves, as the queue of a broker does."""

    def send(
        self,
        broker_id: int,
        request: Message,
        version: int,
        callback: Callback,
        encoded: Encoded | None = None,
    ) -> None:
        self.sent.append((broker_id, request))
        self.callbacks.append(callback)
        self.encoded.append(encoded)


@pytest.mark.parametrize("kind", [UpdateMetadataPartitionState, LeaderAndIsrPartitionState])
async def test_the_states_of_a_request_are_freed_in_turns(
    kind: type[Message], monkeypatch: pytest.MonkeyPatch
) -> None:
    freed = 0

    def count(_: Message) -> None:
        nonlocal freed
        freed += 1

    world = World()
    held = world.batch.channels = Held()
    partitions = [TopicPartition("a", index) for index in range(200)]
    for each in partitions:
        world.context.set_assignment(each, ReplicaAssignment((1, 2)))
        world.context.leadership[each] = LeaderAndIsr(1, 5, (1, 2))
        if kind is UpdateMetadataPartitionState:
            world.batch.add_update_metadata([1, 2], [each])
        else:
            world.add_leadership(each, 1, is_new=False)
    await world.batch.send(4)
    monkeypatch.setattr(kind, "__del__", count, raising=False)
    with steps_per_turn(8):
        while held.callbacks:
            held.callbacks.pop(0)(None)
            for kept in (held.sent, held.encoded):
                del kept[0]
            assert freed == 0
        for _ in range(2 * len(partitions) // 8 + 10):
            before = freed
            await asyncio.sleep(0)
            assert freed - before <= 8
    assert freed == len(partitions)


async def test_waits_for_all_of_them() -> None:
    runtime = ManualRuntime()
    deliveries = [Delivery(), Delivery()]
    outcome: list[bool] = []

    async def wait() -> None:
        outcome.append(await wait_for(deliveries, 1000, runtime))

    runtime.spawn(wait(), name="wait")
    await settle()
    deliveries[1].finish()
    await settle()
    assert outcome == []
    deliveries[0].finish()
    await settle()
    assert outcome == [True]
    assert runtime.next_due_in_ms() is None  # the timer is not left behind


async def test_gives_up_in_time() -> None:
    runtime = ManualRuntime()
    done, waiting = Delivery(), Delivery()
    done.finish()
    outcome: list[bool] = []

    async def wait() -> None:
        outcome.append(await wait_for([done, waiting], 1000, runtime))

    runtime.spawn(wait(), name="wait")
    await settle()
    runtime.advance(999)
    await settle()
    assert outcome == []
    runtime.advance(1)
    await settle()
    assert outcome == [False]
    waiting.finish()  # there is no waiter any more


async def test_nothing_to_wait_for() -> None:
    runtime = ManualRuntime()
    assert await wait_for([], 0, runtime)
    assert not await wait_for([Delivery()], 0, runtime)
