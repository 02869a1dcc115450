"""Brokers that come, go, come back, or change."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from ottla.controller.lifecycle import RESEND_DELAY_MS, RETRY_DELAY_MS
from ottla.controller.model import BrokerInfo, Endpoint
from ottla.controller.registration import BrokerRegistration
from ottla.controller.requests.broker_channels import Callback
from ottla.controller.tree import znodes
from ottla.controller.tree.store import ConnectionLost, CreateOp, DeleteOp, Stat
from ottla.controller.tree.znodes_admin import decode_processed_brokers
from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.protocol.message import Message
from ottla.protocol.messages.leader_and_isr import (
    LeaderAndIsrPartitionError,
    LeaderAndIsrRequest,
    LeaderAndIsrResponse,
    LeaderAndIsrTopicError,
)
from ottla.protocol.messages.stop_replica import StopReplicaRequest
from ottla.protocol.messages.update_metadata import UpdateMetadataRequest
from ottla.protocol.topics import TopicPartition
from tests.doubles.controller_cluster import Cluster, broker_info, settle

T0 = TopicPartition("t", 0)


async def test_new_broker_is_sent_everything_and_the_others_its_start(cluster: Cluster) -> None:
    await cluster.create_topic("t", (1, 2), (2, 3))
    cluster.sent.clear()
    await cluster.add_broker(4)
    assert set(cluster.brokers[4].metadata) == {T0, TopicPartition("t", 1)}
    for broker in cluster.brokers.values():
        assert broker.live_brokers == {1, 2, 3, 4}
    to_others = cluster.requests(UpdateMetadataRequest, 1)
    assert [request.topic_states for request in to_others] == [[]]


async def test_a_registration_with_a_name_that_is_no_id(cluster: Cluster) -> None:
    """No response with it could be encoded, and no client would get any metadata."""
    data = znodes.encode_broker(broker_info(4), 0)
    for name in ("99999999999", "x"):
        cluster.create_node(f"{znodes.BROKER_IDS}/{name}", data)
    await cluster.add_broker(4)
    assert cluster.brokers[2].live_brokers == {1, 2, 3, 4}


async def test_metadata_goes_before_orders(cluster: Cluster) -> None:
    """A follower needs the address of its leader before its LeaderAndIsr."""
    await cluster.create_topic("t", (1, 2))
    await cluster.remove_broker(2)
    cluster.sent.clear()
    await cluster.add_broker(2)
    kinds = [type(request) for to, request in cluster.sent if to == 2]
    assert kinds[:2] == [UpdateMetadataRequest, LeaderAndIsrRequest]


async def test_dead_broker_loses_its_leaderships_and_places(cluster: Cluster) -> None:
    await cluster.create_topic("t", (2, 3), (3, 2), (1, 2), (2, 1))
    await cluster.remove_broker(2)
    assert [cluster.leader("t", index) for index in range(4)] == [3, 3, 1, 1]
    assert all(2 not in cluster.state("t", index).isr for index in range(4))
    assert cluster.brokers[1].live_brokers == {1, 3}
    assert cluster.brokers[3].hosted[T0].leader == 3


async def test_processed_registrations_are_stored(cluster: Cluster) -> None:
    def stored() -> dict[int, int]:
        return decode_processed_brokers(cluster.tree.nodes[znodes.PROCESSED_BROKERS].data)

    def registered() -> dict[int, int]:
        return {each: broker.broker_epoch for each, broker in cluster.brokers.items()}

    assert stored() == registered()
    await cluster.remove_broker(2)
    assert sorted(stored()) == [1, 3]
    await cluster.add_broker(2)
    assert stored() == registered()


async def test_cleanly_restarted_replica_is_the_last_one_in_the_isr(cluster: Cluster) -> None:
    """All in-sync replicas restart before the controller has handled their failure."""
    await cluster.create_topic("t", (2, 3), (3, 2))
    context = cluster.controller.context
    for broker_id, unclean in ((2, False), (3, True)):
        registered = context.brokers[broker_id]
        path = znodes.broker_path(broker_id)
        payload = znodes.encode_broker(registered._replace(unclean_shutdown=unclean), 0)
        # In one transaction: the controller gets one event for both.
        context.brokers[broker_id] = registered._replace(epoch=registered.epoch - 100)
        cluster.set_node(path, payload)
    cluster.create_node("/brokers/ids/x")  # the children change
    await settle()
    assert [cluster.state("t", index).leader for index in (0, 1)] == [2, 2]
    assert [cluster.state("t", index).isr for index in (0, 1)] == [(2,), (2,)]


async def test_last_replica_in_sync_keeps_its_place_and_leads_again(cluster: Cluster) -> None:
    await cluster.create_topic("t", (2, 3))
    await cluster.change_isr("t", (2,))
    await cluster.remove_broker(2)
    assert (cluster.state("t").leader, cluster.state("t").isr) == (-1, (2,))
    assert cluster.brokers[1].metadata[T0].leader == -1
    assert cluster.controller.context.is_offline(T0)
    await cluster.add_broker(2)
    assert (cluster.state("t").leader, cluster.state("t").isr) == (2, (2,))
    assert not cluster.controller.context.is_offline(T0)


async def test_broker_without_replicas_is_made_known_all_the_same(cluster: Cluster) -> None:
    await cluster.remove_broker(3)
    assert cluster.brokers[1].live_brokers == {1, 2}


async def test_restart_that_was_too_quick_to_be_seen_as_two(cluster: Cluster) -> None:
    await cluster.create_topic("t", (2, 3))
    first = cluster.controller.context.brokers[2].epoch
    cluster.tree.end_session(cluster.sessions[2].session_id)
    cluster.sent.clear()
    await cluster.add_broker(2)
    assert cluster.controller.context.brokers[2].epoch > first
    assert cluster.leader("t") == 3
    assert cluster.brokers[2].hosted[T0].leader == 3
    for request in cluster.requests(LeaderAndIsrRequest, 2):
        assert request.broker_epoch == cluster.brokers[2].broker_epoch


async def test_changed_listeners_are_made_known(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    removed: list[int] = []
    monkeypatch.setattr(cluster.channels, "remove_broker", removed.append)
    registration = BrokerRegistration(cluster.sessions[2], broker_info(2), cluster.runtime.now_ms)
    epoch = cluster.controller.context.brokers[2].epoch
    moved = BrokerInfo(2, (Endpoint("PLAINTEXT", "PLAINTEXT", "elsewhere", 1),))
    await registration.update(moved)
    await settle()
    assert cluster.controller.context.brokers[2] == moved._replace(epoch=epoch)
    assert cluster.channels.open[2].endpoints == moved.endpoints
    request = cluster.requests(UpdateMetadataRequest, 3)[-1]
    assert {broker.endpoints[0].host for broker in request.live_brokers} == {"host", "elsewhere"}
    assert removed == [], "the requests in its queue would be dropped, and never sent again"


@pytest.mark.parametrize("is_loaded", [False, True])
async def test_listeners_that_change_while_the_controller_handles_the_start(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch, is_loaded: bool
) -> None:
    """Just after its registration was read."""
    moved = BrokerInfo(4, (Endpoint("PLAINTEXT", "PLAINTEXT", "elsewhere", 1),))
    channels = cluster.channels
    original = channels.add_broker

    def add(broker: BrokerInfo) -> None:
        original(broker)
        if broker.broker_id == 4:
            monkeypatch.setattr(channels, "add_broker", original)
            cluster.set_node(znodes.broker_path(4), znodes.encode_broker(moved, 0))

    if is_loaded:
        await cluster.add_broker(4)
        monkeypatch.setattr(channels, "add_broker", add)
        cluster.delete_node(znodes.CONTROLLER)
        await settle()
    else:
        monkeypatch.setattr(channels, "add_broker", add)
        await cluster.add_broker(4)
    assert cluster.controller.context.brokers[4].endpoints == moved.endpoints
    assert channels.open[4].endpoints == moved.endpoints


async def test_node_written_without_a_change_is_no_news(cluster: Cluster) -> None:
    cluster.sent.clear()
    path = znodes.broker_path(2)
    cluster.set_node(path, cluster.tree.nodes[path].data)
    await settle()
    assert cluster.sent == []


async def test_broker_that_cannot_be_read_is_left_out(cluster: Cluster) -> None:
    cluster.create_node(znodes.broker_path(7), b"{")
    cluster.create_node(f"{znodes.BROKER_IDS}/strange", b"")
    await settle()
    assert sorted(cluster.controller.context.brokers) == [1, 2, 3]


async def test_overflown_line_gets_the_whole_state_again(cluster: Cluster) -> None:
    await cluster.create_topic("t", (1, 2))
    cluster.sent.clear()
    cluster.controller.resend_all(2)
    await settle()
    states = cluster.requests(LeaderAndIsrRequest, 2)
    assert states[0].topic_states[0].topic_name == "t"
    assert cluster.requests(UpdateMetadataRequest, 2)
    cluster.controller.resend_all(9)  # gone meanwhile
    await settle()


async def test_replica_is_deleted_after_its_stop_replica_was_dropped(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A reassignment is complete, but the queue of the former broker overflowed."""
    await cluster.create_topic("t", (1, 2), (1, 2))
    real = cluster.channels.send

    def drop(
        broker_id: int, request: Message, version: int, callback: Callback, *encoded: Any
    ) -> None:
        if broker_id == 2 and isinstance(request, StopReplicaRequest):
            callback(None)
        else:
            real(broker_id, request, version, callback, *encoded)

    monkeypatch.setattr(cluster.channels, "send", drop)
    for partition in (T0, TopicPartition("t", 1)):
        await cluster.controller.alter_partition_reassignments({partition: (1, 3)})
        await settle()
        await cluster.change_isr("t", (1, 2, 3), partition[1])
        assert cluster.state("t", partition[1]).isr == (1, 3)
        assert partition in cluster.brokers[2].hosted
    await cluster.controller.alter_partition_reassignments({TopicPartition("t", 1): (1, 2)})
    await settle()
    monkeypatch.undo()
    cluster.controller.resend_all(2)
    await settle()
    assert set(cluster.brokers[2].hosted) == {TopicPartition("t", 1)}  # assigned to it again
    cluster.sent.clear()
    cluster.controller.resend_all(2)
    await settle()
    assert cluster.requests(StopReplicaRequest) == []  # once


