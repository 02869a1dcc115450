"""Becoming the controller, being it, ceasing to be it."""

from __future__ import annotations

import pytest

from ottla.controller import election
from ottla.controller.admin.topic_admin import NewTopic
from ottla.controller.lifecycle import RETRY_DELAY_MS
from ottla.controller.registration import BrokerRegistration
from ottla.controller.tree import znodes
from ottla.controller.tree.embedded_store import EmbeddedStore
from ottla.controller.tree.store import CREATED, ConnectionLost, SetOp, WatchEvent
from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.protocol.topics import TopicPartition
from tests.doubles.controller_brokers import SimulatedBroker
from tests.doubles.controller_cluster import Cluster, settle

T0 = TopicPartition("t", 0)


def another_is_elected(cluster: Cluster) -> None:
    """As another broker does it, before our watches fire."""
    epoch = int(cluster.tree.nodes[znodes.CONTROLLER_EPOCH].data)
    if cluster.exists(znodes.CONTROLLER):
        cluster.delete_node(znodes.CONTROLLER)
    cluster.create_node(znodes.CONTROLLER, znodes.encode_controller(2, 0))
    cluster.write(SetOp(znodes.CONTROLLER_EPOCH, b"%d" % (epoch + 1)))


def fail_once(cluster: Cluster, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """The next call of that method of the store loses its connection."""

    async def lost(*_: object, **__: object) -> object:
        monkeypatch.undo()
        raise ConnectionLost("/x", "cut")

    monkeypatch.setattr(cluster.store, name, lost)


async def test_deletion_of_the_controller_node_starts_an_election(cluster: Cluster) -> None:
    await cluster.create_topic("t", (2, 1))
    cluster.delete_node(znodes.CONTROLLER)
    await settle()
    assert cluster.controller.is_active
    assert cluster.controller.epoch == 2
    assert cluster.elected == [1, -1, 1]
    assert cluster.leader("t") == 2


async def test_another_controller_makes_us_resign(cluster: Cluster) -> None:
    await cluster.create_topic("t", (2, 1))
    another_is_elected(cluster)
    await settle()
    assert not cluster.controller.is_active
    assert cluster.controller.controller_id == 2
    assert not cluster.controller.context.assignments
    assert cluster.channels.open == {}
    cluster.sent.clear()
    await cluster.remove_broker(2)  # not our business any more
    assert cluster.sent == []


async def test_fenced_controller_learns_it_by_its_next_write(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    await cluster.create_topic("t", (1, 2))
    original = cluster.store.multi_many

    async def fenced(batches: object) -> object:
        monkeypatch.undo()
        another_is_elected(cluster)
        return await original(batches)  # type: ignore[arg-type] # passed through

    before = cluster.state("t")
    monkeypatch.setattr(cluster.store, "multi_many", fenced)
    with pytest.raises(KafkaError) as moved:
        await cluster.controller.create_topics([NewTopic("u", 1, 1)], timeout_ms=1000)
    assert moved.value.code == ErrorCode.NOT_CONTROLLER
    await settle()
    assert not cluster.controller.is_active
    assert cluster.state("t") == before
    assert not cluster.exists(znodes.topic_path("u"))


async def test_epoch_changed_by_hand_makes_us_start_over(cluster: Cluster) -> None:
    """The znode has our id, but our writes fail: no other broker would become controller."""
    cluster.write(SetOp(znodes.CONTROLLER_EPOCH, b"41"))
    with pytest.raises(KafkaError):
        await cluster.controller.create_topics([NewTopic("t", 1, 1)], timeout_ms=1000)
    await settle()
    assert not cluster.controller.is_active
    cluster.runtime.advance(RETRY_DELAY_MS)
    await settle()
    assert cluster.controller.is_active
    assert cluster.controller.epoch == 42


async def test_lost_write_makes_us_start_over_from_the_tree(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    await cluster.create_topic("t", (2, 1))
    fail_once(cluster, monkeypatch, "multi_many")
    with pytest.raises(KafkaError) as lost:
        await cluster.controller.create_topics([NewTopic("u", 1, 1)], timeout_ms=1000)
    assert lost.value.code == ErrorCode.REQUEST_TIMED_OUT
    assert not cluster.controller.is_active  # at once: memory and tree may differ
    await settle()
    cluster.runtime.advance(RETRY_DELAY_MS)
    await settle()
    assert cluster.controller.epoch == 2
    assert cluster.controller.context.leadership[T0] == cluster.state("t")


async def test_store_that_fails_again_and_again_is_retried_each_time(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def lost(*_: object, **__: object) -> object:
        raise ConnectionLost("/x", "cut")

    monkeypatch.setattr(cluster.store, "get", lost)
    monkeypatch.setattr(cluster.store, "get_many", lost)
    await cluster.remove_broker(2)
    for _ in range(5):
        assert not cluster.controller.is_active
        assert cluster.runtime.next_due_in_ms() == RETRY_DELAY_MS  # one timer, however many fail
        cluster.runtime.advance(RETRY_DELAY_MS)
        await settle()
    monkeypatch.undo()
    cluster.runtime.advance(RETRY_DELAY_MS)
    await settle()
    assert cluster.controller.is_active
    assert sorted(cluster.controller.context.brokers) == [1, 3]


async def test_failure_while_taking_over(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    await cluster.create_topic("t", (1, 2))
    parts = cluster.controller._lifecycle

    async def broken() -> None:
        monkeypatch.undo()
        raise RuntimeError("a bug")

    monkeypatch.setattr(parts.replicas, "startup", broken)
    cluster.delete_node(znodes.CONTROLLER)
    await settle()
    assert not cluster.controller.is_active
    cluster.runtime.advance(RETRY_DELAY_MS)
    await settle()
    assert cluster.controller.is_active
    assert cluster.controller.epoch == 3


async def test_failures_while_taking_over_have_a_delay_between_them(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also although the deletion of its znode starts an election."""
    failures: list[int] = []

    async def broken() -> None:
        failures.append(cluster.runtime.now_ms())
        if len(failures) > 20:
            monkeypatch.undo()
        raise RuntimeError("a bug")

    monkeypatch.setattr(cluster.controller._lifecycle.replicas, "startup", broken)
    cluster.delete_node(znodes.CONTROLLER)
    await settle()
    for _ in range(3):
        cluster.runtime.advance(RETRY_DELAY_MS)
        await settle()
    start = failures[0]
    assert [each - start for each in failures] == [RETRY_DELAY_MS * each for each in range(4)]


async def test_bug_in_one_handler_does_not_stop_the_others(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def broken() -> None:
        monkeypatch.undo()
        raise RuntimeError("a bug")

    monkeypatch.setattr(cluster.controller._lifecycle.deletion, "on_deletion_requested", broken)
    cluster.create_node(znodes.delete_topic_path("nothing"))
    await settle()
    assert "Error processing event TopicDeletion()" in caplog.text
    assert cluster.controller.is_active
    await cluster.create_topic("t", (1, 2))
    assert cluster.leader("t") == 1


async def test_bug_in_a_call_is_returned_as_an_error(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def broken(*_: object, **__: object) -> None:
        raise RuntimeError("a bug")

    monkeypatch.setattr(cluster.controller._lifecycle.elections, "elect", broken)
    with pytest.raises(KafkaError) as failed:
        await cluster.controller.elect_leaders(None, 0)
    assert failed.value.code == ErrorCode.UNKNOWN_SERVER_ERROR
    assert "a bug" in failed.value.message


async def test_expired_session_registers_and_elects_again(cluster: Cluster) -> None:
    await cluster.create_topic("t", (1, 2))
    epoch = cluster.registration.broker_epoch
    cluster.store.expire_session()
    await settle()
    cluster.brokers[1].broker_epoch = cluster.registration.broker_epoch
    assert cluster.registration.broker_epoch > epoch
    assert cluster.controller.is_active
    assert cluster.controller.epoch == 2
    assert sorted(cluster.controller.context.brokers) == [1, 2, 3]
    assert cluster.exists(znodes.broker_path(1))


async def test_a_controller_epoch_that_was_set_back_is_named(
    cluster: Cluster, caplog: pytest.LogCaptureFixture
) -> None:
    """Brokers refuse everything; no fault of theirs says why."""
    for broker in cluster.brokers.values():
        broker.controller_epoch = 9
    cluster.set_node(znodes.CONTROLLER_EPOCH, b"3")
    cluster.delete_node(znodes.CONTROLLER)
    await settle()
    assert "Broker 2 knows a newer controller epoch than 4" in caplog.text
    assert "/controller_epoch was set back: write a higher number to it" in caplog.text
    caplog.clear()
    cluster.set_node(znodes.CONTROLLER_EPOCH, b"9")
    cluster.delete_node(znodes.CONTROLLER)
    await settle()
    cluster.runtime.advance(RETRY_DELAY_MS)
    await settle()
    assert cluster.controller.epoch == 10
    assert "set back" not in caplog.text
    assert (await cluster.create_topic("t", (1, 2))).error.code == 0


async def test_session_that_expires_between_registration_and_start() -> None:
    cluster = Cluster((1,))
    await cluster.store.connect()
    await cluster.registration.register()
    cluster.store.expire_session()
    cluster.brokers[1] = SimulatedBroker(1)
    await cluster.controller.start(timeout_ms=0)
    await settle()
    assert cluster.exists(znodes.broker_path(1))
    assert cluster.controller.is_active
    assert list(cluster.controller.context.brokers) == [1]
    await cluster.stop()


async def test_expired_session_while_another_takes_over(cluster: Cluster) -> None:
    cluster.store.lose_session()
    another_is_elected(cluster)
    cluster.store.expire_session()
    await settle()
    assert not cluster.controller.is_active
    assert cluster.controller.controller_id == 2
    assert cluster.exists(znodes.broker_path(1))


async def test_registration_that_fails_is_retried(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster.store.lose_session()
    taken = cluster.registration.info._replace(endpoints=())
    cluster.create_node(znodes.broker_path(1), znodes.encode_broker(taken, 0))
    cluster.store.expire_session()
    await settle()
    assert znodes.decode_broker(1, cluster.tree.nodes[znodes.broker_path(1)].data, 0) == (
        taken._replace(epoch=0)
    )
    cluster.runtime.advance(RETRY_DELAY_MS)
    await settle()
    cluster.delete_node(znodes.broker_path(1))
    cluster.runtime.advance(RETRY_DELAY_MS)
    await settle()
    assert cluster.exists(znodes.broker_path(1))
    assert cluster.controller.is_active


async def test_registration_that_fails_for_another_reason_is_retried(cluster: Cluster) -> None:
    """Such as the registration of an earlier session that is damaged."""
    cluster.store.lose_session()
    cluster.create_node(znodes.broker_path(1), b"{")
    cluster.store.expire_session()
    await settle()
    assert cluster.tree.nodes[znodes.broker_path(1)].data == b"{"
    cluster.delete_node(znodes.broker_path(1))
    cluster.runtime.advance(RETRY_DELAY_MS)
    await settle()
    assert cluster.registration.broker_epoch > 0
    assert cluster.exists(znodes.broker_path(1))
    assert cluster.controller.is_active


async def test_broker_whose_id_was_taken_leaves_the_other_one_alone(cluster: Cluster) -> None:
    """It was stopped for so long that another one with its id took its place."""
    cluster.store.lose_session()
    other = EmbeddedStore(tree=cluster.tree)
    await other.connect()
    taken = cluster.registration.info._replace(endpoints=())
    await BrokerRegistration(other, taken, cluster.runtime.now_ms).register()
    elected = await election.elect(other, 1, 0)
    before = await other.exists(znodes.CONTROLLER)
    cluster.store.expire_session()
    await settle()
    for _ in range(3):
        cluster.runtime.advance(RETRY_DELAY_MS)
        await settle()
    assert await other.exists(znodes.CONTROLLER) == before
    assert await election.read_epoch(other) == (elected.epoch, elected.epoch_version)
    assert not cluster.controller.is_active
    await other.close()  # the other one is gone: neither registered nor controller
    cluster.runtime.advance(RETRY_DELAY_MS)
    await settle()
    assert cluster.exists(znodes.broker_path(1))
    assert cluster.controller.is_active


async def test_controller_that_is_gone_before_the_watch_is_set_again(cluster: Cluster) -> None:
    """The event is the creation of the znode, but when it is read there is none any more."""
    lifecycle = cluster.controller._lifecycle
    cluster.controller._handles.pop().cancel()  # no watch fires for what follows
    cluster.delete_node(znodes.CONTROLLER)
    cluster.controller._on_controller_node(WatchEvent(CREATED, znodes.CONTROLLER))
    await settle()
    assert cluster.exists(znodes.CONTROLLER)
    assert lifecycle.is_active
    assert cluster.controller.epoch == 2


async def test_waiting_calls_are_completed_when_the_session_expires(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    responses: list[int] = []

    async def call() -> None:
        try:
            await cluster.controller.list_partition_reassignments()
        except KafkaError as error:
            responses.append(error.code)

    cluster.runtime.spawn(call(), name="call")
    cluster.runtime.spawn(call(), name="call")
    queue = cluster.controller._queue
    original = queue.put
    monkeypatch.setattr(queue, "put", lambda event: (original(event), expire())[0])

    def expire() -> None:
        monkeypatch.undo()
        cluster.store.expire_session()

    await settle()
    assert responses == [ErrorCode.NOT_CONTROLLER]  # the one that waited; the other came later


async def test_stop_lets_the_node_go(cluster: Cluster) -> None:
    await cluster.controller.stop(timeout_ms=0)
    await settle()
    assert not cluster.exists(znodes.CONTROLLER)
    assert not cluster.controller.is_active
    cluster.create_node(f"{znodes.TOPICS}/t", b'{"partitions":{"0":[1]}}')
    await settle()
    assert not cluster.exists(znodes.state_path(T0))


async def test_stop_without_a_store_ends_all_the_same(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def lost(*_: object, **__: object) -> object:
        raise ConnectionLost("/x", "cut")

    monkeypatch.setattr(cluster.store, "multi", lost)
    await cluster.controller.stop(timeout_ms=0)
    await settle()
    assert not cluster.controller.is_active
    assert cluster.controller._lifecycle.stopped.done
