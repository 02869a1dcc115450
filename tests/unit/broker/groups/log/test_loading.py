"""Reading the log of a partition back, in slices, whatever is in it."""

import logging
from unittest.mock import patch

import pytest

from ottla.broker.groups.classic.group import GroupState
from ottla.broker.groups.log.loader import GroupLoader
from ottla.broker.groups.log.partition import GroupPartition
from ottla.broker.groups.log.records import group_key, offset_key, offset_value
from ottla.broker.groups.offsets import CommittedOffset
from ottla.protocol.errors import ErrorCode
from ottla.protocol.records import compression
from ottla.protocol.records.batch import read_header
from ottla.protocol.records.builder import build_batch
from ottla.protocol.records.control import end_transaction_marker
from ottla.protocol.steps import run_at_once
from ottla.protocol.topics import TopicPartition
from tests.unit.broker.groups.helpers import GROUP, T0, T1, Setup

Pair = tuple[bytes | None, bytes | None]


def commit(group_id: str, partition: TopicPartition, offset: int) -> Pair:
    return offset_key(group_id, partition), offset_value(CommittedOffset(offset, -1, "", 1))


def append(setup: Setup, *records: Pair, codec: int = 0, producer_id: int = -1) -> None:
    batch = build_batch(
        [(1, key, value, None) for key, value in records],
        codec=codec,
        producer_id=producer_id,
        producer_epoch=0 if producer_id >= 0 else -1,
        transactional=producer_id >= 0,
    )
    setup.log.append(0, batch, lambda *_: None)


def mark(setup: Setup, producer_id: int, *, committed: bool) -> None:
    batch = end_transaction_marker(
        committed=committed,
        coordinator_epoch=0,
        producer_id=producer_id,
        producer_epoch=0,
        timestamp_ms=1,
    )
    setup.log.append(0, batch, lambda *_: None)


# States of a partition.


def test_no_request_is_served_while_loading() -> None:
    setup = Setup()
    setup.commit({T0: 1})
    setup.coordinator.on_elected(0, 1)
    loading = ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    assert setup.join().value.error_code == loading
    assert setup.commit({T0: 2}).value == {T0: loading}
    assert run_at_once(setup.coordinator.commits.fetch(GROUP, [T0])) == (loading, {})
    assert setup.coordinator.admin.describe(GROUP).error_code == loading
    assert setup.leave(("m", None)) == (loading, [])


def test_while_loading_heartbeats_are_fine_and_syncs_start_over() -> None:
    setup = Setup()
    setup.coordinator.on_elected(0, 1)
    assert setup.heartbeat("m", 1) == ErrorCode.NONE
    assert setup.sync("m", 1).value.error_code == ErrorCode.REBALANCE_IN_PROGRESS


def test_a_partition_that_is_not_led_here() -> None:
    setup = Setup(offsets_topic_num_partitions=50)
    setup.coordinator.on_resigned(setup.coordinator.partition_for(GROUP), 1)
    not_here = ErrorCode.NOT_COORDINATOR
    assert setup.join().value.error_code == not_here
    assert setup.sync("m", 1).value.error_code == not_here
    assert setup.heartbeat("m", 1) == not_here
    assert setup.commit({T0: 2}).value == {T0: not_here}
    assert setup.join(group_id="another").value.error_code == ErrorCode.NONE


def test_an_older_election_or_resignation_changes_nothing() -> None:
    setup = Setup()
    setup.elect(5)
    setup.commit({T0: 1})
    setup.coordinator.on_elected(0, 4)
    setup.coordinator.on_elected(0, 5)
    setup.coordinator.on_resigned(0, 4)
    assert setup.offset() == 1


def test_a_new_epoch_of_the_same_leader_loads_again() -> None:
    setup = Setup()
    (member,) = setup.stable_group()
    joining = setup.join(member)
    assert joining.value.error_code == ErrorCode.NONE
    waiting = setup.sync(member, 1)
    assert waiting.value.error_code == ErrorCode.ILLEGAL_GENERATION
    setup.elect(3)
    assert setup.heartbeat(member, 1) == ErrorCode.NONE


def test_a_leader_that_stays_the_leader_keeps_what_is_loaded() -> None:
    setup = Setup()
    (member,) = setup.stable_group()
    setup.log.hold = True
    commit_response = setup.commit({T0: 1}, member, 1)
    setup.coordinator.partitions.advance_epoch(0, 5)
    assert not setup.deferred
    assert setup.heartbeat(member, 1) == ErrorCode.NONE
    setup.log.commit_all()
    assert commit_response.value == {T0: ErrorCode.NONE}
    (partition,) = setup.coordinator.partitions.active
    assert partition.leader_epoch == 5
    setup.coordinator.on_resigned(0, 4)  # stale
    assert setup.offset() == 1
    setup.coordinator.partitions.advance_epoch(0, 3)  # stale
    assert partition.leader_epoch == 5
    setup.coordinator.on_resigned(0, 6)
    assert setup.coordinator.partitions.active == []


