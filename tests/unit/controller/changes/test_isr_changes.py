"""AlterPartition, and ISRs and log directories announced in the tree."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from ottla.controller.changes.isr_changes import refresh_leadership
from ottla.controller.lifecycle import ISR_METADATA_DELAY_MS
from ottla.controller.model import LeaderAndIsr, ReplicaAssignment
from ottla.controller.tree import znodes
from ottla.controller.tree.store import CreateOp, StoreError
from ottla.controller.tree.znodes_admin import encode_isr_change, encode_log_dir_event
from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages.alter_partition import (
    AlterPartitionRequest,
    AlterPartitionRequestPartitionData,
    AlterPartitionRequestTopicData,
    BrokerState,
)
from ottla.protocol.messages.leader_and_isr import LeaderAndIsrRequest
from ottla.protocol.messages.update_metadata import UpdateMetadataRequest
from ottla.protocol.topics import TopicPartition
from tests.doubles.controller_cluster import Cluster, settle

T0 = TopicPartition("t", 0)
Change = Callable[[AlterPartitionRequest, AlterPartitionRequestPartitionData], object]


async def alter(
    cluster: Cluster, isr: tuple[int, ...], change: Change | None = None, version: int = 3
) -> tuple[int, int]:
    """(error of the whole, error of the partition) for a request that ``change`` spoils."""
    request = cluster.isr_request("t", isr)
    partition = request.topics[0].partitions[0]
    if version < 3:
        partition.new_isr = list(isr)
        partition.new_isr_with_epochs = []
    if version < 2:
        request.topics[0].topic_name = "t"
    if change is not None:
        change(request, partition)
    response = await cluster.controller.alter_partition(request, version)
    await settle()
    if response.error_code:
        return response.error_code, -1
    return 0, response.topics[0].partitions[0].error_code


@pytest.fixture
async def shared(cluster: Cluster) -> Cluster:
    await cluster.create_topic("t", (1, 2, 3))
    return cluster


async def test_isr_shrinks_and_grows(shared: Cluster) -> None:
    row = await shared.change_isr("t", (1, 3))
    assert (row.leader_id, row.leader_epoch, row.isr, row.partition_epoch) == (1, 0, [1, 3], 1)
    state = shared.state("t")
    assert (state.isr, state.leader_epoch, state.partition_epoch) == ((1, 3), 0, 1)
    for broker in shared.brokers.values():
        assert broker.metadata[T0].isr == (1, 3)
    await shared.change_isr("t", (1, 2, 3))
    assert shared.state("t").isr == (1, 2, 3)


@pytest.mark.parametrize("version", [0, 1, 2, 3])
async def test_every_version(shared: Cluster, version: int) -> None:
    assert await alter(shared, (1, 2), version=version) == (0, 0)
    assert shared.state("t").isr == (1, 2)
    assert await alter(shared, (1, 2, 3), version=version) == (0, 0)
    assert shared.state("t").isr == (1, 2, 3)
    code = ErrorCode.INELIGIBLE_REPLICA if version >= 2 else ErrorCode.OPERATION_NOT_ATTEMPTED
    assert await alter(shared, (1, 2, 3, 9), version=version) == (0, code)


async def test_response_that_was_lost_is_given_again(shared: Cluster) -> None:
    request = shared.isr_request("t", (1, 2))
    first = await shared.controller.alter_partition(request, 3)
    again = await shared.controller.alter_partition(request, 3)
    assert again.topics[0].partitions[0] == first.topics[0].partitions[0]
    assert shared.state("t").partition_epoch == 1


def _set(name: str, value: object) -> Change:
    return lambda _request, partition: setattr(partition, name, value)


@pytest.mark.parametrize(
    ("change", "code"),
    [
        (_set("leader_epoch", 1), ErrorCode.NOT_CONTROLLER),
        (_set("partition_epoch", 9), ErrorCode.NOT_CONTROLLER),
        (_set("leader_epoch", -1), ErrorCode.FENCED_LEADER_EPOCH),
        (_set("partition_epoch", -1), ErrorCode.INVALID_UPDATE_VERSION),
        (_set("leader_recovery_state", 1), ErrorCode.INVALID_REQUEST),
        (_set("new_isr_with_epochs", [BrokerState(broker_id=2)]), ErrorCode.INVALID_REQUEST),
        (_set("new_isr_with_epochs", []), ErrorCode.INVALID_REQUEST),
        (
            _set("new_isr_with_epochs", [BrokerState(broker_id=1), BrokerState(broker_id=9)]),
            ErrorCode.INELIGIBLE_REPLICA,
        ),
        (_set("partition_index", 5), ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
    ],
)
async def test_refused_changes(shared: Cluster, change: Change, code: int) -> None:
    before = shared.state("t")
    assert await alter(shared, (1, 2), change) == (0, code)
    assert shared.state("t") == before


async def test_replica_that_restarted_since_the_leader_saw_it_is_ineligible(
    shared: Cluster,
) -> None:
    """KIP-903."""
    await shared.change_isr("t", (1, 3))
    epoch = shared.brokers[2].broker_epoch
    members = [BrokerState(broker_id=1), BrokerState(broker_id=2, broker_epoch=epoch - 1)]
    wrong = _set("new_isr_with_epochs", members)
    assert await alter(shared, (1, 2), wrong) == (0, ErrorCode.INELIGIBLE_REPLICA)
    members[1].broker_epoch = epoch
    assert await alter(shared, (1, 2), wrong) == (0, 0)


async def test_replica_that_restarted_unheard_of_is_ineligible(
    shared: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its broker epoch is the one that the controller knows, and it may be empty by now."""
    await shared.change_isr("t", (1, 3))
    before = shared.brokers[2].broker_epoch
    broker_changes = shared.controller._lifecycle.broker_changes

    async def not_yet() -> None: ...

    with monkeypatch.context() as patch:
        patch.setattr(broker_changes, "on_broker_change", not_yet)
        await shared.add_broker(2, unclean_shutdown=True)
    assert shared.controller.context.brokers[2].epoch == before < shared.brokers[2].broker_epoch
    assert await alter(shared, (1, 2, 3)) == (0, ErrorCode.INELIGIBLE_REPLICA)
    assert await alter(shared, (1, 2, 3), version=1) == (0, ErrorCode.OPERATION_NOT_ATTEMPTED)
    assert await alter(shared, (1,)) == (0, 0)  # no replica joins
    await broker_changes.on_broker_change()
    assert await alter(shared, (1, 2, 3)) == (0, 0)


