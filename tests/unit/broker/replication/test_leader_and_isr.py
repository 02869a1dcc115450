from __future__ import annotations

import errno
from collections.abc import Iterator

import pytest

from ottla.broker.replication.partition import Partition
from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages.leader_and_isr import (
    LeaderAndIsrPartitionState,
    LeaderAndIsrRequest,
    LeaderAndIsrTopicState,
)
from ottla.protocol.messages.stop_replica import (
    StopReplicaPartitionState,
    StopReplicaPartitionV0,
    StopReplicaRequest,
    StopReplicaTopicState,
    StopReplicaTopicV1,
)
from ottla.protocol.steps import run_at_once
from ottla.protocol.topics import TopicPartition
from ottla.protocol.uuids import ZERO_UUID
from ottla.storage.directories.log_manager import LogManager
from tests.doubles.memory_file_system import MemoryFileSystem
from tests.doubles.pace import steps_per_turn
from tests.doubles.replicas import TOPIC, TOPIC_ID, Replicas, codes, run_now


class Listener:
    """Notes what it is notified."""

    def __init__(self, replicas: Replicas) -> None:
        self.leads: list[TopicPartition] = []
        self.follows: list[TopicPartition] = []
        self.leads_on: list[tuple[TopicPartition, int]] = []
        self.deleted: list[TopicPartition] = []
        replicas.leader_and_isr.on_leadership = self._changed
        replicas.leader_and_isr.on_new_leader_epoch = self._leads_on
        replicas.leader_and_isr.on_deleted = self.deleted.extend

    def _changed(self, leaders: list[Partition], followers: list[Partition]) -> None:
        self.leads.extend(partition.key for partition in leaders)
        self.follows.extend(partition.key for partition in followers)

    def _leads_on(self, partitions: list[Partition]) -> None:
        self.leads_on.extend((each.key, each.leader_epoch) for each in partitions)


class Fetchers:
    def __init__(self, replicas: Replicas) -> None:
        self.following: dict[TopicPartition, int] = {}
        replicas.leader_and_isr.fetchers = self

    def add_fetcher_for_partitions(self, partitions: list[Partition]) -> None:  # type: ignore[override]  # any iterable
        self.following.update({each.key: each.leader_id for each in partitions})

    def remove_fetcher_for_partitions(self, partitions: list[Partition]) -> None:  # type: ignore[override]  # any iterable
        for each in partitions:
            self.following.pop(each.key, None)


KEY = TopicPartition(TOPIC, 0)


def stop(replicas: Replicas, *, epoch: int = -1, delete: bool = True) -> int:
    state = StopReplicaPartitionState(0, epoch, delete)
    request = StopReplicaRequest(
        controller_epoch=1, topic_states=[StopReplicaTopicState(TOPIC, [state])]
    )
    response = run_at_once(replicas.leader_and_isr.stop_replicas(request))
    assert response.error_code == 0
    return response.partition_errors[0].error_code


def test_leading_then_following_then_leading() -> None:
    replicas = Replicas()
    listener, fetchers = Listener(replicas), Fetchers(replicas)
    replicas.order(1, epoch=0, replicas=[1, 2])
    assert replicas.partition().is_leader
    replicas.order(2, epoch=1, replicas=[1, 2])
    assert not replicas.partition().is_leader
    assert fetchers.following == {KEY: 2}
    replicas.order(1, epoch=2, replicas=[1, 2])
    assert fetchers.following == {}
    assert (listener.leads, listener.follows) == ([KEY, KEY], [KEY])


def test_a_leader_that_stays_the_leader_does_not_become_leader_again() -> None:
    replicas = Replicas()
    listener = Listener(replicas)
    replicas.order(1, epoch=0, replicas=[1, 2])
    # A new controller sends the known state again; then broker 2 leaves the ISR.
    response = replicas.order(1, epoch=0, replicas=[1, 2], controller_epoch=2)
    assert codes(response) == [ErrorCode.STALE_CONTROLLER_EPOCH]
    replicas.order(1, epoch=1, replicas=[1, 2], isr=[1], partition_epoch=1, controller_epoch=2)
    assert replicas.partition().leader_epoch == 1
    assert (listener.leads, listener.follows) == ([KEY], [])
    assert listener.leads_on == [(KEY, 1)]