@pytest.mark.usefixtures("short_turns")
def test_a_new_leader_epoch_while_loading_does_not_start_over() -> None:
    setup = loading_for_several_turns()
    setup.deferred.pop(0)()
    with patch.object(setup.log, "read_batches", side_effect=AssertionError("read again")):
        setup.coordinator.partitions.advance_epoch(0, 2)
        setup.run_deferred()
    (partition,) = setup.coordinator.partitions.active
    assert partition.leader_epoch == 2


def test_a_new_leader_epoch_loads_what_is_not_loaded() -> None:
    setup = Setup()
    setup.commit({T0: 1})
    setup.coordinator.on_resigned(0, 1)
    setup.coordinator.partitions.advance_epoch(0, 2)
    setup.run_deferred()
    assert setup.offset() == 1


def test_resigning_while_loading_stops_the_load() -> None:
    setup = Setup()
    setup.commit({T0: 1})
    setup.coordinator.on_elected(0, 1)
    setup.coordinator.on_resigned(0, 2)
    setup.run_deferred()
    assert setup.heartbeat("m", 1) == ErrorCode.NOT_COORDINATOR
    setup.elect(3)
    assert setup.offset() == 1


@pytest.mark.usefixtures("short_turns")
def test_partitions_load_one_after_the_other_in_turns() -> None:
    setup = Setup(offsets_topic_num_partitions=3)
    for number in range(30):
        setup.commit({T0: number}, group_id=f"g{number}")
    for partition in range(3):
        setup.coordinator.on_elected(partition, 1)
    turns = 0
    while setup.deferred:
        setup.deferred.pop(0)()
        turns += 1
        assert sum("_load_turn" in str(each) for each in setup.deferred) <= 1
    assert turns > 3
    assert setup.offset(group_id="g7") == 7


def test_a_damaged_batch_is_left_out_and_the_partition_served(
    caplog: pytest.LogCaptureFixture,
) -> None:
    setup = Setup()
    for offset in range(10):
        append(setup, commit("a", TopicPartition("t", offset), offset))
    setup.log.damaged = {(0, 3)}
    setup.elect(1)
    found = setup.fetch(group_id="a")
    assert {key.partition for key in found} == {0, 1, 2, 4, 5, 6, 7, 8, 9}
    assert "Error loading __consumer_offsets-0: skipping offsets 3 to 3" in caplog.text
    assert setup.coordinator.partitions.load_failures == 1
    setup.coordinator.on_resigned(0, 2)
    assert setup.coordinator.partitions.load_failures == 0


def test_commits_after_a_damaged_batch_survive_the_next_load() -> None:
    setup = Setup()
    setup.commit({T0: 1})
    setup.log.damaged = {(0, 0)}
    setup.elect(1)
    assert setup.offset() == -1
    setup.commit({T0: 2})
    setup.elect(2)
    assert setup.offset() == 2


def test_many_empty_partitions_load_in_one_turn() -> None:
    setup = Setup(offsets_topic_num_partitions=50)
    for partition in range(50):
        setup.coordinator.on_elected(partition, 1)
    (only,) = setup.deferred
    setup.deferred.clear()
    only()
    assert not setup.deferred
    assert len(setup.coordinator.partitions.active) == 50


def test_the_count_of_partitions_is_that_of_the_topic() -> None:
    setup = Setup()
    setup.coordinator.startup(partition_count=7)
    assert setup.coordinator.partition_for(GROUP) == ord("g") % 7


# Markers that come while a partition is loading.


def write_marker(setup: Setup, producer_id: int, *, committed: bool) -> None:
    """As `MarkerWriter`: appended first; the coordinator gets to know when it is committed."""
    mark(setup, producer_id, committed=committed)
    setup.coordinator.on_transaction_completed(producer_id, 0, committed=committed)


def loading_for_several_turns() -> Setup:
    """Offsets in the transactions of producers 7 (T0) and 8 (T1), and much after them."""
    setup = Setup()
    append(setup, commit("a", T0, 10), producer_id=7)
    append(setup, commit("a", T1, 20), producer_id=8)
    for _ in range(12):
        append(setup, *(commit("b", TopicPartition("t", n), n) for n in range(5)))
    setup.coordinator.on_elected(0, 1)
    return setup


