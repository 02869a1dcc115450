from __future__ import annotations

import logging

import pytest

from ottla.broker.quotas.replication_quotas import UNLIMITED, ReplicationQuota
from ottla.broker.replication.partition import READ_COMMITTED, READ_LOG_END
from ottla.broker.replication.replica_manager import RefusalLog
from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages.fetch import FetchPartition, PartitionData
from ottla.protocol.topics import TopicPartition
from tests.doubles.fetched import FetchMessages
from tests.doubles.memory_file_system import MemoryFileSystem
from tests.doubles.pace import steps_per_turn
from tests.doubles.replicas import BROKER, TOPIC, Replicas
from tests.doubles.storage_logs import batch_of


class Fetched(FetchMessages):
    """A fetch and its response."""

    def __init__(self, replicas: Replicas, *positions: FetchPartition, **fields: int) -> None:
        super().__init__(replicas.manager, *positions, **fields)

    @property
    def is_completed(self) -> bool:
        assert len(self.responses) <= 1
        return bool(self.responses)

    def data(self, number: int = 0) -> PartitionData:
        return self.responses[0][number][1]

    def size(self, number: int = 0) -> int:
        records = self.data(number).records
        assert records is not None
        return len(records)


def at(offset: int, index: int = 0, max_bytes: int = 1 << 20, **fields: int) -> FetchPartition:
    return FetchPartition(
        partition=index, fetch_offset=offset, partition_max_bytes=max_bytes, **fields
    )


BATCH = len(batch_of(1))


# -- appending ----------------------------------------------------------------------------------


def test_an_append_is_acknowledged_with_its_offset() -> None:
    replicas = Replicas()
    replicas.lead()
    assert replicas.append(2).offset == 0
    appended = replicas.append(1, acks=-1)
    assert appended.offset == 2
    assert appended.response.log_append_time_ms == -1
    assert appended.response.log_start_offset == 0


@pytest.mark.parametrize(
    ("known", "code"),
    [(False, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION), (True, ErrorCode.NOT_LEADER_OR_FOLLOWER)],
)
def test_where_this_broker_holds_nothing(known: bool, code: int) -> None:
    replicas = Replicas()
    if known:
        replicas.publish(leader=2)
    assert replicas.append().code == code


def test_a_follower_takes_no_appends() -> None:
    replicas = Replicas()
    replicas.follow(2)
    assert replicas.append().code == ErrorCode.NOT_LEADER_OR_FOLLOWER


@pytest.mark.parametrize(
    ("spoil", "code"),
    [
        (lambda batch: batch.__setitem__(-1, batch[-1] ^ 1), ErrorCode.CORRUPT_MESSAGE),
        (lambda batch: batch.__setitem__(16, 1), ErrorCode.CORRUPT_MESSAGE),
    ],
)
def test_damaged_records_are_refused_with_words(spoil: object, code: int) -> None:
    replicas = Replicas()
    replicas.lead()
    batch = batch_of(2)
    spoil(batch)  # type: ignore[operator]  # one of the lambdas above
    appended = replicas.append_raw(batch)
    assert appended.code == code
    assert appended.response.error_message
    assert replicas.log().log_end_offset == 0


def test_a_record_without_a_key_in_a_compacted_topic_is_named() -> None:
    replicas = Replicas(cleanup_policy=("compact",))
    replicas.lead()
    appended = replicas.append([(0, b"k", b"v", []), (0, None, b"v", [])])
    assert appended.code == ErrorCode.INVALID_RECORD
    assert [row.batch_index for row in appended.response.record_errors] == [1]


def test_a_batch_above_the_limit_is_too_large() -> None:
    replicas = Replicas(max_message_bytes=100)
    replicas.lead()
    assert replicas.append(10).code == ErrorCode.MESSAGE_TOO_LARGE


def test_one_bad_partition_does_not_harm_the_others() -> None:
    replicas = Replicas()
    replicas.lead(0)
    good, bad = replicas.append(index=0), replicas.append(index=1)
    assert (good.code, bad.code) == (0, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)