async def test_dropped_stop_replica_is_not_for_a_broker_that_restarted(cluster: Cluster) -> None:
    batch = cluster.controller._lifecycle.batch
    await cluster.create_topic("t", (1, 3))
    for _ in range(2):
        batch.add_stop_replica((2,), T0, delete=True)
        cluster.channels.remove_broker(2)  # the request is dropped
        await batch.send(1)
        cluster.channels.add_broker(cluster.controller.context.brokers[2])
        cluster.sent.clear()
        batch.add_dropped_deletions(2)
        await batch.send(1)
        assert len(cluster.requests(StopReplicaRequest, 2)) == 1
    batch.add_stop_replica((2,), T0, delete=True)
    cluster.channels.remove_broker(2)
    await batch.send(1)
    cluster.channels.add_broker(cluster.controller.context.brokers[2])
    await cluster.remove_broker(2)
    await cluster.add_broker(2)
    cluster.sent.clear()
    batch.add_dropped_deletions(2)
    batch.add_dropped_deletions(9)
    await batch.send(1)
    assert cluster.requests(StopReplicaRequest) == []
    assert batch._dropped_deletions == {}


async def test_deletion_continues_after_its_stop_replica_was_dropped(cluster: Cluster) -> None:
    await cluster.create_topic("t", (1, 2))
    cluster.channels.silent.add(2)
    await cluster.controller.delete_topics(["t"], timeout_ms=0)
    await settle()
    assert cluster.exists(znodes.topic_path("t"))
    cluster.channels.silent.clear()
    cluster.controller.resend_all(2)
    await settle()
    assert not cluster.exists(znodes.topic_path("t"))
    assert T0 not in cluster.brokers[2].hosted