async def test_other_isrs_of_a_request_change_while_one_is_refused(
    shared: Cluster,
) -> None:
    """They are written in one multi first."""
    await shared.create_topic("other", (1, 2, 3))
    await shared.change_isr("t", (1, 3))
    shared.controller._lifecycle.processed_brokers.set_version(0)
    request = shared.isr_request("t", (1, 2, 3))
    request.topics += shared.isr_request("other", (1, 2)).topics
    response = await shared.controller.alter_partition(request, 3)
    found = {row.topic_id: row.partitions[0].error_code for row in response.topics}
    assert sorted(found.values()) == [0, ErrorCode.INELIGIBLE_REPLICA]
    assert (shared.state("t").isr, shared.state("other").isr) == ((1, 3), (1, 2))


async def test_replica_outside_the_assignment_is_ineligible(cluster: Cluster) -> None:
    await cluster.create_topic("t", (1, 2))
    assert await alter(cluster, (1, 3)) == (0, ErrorCode.INELIGIBLE_REPLICA)
    assert await alter(cluster, (1, 3), version=1) == (0, ErrorCode.OPERATION_NOT_ATTEMPTED)


async def test_isr_that_holds_a_broker_outside_the_assignment_can_change(shared: Cluster) -> None:
    """A reassignment has taken it out, and the leader does not know yet."""
    shared.controller.context.set_assignment(T0, ReplicaAssignment((1, 2)))
    assert await alter(shared, (1, 3)) == (0, 0)
    assert shared.state("t").isr == (1, 3)
    assert await alter(shared, (1,)) == (0, 0)
    assert await alter(shared, (1, 3)) == (0, ErrorCode.INELIGIBLE_REPLICA)


async def test_broker_on_its_way_out_is_ineligible(shared: Cluster) -> None:
    await shared.change_isr("t", (1, 3))
    await shared.controller.controlled_shutdown(2, -1)
    assert await alter(shared, (1, 2, 3)) == (0, ErrorCode.INELIGIBLE_REPLICA)