def test_acks_all_waits_until_it_is_committed() -> None:
    replicas = Replicas()
    replicas.lead(replicas=[1, 2])
    leader_only, all_in_sync = replicas.append(acks=1), replicas.append(acks=-1)
    assert leader_only.is_completed
    assert not all_in_sync.is_completed
    Fetched(replicas, at(1), replica_id=2, isolation=READ_LOG_END, max_wait_ms=0)
    assert not all_in_sync.is_completed
    Fetched(replicas, at(2), replica_id=2, isolation=READ_LOG_END, max_wait_ms=0)
    assert all_in_sync.offset == 1


def test_acks_all_times_out_and_the_record_stays() -> None:
    replicas = Replicas()
    replicas.lead(replicas=[1, 2])
    appended = replicas.append(acks=-1, timeout_ms=500)
    replicas.timer.clock.advance(499)
    replicas.timer.advance(0)
    assert not appended.is_completed
    replicas.timer.advance(1)
    assert appended.code == ErrorCode.REQUEST_TIMED_OUT
    assert replicas.log().log_end_offset == 1


def test_acks_all_needs_enough_replicas() -> None:
    replicas = Replicas(min_insync_replicas=2)
    replicas.lead(replicas=[1, 2], isr=[1])
    assert replicas.append(acks=-1).code == ErrorCode.NOT_ENOUGH_REPLICAS
    assert replicas.append(acks=1).code == 0


def test_a_new_leader_ends_the_wait() -> None:
    replicas = Replicas()
    replicas.lead(replicas=[1, 2])
    appended = replicas.append(acks=-1)
    replicas.order(2, epoch=1, replicas=[1, 2])
    assert appended.code == ErrorCode.NOT_LEADER_OR_FOLLOWER


def test_truncated_records_are_not_acknowledged_by_others_in_their_place() -> None:
    """Of very many requests not all are checked at once when another broker becomes leader."""
    replicas = Replicas()
    both = (BROKER, 2)
    partition = replicas.lead(replicas=both, isr=both)
    count = 10
    lost = [replicas.append(acks=-1) for _ in range(count)]
    with steps_per_turn(1):
        replicas.follow(2, epoch=1, replicas=both, isr=both)
        replicas.log().truncator.truncate_to(0)
        replicas.lead(epoch=2, replicas=both, isr=both)
        others = [replicas.append(acks=-1) for _ in range(count)]
        partition.followers[2].record_fetch(count, 0, 1, 0)
        assert partition.maybe_increment_high_watermark()
        replicas.manager.complete_delayed_requests(partition)
        replicas.timer.advance(100)
    assert {each.code for each in lost} == {ErrorCode.NOT_LEADER_OR_FOLLOWER}
    assert [each.offset for each in others] == list(range(count))


# -- reading ------------------------------------------------------------------------------------


def test_a_fetch_gets_what_is_there() -> None:
    replicas = Replicas()
    replicas.lead()
    replicas.append(1)
    fetched = Fetched(replicas, at(0))
    assert fetched.size() == BATCH
    assert fetched.data().high_watermark == 1
    assert fetched.data().log_start_offset == 0


def test_a_fetch_at_the_end_waits_for_an_append() -> None:
    replicas = Replicas()
    replicas.lead()
    fetched = Fetched(replicas, at(0))
    assert not fetched.is_completed
    replicas.append(1)
    assert fetched.size() == BATCH


def test_a_fetch_waits_no_longer_than_it_says_and_gets_no_null() -> None:
    replicas = Replicas()
    replicas.lead()
    fetched = Fetched(replicas, at(0), max_wait_ms=100)
    replicas.timer.advance(101)
    assert fetched.data().records == b""
    assert fetched.data().error_code == 0


def test_a_fetch_waits_for_min_bytes_over_all_partitions() -> None:
    replicas = Replicas()
    replicas.lead(0)
    replicas.lead(1)
    fetched = Fetched(replicas, at(0, 0), at(0, 1), min_bytes=2 * BATCH)
    replicas.append(index=0)
    assert not fetched.is_completed
    replicas.append(index=1)
    assert (fetched.size(0), fetched.size(1)) == (BATCH, BATCH)


