import pytest

from ottla.broker.coordination.stored_records import UnreadableRecord
from ottla.broker.share.coordinator.records import (
    StateRecord,
    read_record,
    snapshot_record,
    tombstone,
    update_record,
)
from ottla.broker.share.coordinator.state import ShareState
from ottla.broker.share.persister import SharePartitionKey, StateBatch, StateUpdate

KEY = SharePartitionKey("group", bytes(range(16)), 3)
STATE = ShareState(1, 2, 3, 4, 5, 6, 7, (StateBatch(4, 8, 2, 1),))


def test_records_come_back() -> None:
    assert read_record(*snapshot_record(KEY, STATE)) == StateRecord(KEY, snapshot=STATE)
    update = StateUpdate(-1, 3, 4, 9, (StateBatch(4, 4, 0, 2),))
    assert read_record(*update_record(KEY, STATE, update)) == StateRecord(KEY, update=update)
    assert read_record(*tombstone(KEY)) == StateRecord(KEY)


def test_the_bytes_are_those_of_kafka() -> None:
    key, value = snapshot_record(KEY, STATE)
    assert key == b"\0\0" + b"\0\5group" + bytes(range(16)) + b"\0\0\0\3"
    assert value[:2] == b"\0\0"
    assert update_record(KEY, STATE, StateUpdate(0, 0, 0, 0, ()))[0][:2] == b"\0\1"


def test_what_cannot_be_read() -> None:
    assert read_record(b"\0\x09rest", b"") is None
    for key, value in (
        (b"\0", b""),
        (b"\0\0\0", b"\0\0"),
        (snapshot_record(KEY, STATE)[0], b"\0\7"),
    ):
        with pytest.raises(UnreadableRecord):
            read_record(key, value)