async def test_follower_cannot_change_the_isr(shared: Cluster) -> None:
    def by_another(request: AlterPartitionRequest, _: object) -> None:
        request.broker_id = 2
        request.broker_epoch = shared.brokers[2].broker_epoch

    assert await alter(shared, (1, 2), by_another) == (0, ErrorCode.INVALID_REQUEST)


async def test_broker_of_an_earlier_run_is_stale(shared: Cluster) -> None:
    def older(request: AlterPartitionRequest, _: object) -> None:
        request.broker_epoch -= 1

    assert await alter(shared, (1, 2), older) == (ErrorCode.STALE_BROKER_EPOCH, -1)

    def unknown(request: AlterPartitionRequest, _: object) -> None:
        request.broker_id = 9

    assert await alter(shared, (1, 2), unknown) == (ErrorCode.STALE_BROKER_EPOCH, -1)


async def test_unknown_topic_id_is_named_in_the_response(shared: Cluster) -> None:
    request = shared.isr_request("t", (1, 2))
    request.topics.append(
        AlterPartitionRequestTopicData(
            topic_id=b"?" * 16, partitions=[AlterPartitionRequestPartitionData(partition_index=4)]
        )
    )
    response = await shared.controller.alter_partition(request, 3)
    rows = {topic.topic_id: topic.partitions[0] for topic in response.topics}
    assert rows[b"?" * 16].error_code == ErrorCode.UNKNOWN_TOPIC_ID
    assert rows[b"?" * 16].partition_index == 4
    assert sorted(row.error_code for row in rows.values()) == [0, ErrorCode.UNKNOWN_TOPIC_ID]


async def test_state_that_was_changed_in_the_tree(shared: Cluster) -> None:
    request = shared.isr_request("t", (1, 2))
    changed = shared.state("t")._replace(isr=(1,))
    shared.set_node(znodes.state_path(T0), znodes.encode_state(changed))
    response = await shared.controller.alter_partition(request, 3)
    assert response.topics[0].partitions[0].error_code == ErrorCode.INVALID_UPDATE_VERSION
    assert await alter(shared, (1, 2)) == (0, 0)  # now we know it, too
    assert shared.state("t").isr == (1, 2)


async def test_recovering_leader_recovers(cluster: Cluster) -> None:
    await cluster.create_topic("t", (2, 3))
    await cluster.change_isr("t", (2,))
    await cluster.remove_broker(2)
    await cluster.controller.elect_leaders([T0], 1, timeout_ms=1)
    assert cluster.state("t").recovery_state == 1
    await cluster.add_broker(2)
    recovering = _set("leader_recovery_state", 1)
    assert await alter(cluster, (3, 2), recovering) == (0, ErrorCode.INVALID_REQUEST)
    assert await alter(cluster, (3,)) == (0, 0)
    assert cluster.state("t").recovery_state == 0
    assert await alter(cluster, (3, 2)) == (0, 0)


async def test_announced_isr_changes_are_taken_in_and_deleted(shared: Cluster) -> None:
    changed = shared.state("t")._replace(isr=(1,))
    shared.set_node(znodes.state_path(T0), znodes.encode_state(changed))
    unknown = TopicPartition("nothing", 0)
    shared.write(
        CreateOp(znodes.ISR_CHANGE_PREFIX, b"broken", sequential=True),
        CreateOp(znodes.ISR_CHANGE_PREFIX, encode_isr_change([unknown, T0]), sequential=True),
    )
    await settle()
    assert shared.controller.context.leadership[T0].isr == (1,)
    assert shared.brokers[3].metadata[T0].isr == (1,)
    assert shared.tree.nodes[znodes.ISR_CHANGE_NOTIFICATION].children == set()


async def test_failed_log_directory(shared: Cluster) -> None:
    shared.brokers[1].lost_directory.add(T0)
    shared.write(
        CreateOp(znodes.LOG_DIR_EVENT_PREFIX, b"broken", sequential=True),
        CreateOp(znodes.LOG_DIR_EVENT_PREFIX, encode_log_dir_event(1), sequential=True),
    )
    await settle()
    assert shared.controller.context.offline_directories[1] == {T0}
    state = shared.state("t")
    assert (state.leader, set(state.isr)) == (2, {2, 3})
    assert shared.tree.nodes[znodes.LOG_DIR_EVENT_NOTIFICATION].children == set()
    await shared.remove_broker(3)
    assert shared.leader("t") == 2  # 1 cannot lead