def test_an_order_that_is_not_newer_changes_nothing() -> None:
    replicas = Replicas()
    replicas.lead(epoch=5)
    for epoch, code in (
        (4, ErrorCode.FENCED_LEADER_EPOCH),
        (5, ErrorCode.STALE_CONTROLLER_EPOCH),
    ):
        response = replicas.order(2, epoch=epoch, replicas=[1, 2])
        assert codes(response) == [code]
    assert replicas.partition().is_leader


def test_a_stale_controller_changes_nothing() -> None:
    replicas = Replicas()
    replicas.lead(controller_epoch=5)
    response = replicas.order(2, epoch=9, replicas=[1, 2], controller_epoch=4)
    assert response.error_code == ErrorCode.STALE_CONTROLLER_EPOCH
    assert replicas.partition().is_leader


def test_who_is_no_replica_says_so_and_keeps_nothing() -> None:
    replicas = Replicas()
    response = replicas.order(2, replicas=[2, 3])
    assert codes(response) == [ErrorCode.UNKNOWN_TOPIC_OR_PARTITION]
    assert replicas.manager.partitions == {}


def test_another_topic_id_is_another_topic() -> None:
    replicas = Replicas()
    replicas.lead()
    response = replicas.order(1, epoch=1, topic_id=b"x" * 16)
    assert codes(response) == [ErrorCode.INCONSISTENT_TOPIC_ID]


def test_an_id_may_come_later_without_a_new_epoch() -> None:
    replicas = Replicas()
    replicas.lead(topic_id=ZERO_UUID)
    assert replicas.log().topic_id is None
    assert codes(replicas.order(1, topic_id=b"n" * 16)) == [0]
    assert replicas.log().topic_id == replicas.partition().topic_id == b"n" * 16


def test_old_controllers_get_rows_with_names() -> None:
    replicas = Replicas()
    response = replicas.order(1, version=4)
    assert [row.topic_name for row in response.partition_errors] == [TOPIC]
    assert response.topics == []


def test_an_offline_partition_returns_the_error_of_the_disk() -> None:
    replicas = Replicas()
    replicas.lead().offline = True
    assert codes(replicas.order(1, epoch=1)) == [ErrorCode.KAFKA_STORAGE_ERROR]


def test_a_failed_disk_is_reported_and_the_partition_goes_offline(
    caplog: pytest.LogCaptureFixture,
) -> None:
    replicas = Replicas()
    replicas.logs.directories.all[0].fail(OSError(5, "Input/output error"))
    assert codes(replicas.order(1)) == [ErrorCode.KAFKA_STORAGE_ERROR]
    assert replicas.partition().offline
    (line,) = [line for line in caplog.messages if line.startswith("Failed to become leader")]
    assert line.endswith(f"1 partitions in offline log dirs: {TOPIC}-0")


def test_deleting_renames_the_log_and_notifies_all() -> None:
    replicas = Replicas()
    listener = Listener(replicas)
    replicas.lead()
    assert stop(replicas, epoch=-2) == 0
    assert replicas.manager.partitions == {}
    assert replicas.logs.get(TOPIC, 0) is None
    assert listener.deleted == [KEY]


def test_stopping_without_deleting_keeps_the_data() -> None:
    replicas = Replicas()
    replicas.follow(2)
    assert stop(replicas, epoch=0, delete=False) == 0
    assert replicas.logs.get(TOPIC, 0) is not None


def test_an_old_stop_is_fenced() -> None:
    replicas = Replicas()
    replicas.lead(epoch=5)
    assert stop(replicas, epoch=4) == ErrorCode.FENCED_LEADER_EPOCH
    assert stop(replicas, epoch=5) == 0


def test_what_is_not_here_is_stopped_already() -> None:
    assert stop(Replicas()) == 0


def test_a_stale_controller_stops_nothing() -> None:
    replicas = Replicas()
    replicas.lead(controller_epoch=5)
    response = run_at_once(
        replicas.leader_and_isr.stop_replicas(StopReplicaRequest(controller_epoch=4))
    )
    assert response.error_code == ErrorCode.STALE_CONTROLLER_EPOCH


@pytest.mark.parametrize("version", [0, 1])
def test_the_layouts_of_old_controllers(version: int) -> None:
    replicas = Replicas()
    replicas.lead()
    request = StopReplicaRequest(controller_epoch=1, delete_partitions=True)
    if version == 0:
        request.ungrouped_partitions = [StopReplicaPartitionV0(TOPIC, 0)]
    else:
        request.topics = [StopReplicaTopicV1(TOPIC, [0])]
    response = run_at_once(replicas.leader_and_isr.stop_replicas(request))
    assert [row.error_code for row in response.partition_errors] == [0]
    assert replicas.logs.get(TOPIC, 0) is None