@pytest.mark.usefixtures("short_turns")
@pytest.mark.parametrize("turn", range(2))
def test_a_marker_that_comes_while_a_partition_is_loading_counts(turn: int) -> None:
    setup = loading_for_several_turns()
    for _ in range(turn):
        setup.deferred.pop(0)()
    assert setup.coordinator.partitions.is_loading
    write_marker(setup, 7, committed=True)
    write_marker(setup, 8, committed=False)
    setup.run_deferred()
    assert (setup.offset(T0, "a"), setup.offset(T1, "a")) == (10, -1)
    assert not setup.group("a").offsets.is_unstable(T0)
    assert not setup.group("a").offsets.is_unstable(T1)


@pytest.mark.usefixtures("short_turns")
def test_markers_in_every_turn_of_a_load_count() -> None:
    setup = loading_for_several_turns()
    for producer_id in range(100, 200):
        append(setup, commit("c", TopicPartition("t", producer_id), 1), producer_id=producer_id)
    marked = 100
    while setup.deferred and marked < 200:
        setup.deferred.pop(0)()
        write_marker(setup, marked, committed=True)
        marked += 1
    assert 105 < marked < 200
    found = setup.fetch(group_id="c")
    assert {key.partition for key in found} == set(range(100, marked))


@pytest.mark.usefixtures("short_turns")
def test_a_marker_that_is_committed_after_the_load_counts_once() -> None:
    setup = loading_for_several_turns()
    setup.log.hold = True
    mark(setup, 7, committed=True)
    setup.run_deferred()
    assert setup.offset(T0, "a") == 10
    setup.commit({T0: 11}, group_id="a")
    setup.log.commit_all()
    setup.coordinator.on_transaction_completed(7, 0, committed=True)
    assert setup.offset(T0, "a") == 11


@pytest.mark.usefixtures("short_turns")
def test_a_marker_and_then_a_resignation_while_loading() -> None:
    setup = loading_for_several_turns()
    setup.deferred.pop(0)()
    write_marker(setup, 7, committed=True)
    setup.coordinator.on_resigned(0, 2)
    setup.run_deferred()
    assert setup.coordinator.partitions.active == []
    setup.elect(3)
    assert setup.offset(T0, "a") == 10


# What is in the log.


@pytest.mark.parametrize("codec", [0, compression.GZIP, compression.LZ4, compression.ZSTD])
def test_the_last_of_many_commits_counts(codec: int) -> None:
    setup = Setup()
    for offset in range(10):
        append(setup, commit("a", T0, offset), commit("a", T1, offset * 2), codec=codec)
    append(setup, (offset_key("a", T1), None), codec=codec)
    setup.elect(1)
    assert {key: found.value.offset for key, found in setup.fetch(group_id="a").items()} == {T0: 9}


def test_offsets_of_a_group_without_a_record() -> None:
    setup = Setup()
    append(setup, commit("simple", T0, 5))
    setup.elect(1)
    group = setup.group("simple")
    assert (group.state, group.protocol_type, group.generation_id) == (GroupState.EMPTY, None, 0)


def test_offsets_outlive_the_record_of_their_group() -> None:
    setup = Setup()
    (member,) = setup.stable_group()
    setup.commit({T0: 5}, member, 1)
    append(setup, (group_key(GROUP), None))
    setup.elect(1)
    assert setup.offset() == 5
    assert setup.group().members == {}


def test_a_deleted_group_that_came_back() -> None:
    setup = Setup()
    setup.stable_group()
    append(setup, (group_key(GROUP), None))
    append(setup, commit(GROUP, T0, 5))
    setup.elect(1)
    assert setup.offset() == 5
    assert setup.group().state is GroupState.EMPTY


def test_open_transactions_are_found_again() -> None:
    setup = Setup()
    append(setup, commit("a", T0, 1))
    append(setup, commit("a", T0, 10), producer_id=7)
    append(setup, commit("a", T1, 20), producer_id=8)
    mark(setup, 8, committed=True)
    setup.elect(1)
    assert (setup.offset(T0, "a"), setup.offset(T1, "a")) == (1, 20)
    assert setup.group("a").offsets.is_unstable(T0)
    setup.coordinator.on_transaction_completed(7, 0, committed=True)
    assert setup.offset(T0, "a") == 10


