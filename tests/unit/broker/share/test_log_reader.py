from ottla.broker.share.acquisition import AcquiredRecords
from ottla.broker.share.group_settings import OffsetReset
from ottla.broker.share.log_reader import read, readable_bytes, reset_offset
from ottla.protocol.records.reader import read_records
from tests.doubles.replicas import Replicas


def test_batches_from_the_one_with_the_offset_on() -> None:
    replicas = Replicas()
    partition = replicas.lead()
    for count in (2, 3, 4):
        replicas.append(count)
    log = partition.leader_log()
    found = read(log, 3, 1 << 20, False, 100)
    assert found is not None
    assert [batch[:2] for batch in found.batches] == [(2, 4), (5, 8)]
    part = found.of_acquired([AcquiredRecords(3, 4, 1)])
    assert [record.offset for record in read_records(part)] == [2, 3, 4]
    assert read(log, 9, 1 << 20, False, 100) is None
    assert readable_bytes(log, 9, 10, False) == 0
    assert readable_bytes(log, 0, 10, False) == 10


def test_no_more_batches_than_can_be_acquired() -> None:
    replicas = Replicas()
    log = replicas.lead().leader_log()
    for count in (2, 3, 4, 5):
        replicas.append(count)

    def last_offset(offset: int, most_records: int) -> int:
        found = read(log, offset, 1 << 20, False, most_records)
        assert found is not None
        assert [record.offset for record in read_records(found.records)][-1] == (
            found.batches[-1].last_offset
        )
        return found.batches[-1].last_offset

    assert [last_offset(0, most) for most in (0, 1, 2, 3, 5, 6, 100)] == [1, 1, 1, 4, 4, 8, 13]
    assert [last_offset(3, most) for most in (1, 2, 3, 6, 7)] == [4, 4, 8, 8, 13]


def test_where_a_group_without_state_begins() -> None:
    replicas = Replicas()
    log = replicas.lead().leader_log()
    replicas.append(5)
    now_ms = replicas.clock.now_ms()
    assert reset_offset(log, OffsetReset(True), now_ms) == 0
    assert reset_offset(log, OffsetReset(False), now_ms) == 5
    assert reset_offset(log, OffsetReset(False, 0), now_ms + 10**12) == 5
    assert reset_offset(log, OffsetReset(False, now_ms), now_ms) == 0