async def test_failed_log_directory_of_a_broker_that_is_gone(shared: Cluster) -> None:
    shared.sent.clear()
    shared.write(CreateOp(znodes.LOG_DIR_EVENT_PREFIX, encode_log_dir_event(9), sequential=True))
    await settle()
    assert shared.requests(LeaderAndIsrRequest) == []
    assert shared.tree.nodes[znodes.LOG_DIR_EVENT_NOTIFICATION].children == set()


async def test_new_controller_deletes_old_announcements(shared: Cluster) -> None:
    await shared.controller.stop(timeout_ms=0)
    await settle()
    path = f"{znodes.ISR_CHANGE_PREFIX}0000000007"
    shared.create_node(path, encode_isr_change([T0]))
    again = Cluster((1,))
    again.tree = shared.tree
    parts = shared.controller._lifecycle
    parts.writer.set_epoch(1, shared.tree.nodes[znodes.CONTROLLER_EPOCH].version)
    await parts.isr_changes.discard_notifications()
    assert not shared.exists(path)


async def test_leader_that_was_elected_cleanly_does_not_recover(shared: Cluster) -> None:
    recovering = _set("leader_recovery_state", 1)
    assert await alter(shared, (1,), recovering) == (0, ErrorCode.INVALID_REQUEST)
    assert shared.state("t").isr == (1, 2, 3)