def refusing(cluster: Cluster, code: int) -> LeaderAndIsrResponse:
    topic_id = cluster.topic("t").topic_id
    assert topic_id is not None
    row = LeaderAndIsrPartitionError(partition_index=0, error_code=code)
    return LeaderAndIsrResponse(
        topics=[LeaderAndIsrTopicError(topic_id=topic_id, partition_errors=[row])]
    )


async def test_lost_directory_is_known_until_the_replica_is_fine_again(cluster: Cluster) -> None:
    await cluster.create_topic("t", (2, 3))
    epoch = cluster.brokers[2].broker_epoch
    life = cluster.controller._lifecycle
    life._on_leader_and_isr(
        2, epoch, refusing(cluster, ErrorCode.KAFKA_STORAGE_ERROR), LeaderAndIsrRequest()
    )
    await settle()
    assert cluster.leader("t") == 3
    assert not cluster.controller.context.is_online(2, T0)
    life._on_leader_and_isr(2, epoch, refusing(cluster, ErrorCode.NONE), LeaderAndIsrRequest())
    await settle()
    assert cluster.controller.context.is_online(2, T0)


async def test_a_replica_that_is_fine_again_leads_where_no_other_can(cluster: Cluster) -> None:
    await cluster.create_topic("t", (2,))
    epoch = cluster.brokers[2].broker_epoch
    life = cluster.controller._lifecycle
    life._on_leader_and_isr(
        2, epoch, refusing(cluster, ErrorCode.KAFKA_STORAGE_ERROR), LeaderAndIsrRequest()
    )
    await settle()
    assert cluster.leader("t") == -1
    life._on_leader_and_isr(2, epoch, refusing(cluster, ErrorCode.NONE), LeaderAndIsrRequest())
    await settle()
    assert cluster.leader("t") == 2