def test_a_broken_disk_keeps_out_old_partitions_but_not_new_ones() -> None:
    """The log of an old one may be on that disk; a new one has no log yet."""
    replicas = Replicas()
    replicas.logs = LogManager(["/one", "/two"], replicas.config, MemoryFileSystem())
    replicas.logs.load(replicas.clock.now_ms())
    replicas.leader_and_isr._log_manager = replicas.logs
    replicas.logs.directories.all[0].fail(OSError("broken"))
    response = replicas.order(1, index=0)
    assert codes(response) == [ErrorCode.KAFKA_STORAGE_ERROR]
    assert replicas.partition(0).offline
    assert codes(replicas.order(1, index=1, is_new=True)) == [0]
    assert replicas.log(1).log_directory.path == "/two"


def test_a_full_disk_keeps_a_partition_out_only_for_now() -> None:
    replicas = Replicas()
    fs = MemoryFileSystem()
    replicas.logs = LogManager(["/one"], replicas.config, fs)
    replicas.logs.load(replicas.clock.now_ms())
    replicas.leader_and_isr._log_manager = replicas.logs
    fs.fail("open", errno.ENOSPC, path_part="t-0/")
    assert codes(replicas.order(1, is_new=True)) == [ErrorCode.KAFKA_STORAGE_ERROR]
    assert replicas.logs.offline_directories == []
    assert codes(replicas.order(1, is_new=True)) == [0]
    assert replicas.partition().is_leader


def big_order(count: int, controller_epoch: int = 1) -> LeaderAndIsrRequest:
    states = [
        LeaderAndIsrPartitionState(
            partition_index=index,
            controller_epoch=controller_epoch,
            leader=1,
            leader_epoch=0,
            isr=[1],
            replicas=[1],
            is_new=True,
        )
        for index in range(count)
    ]
    return LeaderAndIsrRequest(
        controller_id=1,
        controller_epoch=controller_epoch,
        topic_states=[LeaderAndIsrTopicState(TOPIC, TOPIC_ID, states)],
    )


@pytest.fixture
def _turns_of_32() -> Iterator[None]:
    with steps_per_turn(32):
        yield


@pytest.mark.usefixtures("_turns_of_32")
def test_others_get_their_turn_while_a_big_order_is_carried_out() -> None:
    replicas = Replicas()
    order = replicas.leader_and_isr.become_leader_or_follower(big_order(100), 7)
    counts = []
    while True:
        try:
            order.send(None)
        except StopIteration as done:
            response = done.value
            break
        counts.append(len(replicas.manager.partitions))
    assert counts == [32, 64, 96]
    assert codes(response) == [0] * 100
    assert len(response.topics) == 1
    assert len(replicas.manager.partitions) == 100


@pytest.mark.usefixtures("_turns_of_32")
def test_the_rest_of_an_order_is_ignored_when_its_controller_is_stale() -> None:
    replicas = Replicas()
    order = replicas.leader_and_isr.become_leader_or_follower(big_order(100), 7)
    order.send(None)
    newer = run_now(replicas.leader_and_isr.become_leader_or_follower(big_order(0, 2), 7))
    assert newer.error_code == 0
    with pytest.raises(StopIteration) as done:
        order.send(None)
    assert done.value.value.error_code == ErrorCode.STALE_CONTROLLER_EPOCH
    assert len(replicas.manager.partitions) == 32


@pytest.mark.usefixtures("_turns_of_32")
def test_the_rest_of_an_order_is_refused_when_the_broker_has_registered_again() -> None:
    replicas, epochs = Replicas(), [1]
    order = replicas.leader_and_isr.become_leader_or_follower(
        big_order(100), 7, lambda: epochs[-1] > 1
    )
    order.send(None)
    epochs.append(2)
    with pytest.raises(StopIteration) as done:
        order.send(None)
    assert done.value.value.error_code == ErrorCode.STALE_BROKER_EPOCH
    assert len(replicas.manager.partitions) == 32