def test_a_fetch_from_an_older_segment_does_not_wait_for_min_bytes() -> None:
    replicas = Replicas()
    partition = replicas.lead()
    replicas.append()
    waiting = Fetched(replicas, at(0), min_bytes=10 * BATCH)
    assert not waiting.is_completed
    assert partition.log is not None
    partition.log.roll(0)
    replicas.append()
    assert waiting.size() == BATCH, "a read ends with its segment"
    assert Fetched(replicas, at(0), min_bytes=10 * BATCH).size() == BATCH
    assert not Fetched(replicas, at(1), min_bytes=10 * BATCH).is_completed


def test_a_fetch_of_a_segment_that_was_just_rolled_does_not_wait() -> None:
    replicas = Replicas()
    partition = replicas.lead()
    replicas.append()
    assert partition.log is not None
    partition.log.roll(0)
    assert Fetched(replicas, at(0), min_bytes=10 * BATCH).size() == BATCH
    assert not Fetched(replicas, at(1), min_bytes=10 * BATCH).is_completed


def test_the_first_batch_comes_whole_and_the_rest_within_the_limits() -> None:
    replicas = Replicas()
    replicas.lead(0)
    replicas.lead(1)
    for index in (0, 0, 1):
        replicas.append(index=index)
    fetched = Fetched(replicas, at(0, 0, max_bytes=1), at(0, 1), max_bytes=2)
    assert (fetched.size(0), fetched.size(1)) == (BATCH, 0)
    fetched = Fetched(replicas, at(0, 0), at(0, 1), max_bytes=2 * BATCH)
    assert (fetched.size(0), fetched.size(1)) == (2 * BATCH, 0)


def test_old_versions_get_the_beginning_of_what_they_ask_for() -> None:
    replicas = Replicas()
    replicas.lead()
    replicas.append()
    assert Fetched(replicas, at(0, max_bytes=1), hard_limit=1, max_wait_ms=0).size() == 1


def test_an_offset_outside_is_said_at_once() -> None:
    replicas = Replicas()
    replicas.lead()
    fetched = Fetched(replicas, at(5))
    assert fetched.data().error_code == ErrorCode.OFFSET_OUT_OF_RANGE
    assert fetched.data().records == b""


def test_consumers_see_what_is_committed_and_followers_everything() -> None:
    replicas = Replicas()
    replicas.lead(replicas=[1, 2])
    replicas.append()
    assert Fetched(replicas, at(0), max_wait_ms=0).size() == 0
    follower = Fetched(replicas, at(0), replica_id=2, isolation=READ_LOG_END)
    assert follower.size() == BATCH


def test_read_committed_stops_at_an_open_transaction() -> None:
    replicas = Replicas()
    replicas.lead()
    replicas.append()
    replicas.append(producer_id=7, producer_epoch=0, base_sequence=0, transactional=True)
    assert Fetched(replicas, at(0), max_wait_ms=0).size() > BATCH
    committed = Fetched(replicas, at(0), max_wait_ms=0, isolation=READ_COMMITTED)
    assert committed.size() == BATCH
    assert committed.data().aborted_transactions == []
    assert committed.data().last_stable_offset == 1


def test_an_unknown_broker_is_no_follower() -> None:
    replicas = Replicas()
    replicas.lead(replicas=[1, 2])
    fetched = Fetched(replicas, at(0), replica_id=9, isolation=READ_LOG_END)
    assert fetched.data().error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER


def test_a_follower_whose_epoch_ends_elsewhere_learns_where() -> None:
    replicas = Replicas()
    replicas.lead(epoch=0, replicas=[1, 2])
    replicas.append(2)
    replicas.order(1, epoch=3, replicas=[1, 2])
    replicas.append(1)
    fetched = Fetched(
        replicas,
        at(5, last_fetched_epoch=0, current_leader_epoch=3),
        replica_id=2,
        isolation=READ_LOG_END,
    )
    diverging = fetched.data().diverging_epoch
    assert diverging is not None
    assert (diverging.epoch, diverging.end_offset) == (0, 2)
    assert fetched.size() == 0


