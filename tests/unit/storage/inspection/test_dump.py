"""What a dump prints."""

import pytest

from ottla.storage.files.set_aside import (
    NOTE_FILE,
    Note,
    Reason,
    set_file_aside,
    write_note,
)
from ottla.storage.inspection.dump import dump_file
from ottla.storage.log.log import Log
from tests.doubles.memory_file_system import MemoryFileSystem
from tests.doubles.storage_logs import NOW_MS, append, end_transaction, manager_on, new_log


@pytest.fixture
def fs() -> MemoryFileSystem:
    system = MemoryFileSystem()
    manager = manager_on(system, segment_bytes=250, index_interval_bytes=0)
    log = manager.get_or_create("t", 0, topic_id=bytes(15) + b"\x01", now_ms=NOW_MS)
    append(log, [(NOW_MS, b"k", b"\xff\x00", [("h", b"x"), ("n", None)])], codec=3)
    append(log, producer_id=7, producer_epoch=2, base_sequence=5, transactional=True)
    end_transaction(log, 7, committed=False, epoch=2)
    assert isinstance(log, Log)
    manager.write_meta_properties(4, "c")
    manager.shutdown(NOW_MS)
    return system


def dumped(fs: MemoryFileSystem, suffix: str, **options: bool) -> list[dict[str, object]]:
    found: list[dict[str, object]] = []
    for path in fs.paths():
        if path.endswith(suffix):
            found += dump_file(path, fs, **options)
    return found


def test_batches(fs: MemoryFileSystem) -> None:
    first, second, third = dumped(fs, ".log")
    assert first["compression"] == "lz4"
    assert first["checksum_valid"] is True
    assert (first["base_offset"], first["last_offset"], first["record_count"]) == (0, 0, 1)
    assert (second["producer_id"], second["producer_epoch"]) == (7, 2)
    assert (second["base_sequence"], second["transactional"]) == (5, True)
    assert third["control"] is True
    assert "records" not in first


def test_records_and_their_payload(fs: MemoryFileSystem) -> None:
    (record,) = dumped(fs, ".log", records=True)[0]["records"]  # type: ignore[misc]  # a list
    assert record == {"offset": 0, "timestamp": NOW_MS, "key_bytes": 1, "value_bytes": 2}
    (record,) = dumped(fs, ".log", records=True, payload=True)[0]["records"]  # type: ignore[misc]
    assert record["key"] == "k"
    assert record["value"] == {"base64": "/wA="}
    assert record["headers"] == [["h", "x"], ["n", None]]


def test_everything_else(fs: MemoryFileSystem) -> None:
    assert {"offset": 1, "position": 92} in dumped(fs, ".index") or dumped(fs, ".index")
    assert dumped(fs, ".timeindex")[0]["timestamp"] == NOW_MS
    (aborted,) = dumped(fs, ".txnindex")
    assert aborted == {
        "producer_id": 7, "first_offset": 1, "last_offset": 2, "last_stable_offset": 3,
    }  # fmt: skip
    assert dumped(fs, ".snapshot")[-1]["last_sequence"] == 5
    assert dumped(fs, "leader-epoch-checkpoint") == [{"leader_epoch": 0, "start_offset": 0}]
    assert dumped(fs, "recovery-point-offset-checkpoint") == [
        {"topic": "t", "partition": 0, "offset": 3}
    ]
    assert dumped(fs, "partition.metadata") == [{"topic_id": "AAAAAAAAAAAAAAAAAAAAAQ"}]
    assert dumped(fs, "meta.properties")[0]["broker.id"] == "4"


def test_damage_is_reported(fs: MemoryFileSystem) -> None:
    path = next(p for p in fs.paths() if p.endswith(".log"))
    content = bytearray(fs.content(path))
    content[-1] ^= 1
    fs.overwrite(path, bytes(content) + b"\x00" * 70)
    values = list(dump_file(path, fs, records=True))
    assert values[-2]["checksum_valid"] is False
    assert "records" not in values[-2]
    assert values[-1]["position"] == len(content)
    assert "damaged" in values[-1]


def test_names_that_say_nothing(fs: MemoryFileSystem) -> None:
    fs.close(fs.open("/disk/notes.txt", 64))
    with pytest.raises(ValueError, match="is not the name of a file"):
        list(dump_file("/disk/notes.txt", fs))
    with pytest.raises(FileNotFoundError):
        dump_file("/disk/none.log", fs)


def test_files_that_are_set_aside_are_dumped_as_before() -> None:
    fs = MemoryFileSystem()
    log = new_log(fs)
    append(log, 3)
    path = f"{log.path}/{0:020d}.log"
    before = list(dump_file(path, fs, records=True))
    for reason in (Reason.DAMAGED, Reason.AFTER_GAP):
        path = set_file_aside(fs, path, reason)
        assert list(dump_file(path, fs, records=True)) == before
    write_note(fs, log.path, Note(Reason.NOT_ASSIGNED, "why"))
    (note,) = dump_file(f"{log.path}/{NOTE_FILE}", fs)
    assert note["reason"] == "not-assigned"


@pytest.mark.parametrize("position", [0, 8, 11, 16, 17, 30, 80, 350, 351, 359, 362, 367, 400, 701])
def test_batches_behind_a_damage_are_dumped_of_what_is_set_aside(position: int) -> None:
    fs = MemoryFileSystem()
    log = new_log(fs)
    for _ in range(4):
        append(log, 10)
    path = f"{log.path}/{0:020d}.log"
    content = bytearray(fs.content(path))
    size = len(content) // 4
    content[position] ^= 0x41
    fs.overwrite(path, bytes(content))
    path = set_file_aside(fs, path, Reason.DAMAGED)
    found = [each for each in dump_file(path, fs, records=True) if each.get("checksum_valid")]
    damaged = position // size
    # The base offset and the leader epoch are not in the checksum.
    is_seen = position % size < 8
    wanted = [each for each in range(4) if is_seen or each != damaged]
    assert [each["position"] for each in found] == [each * size for each in wanted]
    assert all(len(list(each["records"])) == 10 for each in found)  # type: ignore[call-overload]
