from __future__ import annotations

import pytest

from ottla.broker.replication.partition import (
    NEVER,
    NO_PREFERENCE,
    FollowerReplica,
    Partition,
    RackAwareReplicaSelector,
)
from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.protocol.messages.leader_and_isr import LeaderAndIsrPartitionState
from ottla.protocol.topics import TopicPartition
from tests.doubles.replicas import Replicas


def fetch(replicas: Replicas, broker_id: int, offset: int) -> None:
    """A follower fetches from `offset`, so it has all records below."""
    partition = replicas.partition()
    follower = partition.followers[broker_id]
    end = replicas.log().log_end_offset
    follower.record_fetch(offset, 0, end, partition.context.now_ms())
    partition.maybe_increment_high_watermark()


def test_alone_the_high_watermark_is_the_end() -> None:
    replicas = Replicas()
    replicas.lead()
    replicas.append(3)
    assert replicas.log().high_watermark == 3


def test_the_high_watermark_waits_for_all_in_sync() -> None:
    replicas = Replicas()
    replicas.lead(replicas=[1, 2, 3])
    replicas.append(3)
    assert replicas.log().high_watermark == 0
    fetch(replicas, 2, 3)
    assert replicas.log().high_watermark == 0
    fetch(replicas, 3, 2)
    assert replicas.log().high_watermark == 2
    fetch(replicas, 3, 3)
    assert replicas.log().high_watermark == 3


def test_the_high_watermark_never_falls() -> None:
    replicas = Replicas()
    replicas.lead(replicas=[1, 2])
    replicas.append(3)
    fetch(replicas, 2, 3)
    fetch(replicas, 2, 1)
    assert replicas.log().high_watermark == 3


def test_the_high_watermark_waits_for_a_follower_that_is_about_to_join() -> None:
    """Else it would run with the end, and the follower could never reach it."""
    replicas = Replicas()
    replicas.lead(replicas=[1, 2], isr=[1])
    replicas.append(2)
    assert replicas.log().high_watermark == 2
    fetch(replicas, 2, 2)
    replicas.append(2)
    assert replicas.log().high_watermark == 2, "it is caught up, so it is waited for"
    replicas.clock.advance(20_000)
    replicas.append(1)
    assert replicas.log().high_watermark == 5, "it lags for too long now"


def test_the_high_watermark_does_not_wait_for_a_dead_broker() -> None:
    replicas = Replicas()
    replicas.lead(replicas=[1, 2], isr=[1])
    fetch(replicas, 2, 0)
    replicas.live.discard(2)
    replicas.append(2)
    assert replicas.log().high_watermark == 2


def test_below_min_insync_replicas_the_high_watermark_stands_still() -> None:
    replicas = Replicas(min_insync_replicas=2)
    partition = replicas.lead(replicas=[1, 2], isr=[1])
    replicas.append(2)
    assert replicas.log().high_watermark == 0
    with pytest.raises(KafkaError) as caught:
        partition.check_enough_in_sync()
    assert caught.value.code == ErrorCode.NOT_ENOUGH_REPLICAS


def test_min_insync_replicas_is_never_more_than_there_are_replicas() -> None:
    replicas = Replicas(min_insync_replicas=2)
    partition = replicas.lead()
    assert partition.effective_min_isr() == 1
    partition.check_enough_in_sync()


def test_a_reader_with_another_epoch_is_fenced() -> None:
    replicas = Replicas()
    partition = replicas.lead(epoch=5)
    assert partition.log_for(5, True) is partition.log
    assert partition.log_for(-1, True) is partition.log
    for epoch, code in ((4, ErrorCode.FENCED_LEADER_EPOCH), (6, ErrorCode.UNKNOWN_LEADER_EPOCH)):
        with pytest.raises(KafkaError) as caught:
            partition.log_for(epoch, True)
        assert caught.value.code == code


def test_a_follower_is_read_only_by_those_who_may() -> None:
    replicas = Replicas()
    partition = replicas.follow(2, epoch=1)
    assert partition.log_for(1, leader_only=False) is partition.log
    with pytest.raises(KafkaError) as caught:
        partition.log_for(1, leader_only=True)
    assert caught.value.code == ErrorCode.NOT_LEADER_OR_FOLLOWER


def test_an_offline_disk_is_said() -> None:
    replicas = Replicas()
    partition = replicas.lead()
    partition.offline = True
    with pytest.raises(KafkaError) as caught:
        partition.log_for(-1, leader_only=False)
    assert caught.value.code == ErrorCode.KAFKA_STORAGE_ERROR