@pytest.mark.usefixtures("_turns_of_32")
def test_what_leads_meanwhile_is_not_followed_at_the_end_of_a_big_order() -> None:
    replicas = Replicas()
    fetchers = Fetchers(replicas)
    request = big_order(40)
    for state in request.topic_states[0].partition_states:
        state.leader, state.replicas = 2, [2, 1]
    order = replicas.leader_and_isr.become_leader_or_follower(request, 7)
    order.send(None)
    assert fetchers.following == {}
    newer = big_order(1, 2)
    newer.topic_states[0].partition_states[0].leader_epoch = 1
    run_now(replicas.leader_and_isr.become_leader_or_follower(newer, 7))
    with pytest.raises(StopIteration):
        order.send(None)
    # The other 31 that were begun are followed, though the rest of the order is void.
    assert set(fetchers.following) == {TopicPartition(TOPIC, index) for index in range(1, 32)}


def test_a_deletion_is_announced_before_the_replica_may_lead_again() -> None:
    replicas = Replicas()
    events: list[tuple[str, list[int]]] = []
    replicas.leader_and_isr.on_leadership = lambda leaders, _: events.append(
        ("leads", [each.index for each in leaders])
    )
    replicas.leader_and_isr.on_deleted = lambda keys: events.append(
        ("deleted", [key.partition for key in keys])
    )
    for index in range(2):
        replicas.lead(index)
    events.clear()
    states = [StopReplicaPartitionState(index, -2, True) for index in range(2)]
    request = StopReplicaRequest(
        controller_epoch=1, topic_states=[StopReplicaTopicState(TOPIC, states)]
    )
    steps = replicas.leader_and_isr.stop_replicas(request)
    next(steps)
    replicas.order(1, index=0, epoch=0, controller_epoch=2, topic_id=b"n" * 16)
    run_at_once(steps)  # of a controller that is no longer
    assert events == [("deleted", [0]), ("leads", [0])]


def test_an_error_of_one_partition_leaves_the_others_announced() -> None:
    replicas = Replicas()
    listener, fetchers = Listener(replicas), Fetchers(replicas)
    replicas.lead(2, topic_id=ZERO_UUID)
    listener.leads.clear()
    states = [
        LeaderAndIsrPartitionState(
            partition_index=index,
            controller_epoch=1,
            leader=leader,
            leader_epoch=0,
            isr=isr,
            replicas=isr,
        )
        for index, leader, isr in ((0, 1, [1]), (1, 2, [1, 2]), (2, 1, [1]))
    ]
    fs = replicas.logs.fs
    assert isinstance(fs, MemoryFileSystem)
    fs.fail("open", errno.ENOSPC, path_part=f"{TOPIC}-2/")  # its partition.metadata
    response = run_now(
        replicas.leader_and_isr.become_leader_or_follower(
            LeaderAndIsrRequest(
                controller_id=1,
                controller_epoch=1,
                topic_states=[LeaderAndIsrTopicState(TOPIC, TOPIC_ID, states)],
            ),
            7,
        )
    )
    assert codes(response)[2] == ErrorCode.KAFKA_STORAGE_ERROR
    assert listener.leads == [TopicPartition(TOPIC, 0)]
    assert fetchers.following == {TopicPartition(TOPIC, 1): 2}


def test_a_leader_whose_log_is_gone_says_so(caplog: pytest.LogCaptureFixture) -> None:
    replicas = Replicas()
    replicas.order(1, epoch=3, replicas=[1], isr=[1], partition_epoch=4)
    path = replicas.log().local.directory.path
    assert replicas.manager.began_empty == {KEY: path}
    (line,) = [each.getMessage() for each in caplog.records]
    assert line.startswith(f"{TOPIC}-0 leads in leader epoch 3 without a log, and begins empty in")
    # It goes on as the leader, and says no more.
    replicas.order(1, epoch=4, replicas=[1], isr=[1], partition_epoch=5)
    assert len(caplog.records) == 1
    # Another broker has the records.
    replicas.order(2, epoch=5, replicas=[1, 2], isr=[2], partition_epoch=6)
    assert replicas.manager.began_empty == {}


def test_a_replica_that_has_nothing_yet_says_nothing(caplog: pytest.LogCaptureFixture) -> None:
    replicas = Replicas()
    replicas.order(2, epoch=7, replicas=[1, 2], partition_epoch=4)  # a reassignment
    replicas.order(1, epoch=8, replicas=[1, 2], partition_epoch=5)
    replicas.order(1, index=1, epoch=0, replicas=[1])
    assert replicas.manager.began_empty == {}
    assert caplog.text == ""


def test_a_deleted_partition_is_not_missing_any_more() -> None:
    replicas = Replicas()
    replicas.order(1, epoch=3, replicas=[1], partition_epoch=4)
    assert stop(replicas, epoch=4) == ErrorCode.NONE
    assert replicas.manager.began_empty == {}
