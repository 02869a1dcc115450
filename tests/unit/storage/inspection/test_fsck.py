"""The offline check finds what is wrong, and nothing where all is well."""

from collections.abc import Callable

import pytest

from ottla.storage.config import LogConfig
from ottla.storage.files.set_aside import Reason, set_file_aside
from ottla.storage.inspection.fsck import PartitionCheck, partition_directories
from ottla.storage.log.log import Log
from tests.doubles.memory_file_system import MemoryFileSystem
from tests.doubles.storage_logs import NOW_MS, append, end_transaction, manager_on, plain


def stopped(fs: MemoryFileSystem) -> Log:
    manager = manager_on(fs, segment_bytes=1500, index_interval_bytes=150, retention_ms=-1)
    log = manager.get_or_create("t", 0, topic_id=b"i" * 16, now_ms=NOW_MS)
    for number in range(30):
        records = plain(2, NOW_MS + number * 10)
        batch = {"producer_id": 7, "producer_epoch": 0, "base_sequence": 2 * number}
        append(log, records, **batch, codec=number % 3, transactional=number > 25)
    end_transaction(log, 7, committed=False)
    manager.shutdown(NOW_MS)
    return log


def check(fs: MemoryFileSystem, path: str) -> PartitionCheck:
    before = {name: fs.content(name) for name in fs.paths()}
    result = PartitionCheck(path, fs, deep=True).run()
    assert {name: fs.content(name) for name in fs.paths()} == before, "it only looks"
    return result


def test_a_sound_log() -> None:
    fs = MemoryFileSystem()
    log = stopped(fs)
    result = check(fs, log.path)
    assert result.problems == []
    assert result.as_dict() == {
        "directory": "/disk/t-0", "log_start_offset": 0, "log_end_offset": 61, "batches": 31,
        "records": 61, "bytes": log.local.size_in_bytes, "set_aside": 0, "problems": [],
    }  # fmt: skip


def test_a_log_with_old_messages_knows_no_epochs_of_what_is_before_them() -> None:
    fs = MemoryFileSystem()
    manager = manager_on(fs)
    log = manager.get_or_create("t", 0, now_ms=NOW_MS)
    append(log, 2)
    log.update_config(LogConfig(message_format_version="0.10.2"))
    log.flusher.flush(NOW_MS)
    assert check(fs, log.path).problems == []
    append(log, 2)
    log.update_config(LogConfig())
    append(log, 2)
    manager.shutdown(NOW_MS)
    assert check(fs, log.path).problems == []
    assert log.leader_epochs.entries == [(0, 4)]


def test_an_empty_log_is_sound() -> None:
    fs = MemoryFileSystem()
    manager = manager_on(fs)
    manager.get_or_create("t", 0, now_ms=NOW_MS)
    manager.shutdown(NOW_MS)
    result = check(fs, "/disk/t-0")
    assert (result.problems, result.log_start_offset, result.log_end_offset) == ([], 0, 0)


def flip(suffix: str, position: int) -> Callable[[MemoryFileSystem], None]:
    def act(fs: MemoryFileSystem) -> None:
        path = next(p for p in fs.paths() if p.endswith(suffix))
        content = bytearray(fs.content(path))
        content[position] ^= 0x55
        fs.overwrite(path, bytes(content))

    return act


def drop(suffix: str) -> Callable[[MemoryFileSystem], None]:
    def act(fs: MemoryFileSystem) -> None:
        fs.remove(next(p for p in fs.paths() if p.endswith(suffix)))

    return act


def put(name: str, content: bytes) -> Callable[[MemoryFileSystem], None]:
    def act(fs: MemoryFileSystem) -> None:
        if not fs.exists(f"/disk/t-0/{name}"):
            fs.close(fs.open(f"/disk/t-0/{name}", 64 | 2))
        fs.overwrite(f"/disk/t-0/{name}", content)

    return act


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (flip(".log", 100), "checksum"),
        (flip(".log", 16), "no batch"),
        (flip(".log", 8), "is truncated"),
        (flip("00.index", 7), "no batch begins"),
        (flip("00.index", 2), "is not ascending"),
        (flip("00.timeindex", 14), "is not ascending"),
        (flip("00.timeindex", 2), "is not ascending"),
        (flip("00.timeindex", 6), "is above that of the entry"),
        (flip(".txnindex", 0), "version"),
        (flip(".snapshot", 20), "checksum"),
        (drop("00.index"), "index is missing"),
        (drop("00.timeindex"), "time index is missing"),
        (drop("00.log"), "there is no log file for it"),
        (put("00000000000000000000.index", b"12345"), "multiple"),
        (put("00000000000000000000.timeindex", b"12345"), "multiple"),
        (put("partition.metadata", b"junk"), "version"),
        (put("leader-epoch-checkpoint", b"junk\n"), "version"),
        (put("leader-epoch-checkpoint", b"0\n0\n"), "is missing"),
        (put("leader-epoch-checkpoint", b"0\n1\n0 5\n"), "is in the log at 0"),
        (put("leader-epoch-checkpoint", b"0\n2\n3 0\n0 9\n"), "are not ascending"),
    ],
)
def test_what_is_wrong_is_said(damage: Callable[[MemoryFileSystem], None], words: str) -> None:
    fs = MemoryFileSystem()
    stopped(fs)
    damage(fs)
    problems = check(fs, "/disk/t-0").problems
    assert any(words in str(problem["problem"]) for problem in problems), problems


def test_segments_that_overlap() -> None:
    fs = MemoryFileSystem()
    log = stopped(fs)
    first = log.segments.first.log.path
    second = list(log.segments)[1].log.path
    fs.overwrite(first, fs.content(first) + fs.content(second))
    found = [str(problem["problem"]) for problem in check(fs, log.path).problems]
    assert any("overlaps the previous segment" in text for text in found)


def test_indexes_only() -> None:
    fs = MemoryFileSystem()
    stopped(fs)
    drop(".snapshot")(fs)
    put("partition.metadata", b"junk")(fs)
    assert PartitionCheck("/disk/t-0", fs).run(indexes_only=True).problems == []


def test_finding_partitions() -> None:
    fs = MemoryFileSystem()
    stopped(fs)
    fs.make_directory("/disk/lost+found")
    assert partition_directories("/disk", fs) == ["/disk/t-0"]
    assert partition_directories("/disk/t-0", fs) == ["/disk/t-0"]


def test_files_that_are_set_aside_are_counted_and_not_checked() -> None:
    fs = MemoryFileSystem()
    log = stopped(fs)
    bases = [segment.base_offset for segment in log.segments]
    for base in bases:
        set_file_aside(fs, f"{log.path}/{base:020d}.log", Reason.DAMAGED)
        for suffix in ("index", "timeindex", "txnindex"):
            if fs.exists(path := f"{log.path}/{base:020d}.{suffix}"):
                fs.remove(path)
    assert partition_directories(log.path, fs) == [log.path]
    fs.remove(f"{log.path}/leader-epoch-checkpoint")
    result = check(fs, log.path)
    assert (result.set_aside, result.problems) == (len(bases), [])