def test_who_is_no_replica_gets_a_retriable_error() -> None:
    replicas = Replicas()
    partition = replicas.lead(replicas=[1, 2])
    assert partition.follower(2, 0, -1).broker_id == 2
    for epoch, code in (
        (0, ErrorCode.UNKNOWN_LEADER_EPOCH),
        (-1, ErrorCode.NOT_LEADER_OR_FOLLOWER),
    ):
        with pytest.raises(KafkaError) as caught:
            partition.follower(3, epoch, -1)
        assert caught.value.code == code


def test_a_new_leader_notes_where_its_epoch_begins() -> None:
    replicas = Replicas()
    partition = replicas.lead(epoch=0)
    replicas.append(3)
    replicas.order(2, epoch=1, replicas=[1, 2])
    replicas.order(1, epoch=2, replicas=[1, 2])
    assert partition.leader_epoch_start_offset == 3
    assert partition.end_offset_for_epoch(replicas.log(), 0) == (0, 3)
    assert partition.end_offset_for_epoch(replicas.log(), 1) == (0, 3)
    assert partition.end_offset_for_epoch(replicas.log(), 2) == (2, 3)
    assert partition.end_offset_for_epoch(replicas.log(), 3) == (-1, -1)


def test_the_low_watermark_is_that_of_live_replicas() -> None:
    replicas = Replicas()
    partition = replicas.lead(replicas=[1, 2, 3])
    partition.followers[2].log_start_offset = 0
    partition.followers[3].log_start_offset = -1
    assert partition.low_watermark() == -1
    replicas.live.discard(3)
    assert partition.low_watermark() == 0


def test_replicas_reached() -> None:
    replicas = Replicas(min_insync_replicas=2)
    partition = replicas.lead(replicas=[1, 2])
    replicas.append(2)
    assert partition.replicas_reached(partition.led_since, 2) == (False, ErrorCode.NONE)
    fetch(replicas, 2, 2)
    assert partition.replicas_reached(partition.led_since, 2) == (True, ErrorCode.NONE)
    partition.set_isr(frozenset({1}))
    assert partition.replicas_reached(partition.led_since, 2) == (
        True,
        ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND,
    )
    replicas.order(2, epoch=1, replicas=[1, 2])
    assert partition.replicas_reached(partition.led_since, 2) == (
        False,
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
    )


def order(leader: int, **fields: object) -> LeaderAndIsrPartitionState:
    defaults: dict[str, object] = {
        "partition_index": 0,
        "controller_epoch": 7,
        "leader": leader,
        "leader_epoch": 3,
        "isr": [1, 2],
        "partition_epoch": 5,
        "replicas": [1, 2, 3],
        "adding_replicas": [3],
        "removing_replicas": [2],
    }
    return LeaderAndIsrPartitionState(**{**defaults, **fields})  # type: ignore[arg-type]


def test_a_partition_before_its_first_order() -> None:
    partition = Partition(TopicPartition("t", 0), Replicas().manager.context)
    assert (partition.leader_id, partition.leader_epoch, partition.partition_epoch) == (-1, -1, -1)
    assert (partition.controller_epoch, partition.leader_epoch_start_offset) == (0, -1)
    assert not partition.maybe_increment_high_watermark()


def test_what_a_leader_is_after_its_order() -> None:
    replicas = Replicas()
    log = replicas.logs.get_or_create("t", 0, now_ms=0)
    partition = Partition(TopicPartition("t", 0), replicas.manager.context)
    partition.make_leader(order(1), log)
    assert partition.is_leader
    assert (partition.leader_id, partition.leader_epoch, partition.partition_epoch) == (1, 3, 5)
    assert partition.controller_epoch == 7
    assert (partition.adding_replicas, partition.removing_replicas) == ([3], [2])
    assert partition.isr == partition.maximal_isr == {1, 2}
    assert sorted(partition.followers) == [2, 3]
    assert partition.leader_epoch_start_offset == 0
    assert log.leader_epochs.latest_epoch == 3
    # Those in the ISR have time to prove that they have caught up.
    now_ms = partition.context.now_ms()
    assert [partition.followers[each].last_caught_up_ms for each in (2, 3)] == [now_ms, NEVER]


def test_the_next_epoch_of_the_same_leader_keeps_the_followers() -> None:
    """What the followers have is still known; those in the ISR have time to prove it."""
    replicas = Replicas()
    partition = replicas.lead(epoch=3, replicas=[1, 2])
    replicas.append(2)
    fetch(replicas, 2, 2)
    second = partition.followers[2]
    replicas.clock.advance(100)
    replicas.append(1)
    replicas.order(1, epoch=4, replicas=[1, 2, 3], isr=[1, 2], partition_epoch=2)
    assert partition.leader_epoch_start_offset == 3
    assert partition.followers[2] is second
    assert sorted(partition.followers) == [2, 3]
    assert partition.followers[3].log_end_offset == -1
    assert (second.log_end_offset, second.last_caught_up_ms) == (2, partition.context.now_ms())
    assert second.last_fetch_leader_end_offset == 3


