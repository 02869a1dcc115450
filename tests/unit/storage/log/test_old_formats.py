"""Logs whose `message.format.version` is below 0.11: what is stored, and which epochs are known."""

from __future__ import annotations

import pytest

from ottla.protocol.records.batch import patch_base_offset
from ottla.protocol.records.legacy import build_message_set
from ottla.protocol.records.reader import iterate_entries, read_records
from ottla.protocol.records.record import Record
from ottla.storage.config import LogConfig
from ottla.storage.log.log import Log
from ottla.storage.producer.producer_entry import AppendOrigin
from ottla.storage.records.validation import validate_records
from ottla.storage.records.validation_budget import ValidationBudget, ValidationBudgetExceeded
from tests.doubles.memory_file_system import MemoryFileSystem
from tests.doubles.storage_logs import NOW_MS, batch_of, manager_on, marker, new_log, records_in

OLD = LogConfig(message_format_version="0.10.2")


def compressed(first_offset: int, count: int = 5) -> bytes:
    """Messages as a leader has them: one that holds several, with the offset of the last."""
    records = [Record(first_offset + n, NOW_MS, 0, b"k", b"v", []) for n in range(count)]
    return build_message_set(records, magic=1, codec=1)


def content_of(log: Log) -> bytes:
    found = log.read(0, 1 << 20, up_to=log.log_end_offset).slice
    assert found is not None
    return found.read()


def magics(log: Log) -> list[int]:
    return [header.magic for _, header in iterate_entries(content_of(log))]


@pytest.mark.parametrize(
    ("version", "magic"),
    [("0.8.2", 0), ("0.9.0-IV0", 0), ("0.10.0", 1), ("0.10.2-IV0", 1), ("0.11.0", 2), ("1.0", 2)],
)
def test_the_format_of_a_version(version: str, magic: int) -> None:
    config = LogConfig(message_format_version=version)
    assert config.record_magic == magic
    log = new_log()
    log.update_config(config)
    log.append(batch_of(1), leader_epoch=0, now_ms=NOW_MS)
    assert magics(log) == [magic]


def test_an_append_and_what_is_read() -> None:
    log = new_log(message_format_version="0.10.2")
    log.append(batch_of(2), leader_epoch=4, now_ms=NOW_MS)
    info = log.append(batch_of(3, codec=1), leader_epoch=4, now_ms=NOW_MS)
    assert (info.first_offset, info.last_offset) == (2, 4)
    assert [each.offset for each in read_records(content_of(log))] == [0, 1, 2, 3, 4]
    # An offset within compressed messages is found, too.
    found = log.read(3, 1 << 20, up_to=5)
    assert found.slice is not None
    assert [each.offset for each in read_records(found.slice.read())] == [2, 3, 4]
    assert log.offset_for_timestamp(NOW_MS + 1) == (NOW_MS + 1, 1, -1)


def test_old_messages_have_no_epochs() -> None:
    """Followers do not know them, so the leader must not compare with its own."""
    log = new_log()
    log.assign_epoch(3, 0)
    log.append(batch_of(2), leader_epoch=3, now_ms=NOW_MS)
    assert log.leader_epochs.entries == [(3, 0)]
    log.update_config(OLD)
    assert log.leader_epochs.entries == []
    log.append(batch_of(2), leader_epoch=3, now_ms=NOW_MS)
    assert log.leader_epochs.entries == []
    log.assign_epoch(4, log.log_end_offset)
    assert log.leader_epochs.entries == []
    log.update_config(LogConfig())
    log.append(batch_of(2), leader_epoch=4, now_ms=NOW_MS)
    assert log.leader_epochs.entries == [(4, 4)]


def test_a_follower_that_gets_old_messages_forgets_its_epochs() -> None:
    log = new_log()
    log.append(batch_of(2), leader_epoch=3, now_ms=NOW_MS)
    records = [Record(2, NOW_MS, 0, b"k", b"v", [])]
    log.append_as_follower(build_message_set(records, magic=1), now_ms=NOW_MS)
    assert (log.leader_epochs.entries, log.log_end_offset) == ([], 3)