async def test_a_replica_that_is_fine_again_gets_what_it_missed(cluster: Cluster) -> None:
    """The same request was sent twice, and failed the first time only: the one about the new leader
    was not sent to the replica, which was offline then."""
    await cluster.create_topic("t", (2, 3))
    epoch = cluster.brokers[2].broker_epoch
    life = cluster.controller._lifecycle
    life._on_leader_and_isr(
        2, epoch, refusing(cluster, ErrorCode.KAFKA_STORAGE_ERROR), LeaderAndIsrRequest()
    )
    await settle()
    assert cluster.leader("t") == 3
    cluster.sent.clear()
    life._on_leader_and_isr(2, epoch, refusing(cluster, ErrorCode.NONE), LeaderAndIsrRequest())
    await settle()
    (request,) = cluster.requests(LeaderAndIsrRequest, 2)
    assert [state.leader for state in request.topic_states[0].partition_states] == [3]
    cluster.sent.clear()
    life._on_leader_and_isr(2, epoch, refusing(cluster, ErrorCode.NONE), LeaderAndIsrRequest())
    await settle()
    assert cluster.requests(LeaderAndIsrRequest) == []


@pytest.mark.parametrize("code", [ErrorCode.NONE, ErrorCode.STALE_CONTROLLER_EPOCH])
async def test_a_topic_is_deleted_once_its_replicas_are_fine_again(
    cluster: Cluster, code: ErrorCode
) -> None:
    """No broker starts and no reassignment ends, which would resume the deletion. The broker
    refuses a request that it has applied before: the response to the first one was lost."""
    await cluster.create_topic("t", (2, 3))
    epoch = cluster.brokers[2].broker_epoch
    life = cluster.controller._lifecycle
    life._on_leader_and_isr(
        2, epoch, refusing(cluster, ErrorCode.KAFKA_STORAGE_ERROR), LeaderAndIsrRequest()
    )
    await settle()
    cluster.brokers[2].lost_directory.add(T0)
    cluster.create_node(znodes.delete_topic_path("t"))
    await settle()
    assert cluster.exists(znodes.topic_path("t"))
    cluster.brokers[2].lost_directory.clear()
    life._on_leader_and_isr(2, epoch, refusing(cluster, code), LeaderAndIsrRequest())
    await settle()
    assert not cluster.exists(znodes.topic_path("t"))


async def test_a_replica_that_cannot_start_is_deleted_though_it_is_offline(
    cluster: Cluster,
) -> None:
    """The LeaderAndIsr before the StopReplica failed: the replica never comes online again."""
    await cluster.create_topic("t", (2, 3))
    epoch = cluster.brokers[2].broker_epoch
    life = cluster.controller._lifecycle
    refused = refusing(cluster, ErrorCode.KAFKA_STORAGE_ERROR)
    cluster.channels.silent.add(2)
    cluster.create_node(znodes.delete_topic_path("t"))
    await settle()
    cluster.channels.silent.clear()
    life._on_leader_and_isr(2, epoch, refused, LeaderAndIsrRequest())
    await settle()
    assert "t" in cluster.controller.context.topics_ineligible_for_deletion
    life._on_deletion(2, epoch, {T0: ErrorCode.NONE})
    await settle()
    assert not cluster.exists(znodes.topic_path("t"))
    assert T0 not in cluster.controller.context.offline_directories[2]


async def test_leader_and_isr_with_a_top_level_error_is_sent_again(cluster: Cluster) -> None:
    """The broker has applied nothing of it: its partitions would stay without a leader."""
    await cluster.create_topic("t", (2, 3))
    epoch = cluster.brokers[2].broker_epoch
    life = cluster.controller._lifecycle
    cluster.sent.clear()
    for _ in range(3):
        refused = LeaderAndIsrResponse(error_code=ErrorCode.UNKNOWN_SERVER_ERROR)
        life._on_leader_and_isr(2, epoch, refused, LeaderAndIsrRequest())
        await settle()
    assert cluster.requests(LeaderAndIsrRequest) == []
    cluster.runtime.advance(RESEND_DELAY_MS)
    await settle()
    (again,) = cluster.requests(LeaderAndIsrRequest, 2)
    assert [topic.topic_name for topic in again.topic_states] == ["t"]
    for stale in (ErrorCode.STALE_BROKER_EPOCH, ErrorCode.STALE_CONTROLLER_EPOCH):
        life._on_leader_and_isr(
            2, epoch, LeaderAndIsrResponse(error_code=stale), LeaderAndIsrRequest()
        )
    cluster.sent.clear()
    await settle()
    cluster.runtime.advance(RESEND_DELAY_MS)
    await settle()
    assert cluster.sent == []