def test_another_leadership_starts_without_offsets_of_its_followers() -> None:
    replicas = Replicas()
    partition = replicas.lead(epoch=3, replicas=[1, 2])
    replicas.append(2)
    fetch(replicas, 2, 2)
    partition.resign()
    assert (partition.leader_id, partition.is_leader) == (-1, False)
    replicas.order(1, epoch=4, replicas=[1, 2])
    assert partition.followers[2].log_end_offset == -1


def test_a_pending_isr_ends_with_the_leadership() -> None:
    partition = Replicas().lead(replicas=[1, 2], isr=[1])
    partition.pending_isr = partition.maximal_isr = frozenset({1, 2})
    partition.resign()
    assert (partition.pending_isr, partition.maximal_isr) == (None, {1})


def test_a_leader_of_a_smaller_isr_commits_at_once() -> None:
    replicas = Replicas()
    replicas.lead(replicas=[1, 2, 3])
    replicas.append(2)
    fetch(replicas, 3, 2)
    assert replicas.log().high_watermark == 0
    replicas.clock.advance(60_000)
    replicas.order(1, epoch=1, replicas=[1, 2, 3], isr=[1, 3], partition_epoch=1)
    assert replicas.log().high_watermark == 2


def test_what_a_follower_is_after_its_order() -> None:
    replicas = Replicas()
    log = replicas.logs.get_or_create("t", 0, now_ms=0)
    partition = Partition(TopicPartition("t", 0), replicas.manager.context)
    partition.make_follower(order(2), log)
    assert (partition.leader_id, partition.is_leader, partition.partition_epoch) == (2, False, 5)
    assert partition.replicas == [1, 2, 3]


def test_a_leader_that_follows_keeps_nothing_of_a_leader() -> None:
    replicas = Replicas()
    partition = replicas.lead(epoch=1, replicas=[1, 2])
    assert partition.leader_epoch_start_offset == 0
    replicas.order(2, epoch=2, replicas=[1, 2])
    assert partition.followers == {}
    assert partition.leader_epoch_start_offset == -1
    assert partition.isr == partition.maximal_isr == frozenset()
    # Records of the new leader are committed when it says so, not when they arrive.
    assert not partition.replicas_reached(partition.led_since, 0)[0]


def test_a_reader_of_epoch_0_is_fenced() -> None:
    partition = Replicas().lead(epoch=1)
    with pytest.raises(KafkaError) as caught:
        partition.log_for(0, True)
    assert caught.value.code == ErrorCode.FENCED_LEADER_EPOCH


def test_whether_the_high_watermark_advanced() -> None:
    replicas = Replicas()
    partition = replicas.lead(replicas=[1, 2])
    replicas.append(2)
    assert not partition.maybe_increment_high_watermark()
    partition.followers[2].log_end_offset = 1
    assert partition.maybe_increment_high_watermark()
    assert not partition.maybe_increment_high_watermark()


def test_a_disk_that_is_offline_commits_nothing() -> None:
    partition = Replicas().lead()
    partition.offline = True
    assert partition.replicas_reached(partition.led_since, 0) == (
        False,
        ErrorCode.KAFKA_STORAGE_ERROR,
    )


def test_a_fetch_of_the_same_registration_is_not_stale() -> None:
    partition = Replicas().lead(replicas=[1, 2])
    partition.followers[2].broker_epoch = 40
    for epoch in (-1, 40, 41):
        assert partition.follower(2, 0, epoch) is partition.followers[2]
    with pytest.raises(KafkaError):
        partition.follower(2, 0, 39)


def test_reaching_the_end_proves_it_for_now() -> None:
    replica = FollowerReplica(2)
    replica.record_fetch(10, 0, 10, now_ms=100)
    assert replica.last_caught_up_ms == 100
    assert replica.log_end_offset == 10


def test_reaching_the_end_of_last_time_proves_it_for_then() -> None:
    """A leader that is written to all the time: the follower is always a little behind."""
    replica = FollowerReplica(2)
    replica.record_fetch(5, 0, 10, now_ms=100)
    assert replica.last_caught_up_ms == NEVER
    replica.record_fetch(10, 0, 20, now_ms=200)
    assert replica.last_caught_up_ms == 100
    replica.record_fetch(15, 0, 30, now_ms=300)
    assert replica.last_caught_up_ms == 100, "it did not get as far as the end of last time"


