"""The offsets of a log and what holds between them."""

import pytest

from ottla.storage.log.log_offsets import LogOffsets
from ottla.storage.producer.producer_state import ProducerState
from tests.doubles.memory_file_system import MemoryFileSystem
from tests.doubles.storage_logs import append, end_transaction, new_log


def offsets_of(start: int, end: int, recovery_point: int = 0) -> LogOffsets:
    return LogOffsets(
        ProducerState(MemoryFileSystem(), "t-0", "/disk/t-0"),
        log_start_offset=start,
        log_end_offset=end,
        recovery_point=recovery_point,
    )


def test_the_high_watermark_stays_between_start_and_end() -> None:
    offsets = offsets_of(3, 9)
    assert offsets.high_watermark == 3
    assert [offsets.update_high_watermark(to) for to in (5, 20, 0)] == [5, 9, 3]
    assert offsets.last_stable_offset == 3


def test_an_open_transaction_holds_the_last_stable_offset_until_its_marker_is_replicated() -> None:
    log = new_log()
    append(log)
    append(log, producer_id=7, producer_epoch=0, base_sequence=0, transactional=True)
    append(log)
    offsets = log.offsets
    assert (offsets.last_stable_offset, offsets.high_watermark) == (1, 3)
    end_transaction(log, 7, committed=True)
    assert offsets.first_unstable_offset is None
    assert offsets.last_stable_offset == 4


def test_the_log_start_takes_the_recovery_point_along() -> None:
    offsets = offsets_of(0, 9)
    offsets.update_high_watermark(8)
    offsets.advance_log_start(6)
    assert (offsets.log_start_offset, offsets.recovery_point) == (6, 6)


@pytest.mark.parametrize("recovery_point", [5, 6])
def test_a_truncation_lowers_whatever_was_above_the_new_end(recovery_point: int) -> None:
    offsets = offsets_of(0, 9, recovery_point)
    offsets.update_high_watermark(8)
    offsets.lower_to(5)
    assert (offsets.log_end_offset, offsets.high_watermark, offsets.recovery_point) == (5, 5, 5)
    assert repr(offsets) == "LogOffsets(0 to 5, high watermark 5, recovery point 5)"


def test_starting_again_sets_all_of_them() -> None:
    offsets = offsets_of(0, 9, 9)
    offsets.restart_at(40)
    assert (offsets.log_start_offset, offsets.log_end_offset) == (40, 40)
    assert (offsets.high_watermark, offsets.recovery_point) == (40, 40)


def test_a_recovery_point_above_the_end_is_a_defect() -> None:
    offsets = offsets_of(0, 9, 9)
    offsets.log_end_offset = 8
    with pytest.raises(AssertionError):
        offsets.check()