async def test_metadata_that_a_broker_failed_to_take_are_sent_again(cluster: Cluster) -> None:
    await cluster.create_topic("t", (2, 3))
    life = cluster.controller._lifecycle
    cluster.sent.clear()
    life._on_metadata(2, ErrorCode.UNKNOWN_SERVER_ERROR)
    await settle()
    cluster.runtime.advance(RESEND_DELAY_MS)
    await settle()
    found = cluster.requests(UpdateMetadataRequest, 2)
    assert ["t"] in [[topic.topic_name for topic in each.topic_states] for each in found]
    cluster.sent.clear()
    for stale in (ErrorCode.STALE_BROKER_EPOCH, ErrorCode.STALE_CONTROLLER_EPOCH):
        life._on_metadata(2, stale)
    await settle()
    cluster.runtime.advance(RESEND_DELAY_MS)
    await settle()
    assert cluster.sent == []


async def test_response_of_an_earlier_run_says_nothing_about_this_one(cluster: Cluster) -> None:
    await cluster.create_topic("t", (2, 3))
    before = cluster.brokers[2].broker_epoch
    await cluster.remove_broker(2)
    await cluster.add_broker(2)
    cluster.controller._lifecycle._on_leader_and_isr(
        2, before, refusing(cluster, ErrorCode.KAFKA_STORAGE_ERROR), LeaderAndIsrRequest()
    )
    await settle()
    assert cluster.controller.context.is_online(2, T0)


async def test_rows_by_name_of_old_versions(cluster: Cluster) -> None:
    await cluster.create_topic("t", (2, 3))
    row = LeaderAndIsrPartitionError(
        topic_name="t", partition_index=0, error_code=ErrorCode.KAFKA_STORAGE_ERROR
    )
    cluster.controller._lifecycle._on_leader_and_isr(
        2,
        cluster.brokers[2].broker_epoch,
        LeaderAndIsrResponse(partition_errors=[row]),
        LeaderAndIsrRequest(),
    )
    await settle()
    assert cluster.leader("t") == 3


async def test_broker_without_the_finalised_features_is_ignored() -> None:
    cluster = Cluster((1, 2), features={"f": (1, 2)})
    await cluster.start()
    await cluster.add_broker(3, features={"f": (3, 4)})
    assert sorted(cluster.controller.context.brokers) == [1, 2]
    await cluster.stop()


async def test_broker_that_was_ignored_is_accepted_when_its_znode_is_repaired(
    cluster: Cluster,
) -> None:
    await cluster.create_topic("t", (3, 2))
    good = cluster.tree.nodes[znodes.broker_path(3)].data
    cluster.set_node(znodes.broker_path(3), b"{")
    await cluster.remove_broker(2)
    await cluster.add_broker(2)
    assert sorted(cluster.controller.context.brokers) == [1, 2]
    cluster.sent.clear()
    cluster.set_node(znodes.broker_path(3), good)
    await settle()
    assert sorted(cluster.controller.context.brokers) == [1, 2, 3]
    assert [topic.topic_name for topic in cluster.requests(LeaderAndIsrRequest, 3)[0].topic_states]