def test_caught_up_is_having_all_or_having_had_it_lately() -> None:
    replica = FollowerReplica(2)
    replica.record_fetch(10, 0, 10, now_ms=100)
    assert replica.is_caught_up(10, now_ms=10_000, lag_time_max_ms=10)
    assert replica.is_caught_up(11, now_ms=110, lag_time_max_ms=10)
    assert not replica.is_caught_up(11, now_ms=111, lag_time_max_ms=10)


def test_a_new_epoch_gives_those_in_sync_time_to_prove_it() -> None:
    replica = FollowerReplica(2)
    replica.record_fetch(10, 3, 10, now_ms=100)
    replica.reset(500, 20, new_leader=False, in_sync=True)
    assert (replica.log_end_offset, replica.last_caught_up_ms) == (10, 500)
    replica.reset(600, 20, new_leader=True, in_sync=False)
    assert (replica.log_end_offset, replica.last_caught_up_ms) == (-1, NEVER)


def state(replica: FollowerReplica) -> tuple[int, ...]:
    return (
        replica.broker_epoch,
        replica.log_end_offset,
        replica.log_start_offset,
        replica.last_caught_up_ms,
        replica.last_fetch_ms,
        replica.last_fetch_leader_end_offset,
    )


def test_a_follower_that_has_not_fetched_yet_has_nothing() -> None:
    assert state(FollowerReplica(2)) == (-1, -1, -1, NEVER, NEVER, 0)
    assert FollowerReplica(2).refused_until_ms == NEVER


def test_a_new_leader_starts_without_offsets_of_its_followers() -> None:
    replica = FollowerReplica(2)
    replica.broker_epoch = 40
    replica.record_fetch(10, 3, 12, now_ms=100)
    assert state(replica) == (40, 10, 3, NEVER, 100, 12)
    replica.reset(500, 20, new_leader=True, in_sync=True)
    assert state(replica) == (-1, -1, -1, 500, NEVER, 0)


def test_a_leader_of_the_next_epoch_keeps_what_it_knows() -> None:
    replica = FollowerReplica(2)
    replica.broker_epoch = 40
    replica.record_fetch(10, 3, 12, now_ms=100)
    replica.reset(500, 20, new_leader=False, in_sync=True)
    assert state(replica) == (40, 10, 3, 500, 500, 20)
    replica.reset(600, 21, new_leader=False, in_sync=False)
    assert state(replica) == (40, 10, 3, NEVER, NEVER, 21)


class Scene(Replicas):
    """Broker 1 in rack a leads; 2 and 3 are in rack b and have everything."""

    def __init__(self) -> None:
        super().__init__()
        self.racks = {1: "a", 2: "b", 3: "b"}
        self.led: Partition = self.lead(replicas=[1, 2, 3])
        self.append(5)
        for broker_id in (2, 3):
            self.copied(broker_id, 5)
        self.selector = RackAwareReplicaSelector(self.metadata)

    def copied(self, broker_id: int, end: int, start: int = 0) -> None:
        self.led.followers[broker_id].record_fetch(end, start, 5, int(self.clock.monotonic()))

    def choose(self, rack: str, offset: int = 0) -> int:
        return self.selector.choose(self.led, rack, offset)


def test_a_replica_in_the_readers_rack() -> None:
    scene = Scene()
    assert scene.choose("b") in (2, 3)
    scene.append(1)
    scene.copied(3, 6)
    assert scene.choose("b") == 3, "the one that is furthest along"


@pytest.mark.parametrize("rack", ["", "a", "c"])
def test_others_read_from_the_leader(rack: str) -> None:
    assert Scene().choose(rack) == NO_PREFERENCE


def test_a_replica_outside_of_the_isr_is_not_read() -> None:
    """It may have the offset and then stay behind for ever."""
    scene = Scene()
    scene.led.set_isr(frozenset((1, 2)))
    scene.copied(3, 5)
    scene.append(1)
    scene.copied(3, 6)
    assert scene.choose("b") == 2
    scene.led.set_isr(frozenset((1,)))
    assert scene.choose("b") == NO_PREFERENCE


def test_no_client_is_sent_to_where_the_records_are_not() -> None:
    scene = Scene()
    assert scene.choose("b", 6) == NO_PREFERENCE
    scene.copied(2, 5, start=3)
    scene.copied(3, 2)
    assert scene.choose("b", 1) == 3
    assert scene.choose("b", 4) == 2
    scene.copied(3, 2, start=2)
    assert scene.choose("b", 0) == NO_PREFERENCE