@pytest.mark.parametrize("what", ["deleted", "new leader", "truncated"])
def test_a_waiting_fetch_ends_when_its_partition_is_not_what_it_was(what: str) -> None:
    replicas = Replicas()
    partition = replicas.lead(replicas=[1, 2], isr=[1])
    replicas.append(2)
    fetched = Fetched(replicas, at(2, current_leader_epoch=0))
    assert not fetched.is_completed
    if what == "deleted":
        del replicas.manager.partitions[partition.key]
        replicas.manager.complete_delayed_requests(partition)
    elif what == "new leader":
        replicas.order(2, epoch=1, replicas=[1, 2])
    else:
        replicas.log().truncator.truncate_to(1)
        replicas.manager.complete_delayed_requests(partition)
    assert fetched.data().error_code != 0


def test_a_fetch_from_before_the_followers_restart_is_stale() -> None:
    """It may have waited here while its broker lost its log and came back empty (KIP-903)."""
    replicas = Replicas()
    led = replicas.lead(replicas=[1, 2], isr=[1])
    replicas.append(2)
    fields = {"replica_id": 2, "isolation": READ_LOG_END}
    waiting = Fetched(replicas, at(2), replica_epoch=40, **fields)
    assert led.followers[2].broker_epoch == 40
    Fetched(replicas, at(0), replica_epoch=50, **fields)
    replicas.append(1)
    assert waiting.data().error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert (led.followers[2].broker_epoch, led.followers[2].log_end_offset) == (50, 0)
    # Another ensemble of ZooKeeper assigns lower epochs.
    replicas.manager.forget_broker_epochs()
    Fetched(replicas, at(1), replica_epoch=3, **fields)
    assert (led.followers[2].broker_epoch, led.followers[2].log_end_offset) == (3, 1)
    # Of an old version, without an epoch: it is taken as it is.
    Fetched(replicas, at(1), replica_epoch=-1, **fields)
    assert (led.followers[2].broker_epoch, led.followers[2].log_end_offset) == (-1, 1)


def test_what_a_follower_has_is_said_by_its_last_fetch() -> None:
    """An earlier one that waited says nothing new when it is completed."""
    replicas = Replicas()
    led = replicas.lead(replicas=[1, 2])
    replicas.append(2)
    fields = {"replica_id": 2, "isolation": READ_LOG_END}
    waiting = Fetched(replicas, at(2), min_bytes=1_000, **fields)
    follower = led.followers[2]
    caught_up_ms = follower.last_caught_up_ms
    replicas.append(1)
    Fetched(replicas, at(3), max_wait_ms=5_000, **fields)
    replicas.timer.advance(1_000)
    assert waiting.is_completed
    assert follower.log_end_offset == 3
    # At the end of the log, too: its broker may be gone since it sent the fetch.
    replicas.timer.advance(4_000)
    assert follower.last_caught_up_ms == caught_up_ms


def test_the_high_watermark_advances_after_a_broker_that_it_waited_for_is_gone() -> None:
    """A broker stops: it leaves the ISR first, and is waited for until the metadata changes. The
    remaining follower has fetched everything by then, and nothing else is appended."""
    replicas = Replicas()
    led = replicas.lead(replicas=[1, 2, 3], isr=[1, 2])
    fields = {"isolation": READ_LOG_END}
    Fetched(replicas, at(0), replica_id=3, **fields)
    appended = replicas.append(1, acks=-1, timeout_ms=60_000)
    Fetched(replicas, at(1), replica_id=2, **fields)
    assert led.log is not None
    assert led.log.high_watermark == 0, "3 has caught up until now"
    replicas.live.discard(3)
    Fetched(replicas, at(1), replica_id=2, **fields)
    assert led.log.high_watermark == 1
    assert appended.code == ErrorCode.NONE