async def test_topic_whose_deletion_has_started_changes_no_isr(shared: Cluster) -> None:
    shared.controller.context.topics_with_deletion_started.add("t")
    assert await alter(shared, (1, 2)) == (0, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
    assert shared.state("t").isr == (1, 2, 3)


async def test_unknown_topic_does_not_stop_the_others(shared: Cluster) -> None:
    await shared.create_topic("u", (1, 2))
    request = shared.isr_request("t", (1, 2))
    strange = shared.isr_request("t", (1, 2)).topics[0]
    strange.topic_id = b"?" * 16
    request.topics.insert(0, strange)
    request.topics += shared.isr_request("u", (1,)).topics
    response = await shared.controller.alter_partition(request, 3)
    await settle()
    rows = {topic.topic_id: topic.partitions for topic in response.topics}
    ids = shared.controller.context.topic_ids
    assert [rows[ids[name]][0].isr for name in ("t", "u")] == [[1, 2], [1]]
    assert [row.error_code for row in rows[b"?" * 16]] == [ErrorCode.UNKNOWN_TOPIC_ID]


async def test_state_that_cannot_be_written(
    shared: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def fail(states: dict[TopicPartition, LeaderAndIsr], _joined: object) -> object:
        return dict.fromkeys(states, StoreError("x", "a broken node")), []

    monkeypatch.setattr(shared.controller._lifecycle.writer, "update_states", fail)
    assert await alter(shared, (1, 2)) == (0, ErrorCode.UNKNOWN_SERVER_ERROR)
    assert shared.controller.context.leadership[T0].isr == (1, 2, 3)


async def test_states_that_cannot_be_read_do_not_stop_the_others(cluster: Cluster) -> None:
    await cluster.create_topic("t", (1, 2), (1, 2), (1, 2))
    partitions = [TopicPartition("t", each) for each in range(3)]
    cluster.delete_node(znodes.state_path(partitions[0]))
    cluster.set_node(znodes.state_path(partitions[1]), b"broken")
    changed = cluster.state("t", 2)._replace(isr=(1,))
    cluster.set_node(znodes.state_path(partitions[2]), znodes.encode_state(changed))
    components = cluster.controller._lifecycle
    zxids = await refresh_leadership(components.context, components.writer, partitions)
    node = cluster.tree.nodes[znodes.state_path(partitions[2])]
    assert zxids == {partitions[2]: node.mzxid}
    assert components.context.leadership[partitions[2]].isr == (1,)


async def test_announced_isr_change_completes_a_reassignment(shared: Cluster) -> None:
    """A leader with an old protocol version writes the ISR itself."""
    await shared.create_topic("u", (1, 2))
    where = TopicPartition("u", 0)
    await shared.controller.alter_partition_reassignments({where: (1, 3)})
    await settle()
    changed = shared.state("u")._replace(isr=(1, 2, 3))
    shared.set_node(znodes.state_path(where), znodes.encode_state(changed))
    assert shared.topic("u").assignments[0].is_being_reassigned
    change = encode_isr_change([where])
    shared.write(CreateOp(znodes.ISR_CHANGE_PREFIX, change, sequential=True))
    await settle()
    assert shared.topic("u").assignments[0] == ReplicaAssignment((1, 3))


async def test_several_partitions_of_one_topic(cluster: Cluster) -> None:
    await cluster.create_topic("t", (1, 2), (1, 2), (1, 2))
    request = cluster.isr_request("t", (1,))
    for index in (1, 2):
        request.topics[0].partitions += cluster.isr_request("t", (1,), index).topics[0].partitions
    response = await cluster.controller.alter_partition(request, 3)
    await settle()
    (topic,) = response.topics
    assert [(row.partition_index, row.isr) for row in topic.partitions] == [
        (0, [1]),
        (1, [1]),
        (2, [1]),
    ]


@pytest.mark.parametrize(
    ("prefix", "data"),
    [
        (znodes.ISR_CHANGE_PREFIX, encode_isr_change([T0])),
        (znodes.LOG_DIR_EVENT_PREFIX, encode_log_dir_event(1)),
    ],
)
async def test_announcement_that_goes_while_the_others_are_read(
    shared: Cluster, monkeypatch: pytest.MonkeyPatch, prefix: str, data: bytes
) -> None:
    """A controller that resigns may still delete what it has handled."""
    original = shared.store.get_many

    async def first_is_gone(paths: list[str]) -> object:
        found = list(await original(paths))
        if paths and paths[0].startswith(prefix):
            found[0] = None
        return found

    monkeypatch.setattr(shared.store, "get_many", first_is_gone)
    shared.sent.clear()
    shared.write(*(CreateOp(prefix, data, sequential=True) for _ in range(2)))
    await settle()
    assert shared.requests(UpdateMetadataRequest) or shared.requests(LeaderAndIsrRequest)


async def test_isr_changes_that_follow_each_other_are_one_update_metadata(shared: Cluster) -> None:
    """As when a broker returns, and each leader adds it to its ISRs."""
    await shared.create_topic("u", (2, 1, 3))
    shared.sent.clear()
    for topic, isr in (("t", (1, 3)), ("u", (2, 1)), ("t", (1, 3, 2))):
        request = shared.isr_request(topic, isr)
        response = await shared.controller.alter_partition(request, 3)
        assert response.topics[0].partitions[0].error_code == 0
        shared.runtime.advance(ISR_METADATA_DELAY_MS // 3 - 1)
        await settle()
    assert shared.requests(UpdateMetadataRequest) == []
    shared.runtime.advance(ISR_METADATA_DELAY_MS)
    await settle()
    for broker_id, broker in shared.brokers.items():
        (request_,) = shared.requests(UpdateMetadataRequest, broker_id)
        assert [topic.topic_name for topic in request_.topic_states] == ["t", "u"]
        assert broker.metadata[T0].isr == (1, 3, 2)
    # The next one after a pause is not forgotten.
    await shared.change_isr("t", (1, 3))
    assert shared.brokers[2].metadata[T0].isr == (1, 3)


async def test_isr_changes_are_not_sent_by_a_controller_that_has_resigned(shared: Cluster) -> None:
    await shared.controller.alter_partition(shared.isr_request("t", (1, 3)), 3)
    shared.controller._lifecycle._resign(2)
    shared.sent.clear()
    shared.runtime.advance(ISR_METADATA_DELAY_MS)
    await settle()
    assert shared.sent == []


async def test_isr_changes_of_deleted_topics_are_not_sent(shared: Cluster) -> None:
    await shared.controller.alter_partition(shared.isr_request("t", (1, 3)), 3)
    await shared.controller.delete_topics(["t"], timeout_ms=0)
    await settle()
    shared.sent.clear()
    shared.runtime.advance(ISR_METADATA_DELAY_MS)
    await settle()
    assert shared.requests(UpdateMetadataRequest) == []
