from __future__ import annotations

import pytest

from ottla.protocol.errors import ErrorCode, KafkaError
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
    assert partition.replicas_reached(2) == (False, ErrorCode.NONE)
    fetch(replicas, 2, 2)
    assert partition.replicas_reached(2) == (True, ErrorCode.NONE)
    partition.set_isr(frozenset({1}))
    assert partition.replicas_reached(2) == (True, ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND)
    replicas.order(2, epoch=1, replicas=[1, 2])
    assert partition.replicas_reached(2) == (False, ErrorCode.NOT_LEADER_OR_FOLLOWER)