def test_a_fetch_of_what_the_quota_holds_back_waits() -> None:
    """As in Kafka's DelayedFetch: else a throttled follower sends one request after another."""
    replicas = Replicas()
    led = replicas.lead(replicas=[1, 2], isr=[1])
    replicas.append(1)
    quota = replicas.manager.leader_throttle = ReplicationQuota()
    quota.limit = 1
    quota.throttle(TOPIC, None)
    quota.record(1_000, led.context.now_ms())
    fields = {"replica_id": 2, "isolation": READ_LOG_END, "max_wait_ms": 500}
    waiting = Fetched(replicas, at(0), **fields)
    replicas.append(1)
    assert not waiting.is_completed
    replicas.timer.advance(501)
    assert waiting.size() == 0
    quota.limit = UNLIMITED
    assert Fetched(replicas, at(0), **fields).size() == 2 * BATCH
    quota.limit = 1
    led.set_isr(frozenset([1, 2]))
    assert Fetched(replicas, at(0), **fields).size() == 2 * BATCH, "it is in sync"


# -- counting -----------------------------------------------------------------------------------


def test_appends_are_counted_by_topic() -> None:
    replicas = Replicas()
    replicas.lead()
    statistics = replicas.manager.context.topics.get(TOPIC)
    replicas.append(3, producer_id=7, producer_epoch=0, base_sequence=0)
    size = statistics.received_bytes
    assert size == replicas.log().local.size_in_bytes
    assert (statistics.received_messages, statistics.produces) == (3, 1)
    # The retry of a batch that is in the log already writes nothing.
    replicas.append(3, producer_id=7, producer_epoch=0, base_sequence=0)
    assert (statistics.received_bytes, statistics.received_messages) == (size, 3)
    assert statistics.produces == 2
    damaged = batch_of(1)
    damaged[-1] ^= 1
    replicas.append_raw(damaged)
    assert (statistics.produces, statistics.failed_produces) == (2, 1)
    assert replicas.manager.context.topics.produce_errors == {ErrorCode.CORRUPT_MESSAGE: 1}


def test_outdated_metadata_of_a_client_is_no_failure() -> None:
    replicas = Replicas()
    replicas.follow(2)
    replicas.append()
    assert replicas.manager.context.topics.get(TOPIC).failed_produces == 0
    assert not replicas.manager.context.topics.produce_errors


def test_the_counters_of_a_topic_end_with_its_last_replica() -> None:
    replicas = Replicas()
    for index in (0, 1):
        replicas.lead(index)
    topics = replicas.manager.context.topics
    for index, left in ((0, 1), (1, 0)):
        assert replicas.manager.remove_partition(replicas.partition(index).key) is not None
        assert len(topics) == left
    assert replicas.manager.remove_partition(TopicPartition(TOPIC, 0)) is None


def test_one_line_in_an_interval_for_each_partition_and_error(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO, "ottla.replication")
    now_ms = 50_000
    log = RefusalLog(lambda: now_ms)
    for _ in range(3):
        log.log("t", 0, 2, ValueError("corrupt"))
    log.log("t", 1, 2, ValueError("corrupt"))
    log.log("t", 0, 10, ValueError("too large"))
    assert [record.getMessage() for record in caplog.records] == [
        "Append to partition t-0 refused: corrupt",
        "Append to partition t-1 refused: corrupt",
        "Append to partition t-0 refused: too large",
    ]
    now_ms += 10_000
    log.log("t", 0, 2, ValueError("corrupt"))
    assert len(caplog.records) == 4


def test_memory_is_bounded(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "ottla.replication")
    log = RefusalLog(lambda: 50_000)
    for index in range(1_001):
        log.log("t", index, 2, ValueError("corrupt"))
    log.log("t", 0, 2, ValueError("corrupt"))
    assert len(caplog.records) == 1_002


def test_a_damaged_batch_is_named_where_a_client_reads_it(caplog: pytest.LogCaptureFixture) -> None:
    fs = MemoryFileSystem()
    replicas = Replicas(file_system=fs)
    replicas.lead()
    replicas.append(1)
    segment = replicas.log().segments.active
    segment.invalidate_cached()  # what was written last is found without its header
    path = segment.log.path
    fs.overwrite(path, bytes(len(fs.content(path))))
    for _ in range(2):
        fetched = Fetched(replicas, at(0))
        assert fetched.data().error_code == ErrorCode.CORRUPT_MESSAGE
    (line,) = [each.getMessage() for each in caplog.records if each.levelno == logging.ERROR]
    assert line.startswith(f"A file of partition {TOPIC}-0 is damaged, reads of it fail: ")
    assert path in line