def stored(first_offset: int, epoch: int) -> bytes:
    """A batch with two records as a leader has it."""
    batch = batch_of(2)
    patch_base_offset(batch, 0, first_offset, epoch)
    return bytes(batch)


def test_epochs_before_old_messages_are_unknown_also_in_one_response_and_after_a_crash() -> None:
    fs = MemoryFileSystem()
    log = new_log(fs)
    log.append_as_follower(stored(0, 3) + compressed(2) + stored(7, 5), now_ms=NOW_MS)
    assert log.leader_epochs.entries == [(5, 7)]
    log.append_as_follower(stored(9, 6) + compressed(11), now_ms=NOW_MS)
    assert log.leader_epochs.entries == []
    for is_lost in (False, True):
        if is_lost:
            fs.remove(log.leader_epochs.path)
        recovered = manager_on(fs).get("t", 0)
        assert recovered is not None
        assert recovered.leader_epochs.entries == []


def test_a_log_with_an_old_format_has_no_epochs_of_other_batches() -> None:
    """Its leader has none, and rejects requests with them."""
    fs = MemoryFileSystem()
    log = new_log(fs, message_format_version="0.10.2")
    log.append_as_follower(stored(0, 3), now_ms=NOW_MS)
    assert log.leader_epochs.entries == []
    recovered = manager_on(fs, message_format_version="0.10.2").get("t", 0)
    assert recovered is not None
    assert recovered.leader_epochs.entries == []
    current = manager_on(fs).get("t", 0)
    assert current is not None
    current.append_as_follower(stored(2, 4), now_ms=NOW_MS)
    assert current.leader_epochs.entries[-1] == (4, 2)


def test_a_tiered_log_keeps_the_current_format_and_its_epochs() -> None:
    """Its remote segments are found by epochs, and segments without are not copied."""
    log = new_log(remote_storage_enable=True)
    log.append(batch_of(2), leader_epoch=3, now_ms=NOW_MS)
    log.update_config(log.config.replace(message_format_version="0.10.2"))
    log.append(batch_of(2), leader_epoch=3, now_ms=NOW_MS)
    assert (magics(log), log.leader_epochs.entries) == ([2, 2], [(3, 0)])


def test_coordinators_store_the_current_format() -> None:
    log = new_log(message_format_version="0.9.0")
    log.append(marker(1, committed=True), leader_epoch=0, now_ms=NOW_MS,
               origin=AppendOrigin.COORDINATOR)  # fmt: skip
    assert magics(log) == [2]


def test_many_records_are_converted_in_a_worker() -> None:
    """The conversion counts for the budget of the event loop."""
    batch = batch_of(2_000)
    validate_records(batch, LogConfig(), AppendOrigin.CLIENT, NOW_MS, ValidationBudget())
    with pytest.raises(ValidationBudgetExceeded):
        validate_records(batch, OLD, AppendOrigin.CLIENT, NOW_MS, ValidationBudget())
    validated = validate_records(batch, OLD, AppendOrigin.CLIENT, NOW_MS)
    log = new_log(message_format_version="0.10.2")
    info = log.append_validated(validated, leader_epoch=0, now_ms=NOW_MS)
    assert (info.first_offset, info.last_offset) == (0, 1_999)


def test_a_segment_of_a_follower_begins_where_the_one_before_it_ends() -> None:
    """Not at the last offset of compressed messages: that would be a gap, and lost records."""
    fs, size = MemoryFileSystem(), len(compressed(0))
    log = new_log(fs, segment_bytes=size)
    log.append_as_follower(compressed(0), now_ms=NOW_MS)
    log.append_as_follower(compressed(5), now_ms=NOW_MS)
    log.append_as_follower(compressed(10) + compressed(15), now_ms=NOW_MS)
    assert log.segments.base_offsets == [0, 5, 10, 15]
    killed = manager_on(fs, segment_bytes=size).get("t", 0)
    assert killed is not None
    assert [each.offset for each in records_in(killed)] == list(range(20))
