import logging

import pytest

from ottla.broker.share.coordinator.records import (
    StateRecord,
    snapshot_record,
    tombstone,
    update_record,
)
from ottla.broker.share.coordinator.share_coordinator import ShareStatePartition
from ottla.broker.share.coordinator.state import first_state
from ottla.broker.share.persister import SharePartitionKey, StateBatch, StateUpdate
from ottla.protocol.records.builder import build_batch

KEY = SharePartitionKey("group", bytes(16), 0)
STATE = first_state(0, 5, 1000, 0)
UPDATE = StateUpdate(-1, 0, 5, 1, (StateBatch(5, 6, 2, 1),))


def replayed(*records: tuple[bytes, bytes | None]) -> ShareStatePartition:
    partition = ShareStatePartition(0, 1)
    batch = build_batch([(1000, key, value, None) for key, value in records])
    list(partition.replay_log(iter([memoryview(batch)])))
    return partition


def test_a_snapshot_and_updates() -> None:
    partition = replayed(snapshot_record(KEY, STATE), update_record(KEY, STATE, UPDATE))
    assert partition.states == {KEY: STATE.updated(UPDATE)}
    assert partition.updates == {KEY: 1}
    assert partition.describe() == "1 share partitions"


def test_an_update_without_a_snapshot_is_ignored() -> None:
    partition = replayed(update_record(KEY, STATE, UPDATE))
    assert partition.is_empty


def test_a_tombstone() -> None:
    assert replayed(snapshot_record(KEY, STATE), tombstone(KEY)).is_empty


def test_records_that_cannot_be_read_are_skipped(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        partition = replayed((b"\0", b""), snapshot_record(KEY, STATE))
    assert (len(partition.states), partition.stored.skipped) == (1, 1)
    assert "skipping a record" in caplog.text


def test_a_record_after_an_append() -> None:
    partition = ShareStatePartition(0, 1)
    partition.replay(StateRecord(KEY, snapshot=STATE), 0)
    partition.replay(StateRecord(KEY), 1)
    assert partition.is_empty


def test_the_records_that_are_needed() -> None:
    other = KEY._replace(partition=1)
    partition = replayed(
        snapshot_record(KEY, STATE),
        snapshot_record(other, STATE),
        update_record(KEY, STATE, UPDATE),
        snapshot_record(KEY, STATE),
        *[update_record(KEY, STATE, UPDATE)] * 3,
    )
    assert (partition.needed_offset, partition.end_offset) == (1, 7)
    # The other key keeps five records that nothing needs.
    assert partition.cold_keys(STATE.write_timestamp_ms) == []
    assert partition.cold_keys(STATE.write_timestamp_ms + 1) == [other]
    partition.replay(StateRecord(other), 7)
    assert partition.needed_offset == 3
    partition.replay(StateRecord(KEY), 8)
    assert partition.needed_offset == 9