def test_a_plain_commit_after_a_transactions_wins_whenever_the_marker_comes() -> None:
    setup = Setup()
    append(setup, commit("a", T0, 10), producer_id=7)
    append(setup, commit("a", T0, 50))
    mark(setup, 7, committed=True)
    setup.elect(1)
    assert setup.offset(T0, "a") == 50


def test_a_transaction_after_a_plain_commit_wins() -> None:
    setup = Setup()
    append(setup, commit("a", T0, 50))
    append(setup, commit("a", T0, 10), producer_id=7)
    mark(setup, 7, committed=True)
    setup.elect(1)
    assert setup.offset(T0, "a") == 10


def test_aborted_offsets_and_markers_of_other_producers_are_nothing() -> None:
    setup = Setup()
    append(setup, commit("a", T0, 10), producer_id=7)
    mark(setup, 9, committed=True)
    mark(setup, 7, committed=False)
    setup.elect(1)
    assert setup.offset(T0, "a") == -1


def test_what_running_and_loading_make_of_the_same_log_is_the_same() -> None:
    setup = Setup()
    leader, _ = setup.stable_group(2)
    generation = setup.group().generation_id
    setup.commit({T0: 1, T1: 2}, leader, generation)
    setup.commit({T0: 5}, leader, generation, producer_id=3)
    setup.commit({T1: 6}, leader, generation, producer_id=4)
    for producer_id in (3, 4):
        mark(setup, producer_id, committed=producer_id == 3)
        setup.coordinator.on_transaction_completed(producer_id, 0, committed=producer_id == 3)
    loaded = Setup(setup.log)
    for partition in (T0, T1):
        assert loaded.fetch(partition) == setup.fetch(partition)
    ours, theirs = setup.group(), loaded.group()
    assert (theirs.state, theirs.generation_id, theirs.leader_id, list(theirs.members)) == (
        ours.state,
        ours.generation_id,
        ours.leader_id,
        list(ours.members),
    )
    assert theirs.state_timestamp_ms == ours.state_timestamp_ms


# Foreign bytes.


@pytest.mark.parametrize(
    "record",
    [
        (None, b"value"),
        (b"", b""),
        (b"\x00", None),
        (b"\x00\x01\x00\x63short", b"x"),
        (b"\x00\x09later", b"x"),
        (offset_key("b", T0), b"\x00\x63"),
        (offset_key("b", T0), b""),
        (group_key("b"), b"\x00\x03\x00"),
    ],
)
def test_foreign_records_are_skipped_with_a_line(
    record: Pair, caplog: pytest.LogCaptureFixture
) -> None:
    setup = Setup()
    append(setup, commit("a", T0, 1), record, commit("a", T1, 2))
    with caplog.at_level(logging.WARNING, "ottla.groups"):
        setup.elect(1)
    assert (setup.offset(T0, "a"), setup.offset(T1, "a")) == (1, 2)
    assert caplog.text.count("skipping a record") == 1


def test_a_flood_of_foreign_records_is_not_a_flood_of_lines(
    caplog: pytest.LogCaptureFixture,
) -> None:
    setup = Setup()
    append(setup, *((f"{number}".encode(), b"x") for number in range(500)), commit("a", T0, 1))
    with caplog.at_level(logging.INFO, "ottla"):
        setup.elect(1)
    assert setup.offset(T0, "a") == 1
    assert caplog.text.count("skipping a record") == 10
    assert "500 unreadable records" in caplog.text


def test_a_broken_batch_does_not_hide_the_next_chunk(caplog: pytest.LogCaptureFixture) -> None:
    partition = GroupPartition(0, 0, lambda: 1)
    good = build_batch([(1, *commit("a", T0, 1), None)])
    torn = bytearray(build_batch([(1, *commit("a", T1, 2), None)]))
    torn[57:61] = (9).to_bytes(4)  # says it holds nine records
    last = build_batch([(1, *commit("a", TopicPartition("t", 2), 3), None)])
    chunks = iter([memoryview(good), memoryview(torn), memoryview(last)])
    for _ in GroupLoader(partition, lambda: 1).run(chunks):
        pass
    assert [key.partition for key in partition.groups["a"].offsets.committed] == [0, 2]
    assert "corrupt" in caplog.text


def test_batches_have_the_codec_of_the_offsets_topic_and_load_again() -> None:
    setup = Setup(offsets_topic_compression_codec=compression.GZIP)
    (member,) = setup.stable_group()
    setup.commit({T0: 3}, member, 1)
    batches = setup.log.batches[0]
    assert {read_header(bytearray(batch)).codec for batch in batches} == {compression.GZIP}
    setup.elect(1)
    assert setup.offset() == 3