async def test_controller_that_fails_while_a_broker_restarts_leaves_no_channel(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next one would use it, with the addresses that the broker had then."""
    await cluster.create_topic("t", (2, 3))
    context = cluster.controller.context
    get_many = cluster.store.get_many

    async def lose(paths: Sequence[str]) -> list[tuple[bytes, Stat] | None]:
        if 2 not in context.brokers and cluster.controller.is_active:
            raise ConnectionLost(paths[0], "cut")
        return await get_many(paths)

    monkeypatch.setattr(cluster.store, "get_many", lose)
    path = znodes.broker_path(2)
    again = CreateOp(path, cluster.tree.nodes[path].data, ephemeral=True)
    cluster.write(DeleteOp(path), again)  # the controller hears of both at once
    cluster.brokers[2].broker_epoch = cluster.tree.nodes[path].czxid
    await settle()
    assert not cluster.controller.is_active
    assert cluster.channels.open == {}
    monkeypatch.undo()
    cluster.runtime.advance(RETRY_DELAY_MS)
    await settle()
    assert sorted(cluster.channels.open) == [1, 2, 3]


async def test_leaderships_move_and_places_are_given_up(cluster: Cluster) -> None:
    await cluster.create_topic("t", (2, 3), (3, 2), (1, 3))
    cluster.sent.clear()
    epoch = cluster.brokers[2].broker_epoch
    assert await cluster.controller.controlled_shutdown(2, epoch) == []
    await settle()
    assert [cluster.leader("t", index) for index in range(3)] == [3, 3, 1]
    assert cluster.state("t", 0).isr == (3,)
    assert cluster.state("t", 1).isr == (3,)
    stops = cluster.requests(StopReplicaRequest, 2)
    stopped = {
        TopicPartition(topic.topic_name, state.partition_index)
        for stop in stops
        for topic in stop.topic_states
        for state in topic.partition_states
    }
    assert stopped == {TopicPartition("t", 1)}  # the one it followed
    assert cluster.brokers[2].hosted[TopicPartition("t", 0)].leader == 3  # it follows until the end


async def test_leadership_that_no_broker_can_take_is_named(cluster: Cluster) -> None:
    await cluster.create_topic("t", (2, 3), (2, 1))
    await cluster.create_topic("alone", (2,))  # has no other replica and so does not count
    await cluster.change_isr("t", (2,), 1)
    remaining = await cluster.controller.controlled_shutdown(2, -1)
    assert remaining == [TopicPartition("t", 1)]
    assert cluster.leader("t", 1) == 2
    await cluster.change_isr("t", (2, 1), 1)  # the leader may still let others in
    assert await cluster.controller.controlled_shutdown(2, -1) == []
    assert cluster.leader("t", 1) == 1


async def test_nobody_waits_when_every_broker_shuts_down(cluster: Cluster) -> None:
    await cluster.create_topic("t", (2, 3), (3, 1))
    await cluster.change_isr("t", (2,), 0)
    await cluster.change_isr("t", (3,), 1)
    controlled_shutdown = cluster.controller.controlled_shutdown
    assert await controlled_shutdown(2, -1) == [TopicPartition("t", 0)]
    assert await controlled_shutdown(3, -1) == [TopicPartition("t", 1)]
    assert not cluster.controller.is_everybody_stopping
    assert await controlled_shutdown(1, -1) == []
    assert cluster.controller.is_everybody_stopping
    assert await controlled_shutdown(2, -1) == []
    await cluster.remove_broker(2)
    assert await controlled_shutdown(3, -1) == []


async def test_broker_on_its_way_out_gets_nothing_new(cluster: Cluster) -> None:
    await cluster.controller.controlled_shutdown(2, -1)
    await cluster.create_topic("t", (2, 3))
    assert cluster.leader("t") == 3
    assert cluster.state("t").isr == (3,)
    await cluster.remove_broker(2)
    assert not cluster.controller.context.shutting_down
    await cluster.add_broker(2)
    assert cluster.controller.context.is_live(2)


async def test_refusals(cluster: Cluster) -> None:
    with pytest.raises(KafkaError) as unknown:
        await cluster.controller.controlled_shutdown(9, -1)
    assert unknown.value.code == ErrorCode.BROKER_NOT_AVAILABLE
    with pytest.raises(KafkaError) as stale:
        await cluster.controller.controlled_shutdown(2, cluster.brokers[2].broker_epoch - 1)
    assert stale.value.code == ErrorCode.STALE_BROKER_EPOCH
    assert not cluster.controller.context.shutting_down


async def test_topics_on_their_way_out_are_left_alone(cluster: Cluster) -> None:
    await cluster.create_topic("t", (2, 3))
    cluster.brokers[3].refuse_deletion = True
    cluster.create_node(znodes.delete_topic_path("t"))
    await settle()
    before = cluster.state("t")
    assert await cluster.controller.controlled_shutdown(2, -1) == []
    assert cluster.state("t") == before


async def test_three_hundred_leaders_at_once(cluster: Cluster) -> None:
    await cluster.create_topic("t", *[(2, 3)] * 300)
    assert await cluster.controller.controlled_shutdown(2, -1) == []
    assert all(cluster.leader("t", index) == 3 for index in range(300))
