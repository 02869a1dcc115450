"""Files of another log, or of an older copy of this one: valid in themselves, and not true here."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from ottla.storage.config import LogConfig
from ottla.storage.directories.log_manager import LogManager
from ottla.storage.log.log import Log
from tests.doubles.memory_file_system import MemoryFileSystem
from tests.doubles.storage_logs import NOW_MS, ROOT, append, batch_of, end_transaction

CONFIG = LogConfig(segment_bytes=1000, index_interval_bytes=100, retention_ms=-1)
OLD_FORMAT = CONFIG.replace(message_format_version="0.10.2")
TOPIC_ID = bytes(range(16))


def write(
    fs: MemoryFileSystem, fill: dict[str, Callable[[Log], None]], config: LogConfig = CONFIG
) -> None:
    """Fills the logs `t-0` and `other-0`, and stops cleanly."""
    manager = LogManager((ROOT,), config, fs)
    manager.load(NOW_MS)
    for topic, each in fill.items():
        log = manager.get_or_create(topic, 0, config=config, topic_id=TOPIC_ID, now_ms=NOW_MS)
        each(log)
        log.update_high_watermark(log.log_end_offset)
    manager.shutdown(NOW_MS)


def reopen(fs: MemoryFileSystem, config: LogConfig = CONFIG) -> Log:
    manager = LogManager((ROOT,), config, fs)
    manager.load(NOW_MS)
    log = manager.get("t", 0)
    assert log is not None
    log.update_high_watermark(log.log_end_offset)
    return log


def copy(fs: MemoryFileSystem, name: str) -> None:
    """The file of `other-0` replaces that of `t-0`."""
    fs.overwrite(f"{ROOT}/t-0/{name}", fs.content(f"{ROOT}/other-0/{name}"))


def of_producer(
    producer_id: int, transactional: bool = False, first_sequence: int = 0
) -> Callable[[Log], None]:
    def fill(log: Log) -> None:
        for number in range(10):
            append(
                log,
                producer_id=producer_id,
                producer_epoch=0,
                base_sequence=first_sequence + number,
                transactional=transactional,
            )

    return fill


@pytest.mark.parametrize("records", [1, 2])
def test_a_producer_of_both_logs(records: int, caplog: pytest.LogCaptureFixture) -> None:
    """Its batch is at that offset in the other log, too: with another sequence, or another end."""
    fs = MemoryFileSystem()
    write(fs, {"t": of_producer(1), "other": of_producer(1, first_sequence=100)})
    if records == 2:
        write(fs, {"t": lambda log: _two(log, 10), "other": lambda log: _two(log, 110)})
    end = 10 + (records - 1) * 2
    copy(fs, f"{end:020d}.snapshot")
    log = reopen(fs)
    assert "producer 1 has not written the batch with offset" in caplog.text
    assert log.producer_state.producers[1].last_sequence == end - 1


def _two(log: Log, sequence: int) -> None:
    append(log, 2, producer_id=1, producer_epoch=0, base_sequence=sequence)


@pytest.mark.parametrize("transactional", [False, True])
def test_producers_of_another_log(transactional: bool, caplog: pytest.LogCaptureFixture) -> None:
    fs = MemoryFileSystem()
    write(fs, {"t": of_producer(1), "other": of_producer(2, transactional)})
    copy(fs, f"{10:020d}.snapshot")
    log = reopen(fs)
    assert list(log.producer_state.producers) == [1]
    assert log.last_stable_offset == 10, "no transaction of the other log is open"
    assert "producer 2 has not written the batch with offset" in caplog.text
    # The next batch is in order, and the last one is a duplicate.
    assert append(log, producer_id=1, producer_epoch=0, base_sequence=9).first_offset == 9
    assert append(log, producer_id=1, producer_epoch=0, base_sequence=10).first_offset == 10


@pytest.mark.parametrize("transactional", [False, True])
def test_producers_of_an_earlier_offset(
    transactional: bool, caplog: pytest.LogCaptureFixture
) -> None:
    fs = MemoryFileSystem()

    def fill(log: Log) -> None:
        of_producer(1, transactional)(log)
        if transactional:
            end_transaction(log, 1, committed=True)

    write(fs, {"t": fill}, CONFIG.replace(segment_bytes=400))
    snapshots = sorted(path for path in fs.paths() if path.endswith(".snapshot"))
    fs.overwrite(snapshots[-1], fs.content(snapshots[0]))
    log = reopen(fs)
    assert log.last_stable_offset == log.log_end_offset
    assert log.producer_state.producers[1].batches[-1].last_offset == 9
    assert "the batch of producer 1 before it is not in it" in caplog.text


def of_epochs(*starts: int) -> Callable[[Log], None]:
    def fill(log: Log) -> None:
        epoch = -1
        for offset in range(30):
            epoch += offset in starts
            log.append(batch_of(), leader_epoch=epoch, now_ms=NOW_MS)

    return fill


@pytest.mark.parametrize("theirs", [(0,), (0, 5), (0, 5, 25), (0, 3, 9, 20), (0, 12)])
def test_leader_epochs_of_another_log(
    theirs: tuple[int, ...], caplog: pytest.LogCaptureFixture
) -> None:
    fs = MemoryFileSystem()
    write(fs, {"t": of_epochs(0, 10, 20), "other": of_epochs(*theirs)})
    copy(fs, "leader-epoch-checkpoint")
    log = reopen(fs)
    assert log.leader_epochs.entries == [(0, 0), (1, 10), (2, 20)]
    assert "Rebuilding leader epochs from all batches: offset" in caplog.text


@pytest.mark.parametrize("theirs", [(0, 5, 20), (0, 15, 20), (0, 11, 20), (0, 9, 20)])
def test_leader_epochs_of_another_log_with_the_same_latest_one(theirs: tuple[int, ...]) -> None:
    """Segments in remote storage are found by their epochs, so all of them are compared."""
    fs = MemoryFileSystem()
    write(fs, {"t": of_epochs(0, 10, 20), "other": of_epochs(*theirs)})
    copy(fs, "leader-epoch-checkpoint")
    log = reopen(fs, CONFIG.replace(has_remote_storage=True, remote_storage_enable=True))
    assert log.leader_epochs.entries == [(0, 0), (1, 10), (2, 20)]


def test_an_epoch_without_batches_is_no_contradiction(caplog: pytest.LogCaptureFixture) -> None:
    fs = MemoryFileSystem()

    def fill(log: Log) -> None:
        of_epochs(0, 10)(log)
        log.assign_epoch(5, log.log_end_offset)

    write(fs, {"t": fill})
    reopen(fs)
    assert caplog.text == ""


@pytest.mark.parametrize("kept", [0, 1])
def test_an_end_that_somebody_has_removed_is_named(
    kept: int, caplog: pytest.LogCaptureFixture
) -> None:
    fs = MemoryFileSystem()
    write(fs, {"t": of_producer(1)}, CONFIG.replace(segment_bytes=400))
    logs = [path for path in fs.paths() if path.endswith(".log") and "/t-0/" in path]
    for path in sorted(logs)[kept:]:
        fs.remove(path)
    log = reopen(fs, CONFIG)
    assert log.log_end_offset < 10
    line = f"t-0: The log ends at offset {log.log_end_offset}, and was closed with the end 10"
    assert line in caplog.text


def at_times(*newest: int) -> Callable[[Log], None]:
    def fill(log: Log) -> None:
        for number in newest:
            append(log, [(NOW_MS + number, b"k", b"v" * 20, [])])

    return fill


@pytest.mark.parametrize("config", [CONFIG, OLD_FORMAT])
def test_times_of_another_log(config: LogConfig) -> None:
    fs = MemoryFileSystem()
    config = config.replace(segment_bytes=10_000)
    times = [*range(20), *range(20)]
    # Each entry is newer than its batch: lookups begin behind the first record of that time.
    theirs = [number // 2 for number in range(40)]
    write(fs, {"t": at_times(*times), "other": at_times(*theirs)}, config)
    paths = [path for path in fs.paths() if path.endswith(".timeindex")]
    for name in {path.rpartition("/")[2] for path in paths}:
        if f"{ROOT}/t-0/{name}" in paths and f"{ROOT}/other-0/{name}" in paths:
            copy(fs, name)
    log = reopen(fs, config)
    for number in range(20):
        found = log.offset_for_timestamp(NOW_MS + number)
        assert found is not None
        assert found[:2] == (NOW_MS + number, number)
