"""What opening a log reads, keeps, rebuilds and deletes, file by file."""

from __future__ import annotations

import errno
import os

import pytest

from ottla.storage.config import LogConfig
from ottla.storage.files.deletions import Deletions
from ottla.storage.files.layout import LEADER_EPOCH_CHECKPOINT, segment_file_name
from ottla.storage.files.log_directory import LogDirectory
from ottla.storage.files.open_files import OpenFiles
from ottla.storage.log.local_log import PartitionDirectory
from ottla.storage.log.log import Log
from ottla.storage.producer.producer_entry import AppendedBatch, ProducerEntry
from ottla.storage.producer.producer_snapshot import encode_snapshot
from ottla.storage.recovery.load_progress import DirectoryProgress
from ottla.storage.recovery.recovery import Opening, open_log
from tests.doubles.memory_file_system import MemoryFileSystem
from tests.doubles.storage_logs import NOW_MS, ROOT, batch_of, marker, records_in

PATH = f"{ROOT}/t-0"
INDEXES = (".index", ".timeindex")


def opened(
    fs: MemoryFileSystem,
    *,
    clean: bool = False,
    recovery_point: int | None = 0,
    log_start_offset: int = 0,
    compacted_to: int = -1,
    progress: DirectoryProgress | None = None,
    **settings: object,
) -> Log:
    fs.make_directory(PATH)
    directory = PartitionDirectory(LogDirectory(fs, ROOT), PATH, "t", 0, OpenFiles())
    opening = Opening(
        clean=clean,
        recovery_point=recovery_point,
        log_start_offset=log_start_offset,
        now_ms=NOW_MS,
        compacted_to=compacted_to,
        progress=progress,
    )
    config = LogConfig(**{"index_interval_bytes": 0, **settings})
    return open_log(directory, config, opening, Deletions(fs))


def file_of(base_offset: int, suffix: str = ".log") -> str:
    return f"{PATH}/{segment_file_name(base_offset, suffix)}"


def write(fs: MemoryFileSystem, path: str, content: bytes) -> None:
    fs.make_directory(PATH)
    descriptor = fs.open(path, os.O_CREAT | os.O_RDWR)
    fs.pwrite(descriptor, content, 0)
    fs.close(descriptor)


def batches(start: int, end: int, epoch: int = 0) -> list[bytes]:
    """One record each, of a producer that has the offsets as its sequence numbers."""
    return [
        bytes(
            batch_of(
                [(NOW_MS + offset, b"k", bytes(20), [])],
                base_offset=offset,
                producer_id=7,
                producer_epoch=0,
                base_sequence=offset,
                leader_epoch=epoch,
            )
        )
        for offset in range(start, end)
    ]


def segments_of(fs: MemoryFileSystem, *ranges: tuple[int, int], **settings: object) -> None:
    """Segments with the offsets of the ranges and valid indexes, and nothing else."""
    for start, end in ranges:
        write(fs, file_of(start), b"".join(batches(start, end)))
    log = opened(fs, clean=True, **settings)
    for segment in log.segments:
        segment.finish()
    for path in fs.paths():
        if not path.endswith((".log", *INDEXES)):
            fs.remove(path)


def indexes(fs: MemoryFileSystem) -> dict[str, bytes]:
    return {path: fs.content(path) for path in fs.paths() if path.endswith(INDEXES)}


def with_zeros(fs: MemoryFileSystem, base_offset: int, suffix: str) -> None:
    """As after a crash: the size of the index is on disk, its last entries are not."""
    path = file_of(base_offset, suffix)
    fs.overwrite(path, fs.content(path) + bytes(24))


def flip(fs: MemoryFileSystem, base_offset: int, batch: int) -> None:
    """Damages a record of the segment's batch with this number."""
    path = file_of(base_offset)
    content = bytearray(fs.content(path))
    content[(batch + 1) * len(batches(0, 1)[0]) - 2] ^= 0xFF
    fs.overwrite(path, bytes(content))


def aside(log: Log) -> list[str]:
    assert all(log.log_directory.fs.exists(item.path) for item in log.log_directory.set_aside)
    return [item.path for item in log.log_directory.set_aside]


def offsets(log: Log) -> list[int]:
    return [record.offset for record in records_in(log)]


# --- segments that do not continue each other -----------------------------------------------------


@pytest.mark.parametrize("recovery_point", [None, 0, 2, 3, 8, 9, 1000])
@pytest.mark.parametrize("compacted_to", [-1, 0, 99])
def test_a_gap_is_no_loss(compacted_to: int, recovery_point: int | None) -> None:
    """What is behind it stays, as with Kafka, whatever the checkpoints say."""
    fs = MemoryFileSystem()
    segments_of(fs, (0, 3), (5, 7), (7, 9))
    log = opened(fs, compacted_to=compacted_to, recovery_point=recovery_point)
    assert offsets(log) == [0, 1, 2, 5, 6, 7, 8]
    assert log.producer_state.end_offset == 9
    assert log.log_directory.set_aside == []
    # A follower asks its leader for what is missing, unless compaction removed it.
    is_seen = recovery_point not in (8, 9, 1000)
    assert log.offsets.missing_from == (3 if compacted_to < 0 and is_seen else None)


def test_a_gap_at_the_end_of_a_log_is_no_loss() -> None:
    """Offsets that a consumer has committed are not given again."""
    fs = MemoryFileSystem()
    segments_of(fs, (0, 3), (5, 5))
    assert opened(fs, recovery_point=None).log_end_offset == 5


def test_what_was_truncated_does_not_come_back_behind_a_gap() -> None:
    """A power failure undid the removal of the segment. The log went on in a later epoch."""
    fs = MemoryFileSystem()
    write(fs, file_of(0), b"".join(batches(0, 3, epoch=4)))
    write(fs, file_of(5), b"".join(batches(5, 7, epoch=2)))
    log = opened(fs)
    assert (offsets(log), log.log_end_offset) == ([0, 1, 2], 3)
    assert aside(log) == [f"{file_of(5)}.after-gap.set-aside"]


@pytest.mark.parametrize(
    ("later", "epoch", "kept", "moved"),
    [
        ((2, 4), 0, list(range(6)), (2, ".log.overlap.set-aside")),
        ((4, 8), 0, list(range(8)), (0, ".log.overlap.set-aside")),
        ((4, 8), -1, list(range(6)), (4, ".log.overlap.set-aside")),
    ],
)
def test_of_segments_that_overlap_no_record_is_lost(
    later: tuple[int, int], epoch: int, kept: list[int], moved: tuple[int, str]
) -> None:
    fs = MemoryFileSystem()
    segments_of(fs, (0, 6))
    write(fs, file_of(later[0]), b"".join(batches(*later, epoch=epoch)))
    log = opened(fs, recovery_point=None)
    assert offsets(log) == kept
    assert aside(log) == [file_of(*moved)]
    assert sum(len(fs.content(path)) for path in fs.paths() if ".log" in path) == (
        (6 + later[1] - later[0]) * len(batches(0, 1)[0])
    )


def test_a_gap_before_an_empty_segment_and_records_is_no_loss() -> None:
    fs = MemoryFileSystem()
    segments_of(fs, (0, 3), (5, 5), (7, 9))
    log = opened(fs, cleanup_policy=("compact",))
    assert offsets(log) == [0, 1, 2, 7, 8]


@pytest.mark.parametrize("recovery_point", [0, 6])
@pytest.mark.parametrize("is_known", [True, False])
def test_segments_that_were_merged_into_another_are_removed(
    recovery_point: int, is_known: bool
) -> None:
    """Compaction had written the merged segment, and the others came back after a crash. They are
    deleted if its checkpoint says so as well."""
    fs = MemoryFileSystem()
    segments_of(fs, (0, 3), (3, 9), (9, 11))
    for start, end in ((4, 6), (6, 9)):
        write(fs, file_of(start), b"".join(batches(start, end)))
    log = opened(
        fs,
        cleanup_policy=("compact",),
        recovery_point=recovery_point,
        compacted_to=9 if is_known else -1,
    )
    assert log.segments.base_offsets == [0, 3, 9]
    assert offsets(log) == list(range(11))
    assert not fs.exists(file_of(4))
    names = [] if is_known else [f"{file_of(base)}.overlap.set-aside" for base in (4, 6)]
    assert aside(log) == names


def test_empty_segments_below_the_end_of_the_records_are_deleted() -> None:
    fs = MemoryFileSystem()
    segments_of(fs, (0, 6), (6, 9))
    for base_offset in (2, 3):
        write(fs, file_of(base_offset), b"")
    log = opened(fs)
    assert log.segments.base_offsets == [0, 6]
    assert offsets(log) == list(range(9))


def test_after_a_clean_stop_the_last_segment_hides_what_it_overlaps() -> None:
    fs = MemoryFileSystem()
    segments_of(fs, (0, 6), index_interval_bytes=10_000)
    write(fs, file_of(4), b"".join(batches(4, 5)))
    log = opened(fs, clean=True)
    assert log.segments.base_offsets == [0, 4]
    assert offsets(log) == list(range(5))
    first = log.segments.first
    assert (first.next_offset(), first.newest()) == (4, (NOW_MS + 3, 3))
    assert first.time_index.last() == (NOW_MS + 3, 3)
    assert aside(log) == [f"{file_of(0)}.overlap.set-aside"]
    assert fs.content(aside(log)[0]) == b"".join(batches(4, 6))


def test_without_space_an_overlap_stays() -> None:
    fs = MemoryFileSystem()
    segments_of(fs, (0, 6), index_interval_bytes=10_000)
    write(fs, file_of(4), b"".join(batches(4, 5)))
    fs.fail("pwrite", errno.ENOSPC, path_part="set-aside")
    log = opened(fs, clean=True)
    assert fs.content(file_of(0)) == b"".join(batches(0, 6))
    assert aside(log) == []
    assert not [path for path in fs.paths() if path.endswith(".tmp")]


def test_an_unreadable_segment_overlaps_nothing() -> None:
    fs = MemoryFileSystem()
    write(fs, file_of(0), b"no batch" * 20)
    write(fs, file_of(4), b"")
    log = opened(fs)
    assert (log.segments.base_offsets, log.log_end_offset) == ([0], 0)


# --- damage --------------------------------------------------------------------------------------


@pytest.mark.parametrize("policy", ["delete", "compact"])
@pytest.mark.parametrize("recovery_point", [None, 0])
def test_what_is_behind_a_damaged_batch_is_set_aside(
    policy: str, recovery_point: int | None
) -> None:
    fs = MemoryFileSystem()
    segments_of(fs, (0, 4), (4, 8), (8, 12), (12, 14))
    opened(fs).producer_state.take_snapshot()
    assert fs.exists(file_of(14, ".snapshot"))
    flip(fs, 4, 2)
    before = {base: fs.content(file_of(base)) for base in (4, 8, 12)}
    fs.calls.clear()
    log = opened(fs, cleanup_policy=(policy,), recovery_point=recovery_point)
    assert log.segments.base_offsets == [0, 4]
    assert offsets(log) == list(range(6))
    assert log.producer_state.snapshots == [4]
    names = [f"{file_of(4)}.damaged.set-aside"]
    names += [f"{file_of(base)}.after-gap.set-aside" for base in (12, 8)]
    assert aside(log) == names
    assert fs.content(names[0]) == before[4][2 * len(batches(0, 1)[0]) :]
    assert [fs.content(name) for name in names[1:]] == [before[12], before[8]]
    assert not any(fs.exists(file_of(base, suffix)) for base in (8, 12) for suffix in INDEXES)
    # Each step is on disk before the next one: another crash leaves no gap, and all bytes.
    wanted = ("truncate", "sync_directory", "replace", "sync")
    paths = {PATH, file_of(4), file_of(12), file_of(8), names[0], f"{names[0]}.tmp"}
    assert [each for each in fs.calls if each[0] in wanted and each[1] in paths] == [
        ("sync", f"{names[0]}.tmp"),
        ("replace", f"{names[0]}.tmp"),
        ("sync_directory", PATH),
        ("replace", file_of(12)),
        ("replace", file_of(8)),
        ("sync_directory", PATH),
        ("truncate", file_of(4)),
    ]


@pytest.mark.parametrize("recovery_point", [None, 0, 3])
@pytest.mark.parametrize("batch", [1, 3])
def test_damage_in_front_of_valid_batches_is_no_torn_write(
    batch: int, recovery_point: int | None
) -> None:
    """Nor is damage below the recovery point, or in a closed log."""
    fs = MemoryFileSystem()
    segments_of(fs, (0, 4))
    flip(fs, 0, batch)
    log = opened(fs, recovery_point=recovery_point)
    is_kept = batch == 1 and recovery_point != 3
    assert aside(log) == ([f"{file_of(0)}.damaged.set-aside"] if is_kept else [])
    fs = MemoryFileSystem()
    segments_of(fs, (0, 4))
    flip(fs, 0, 3)
    fs.remove(file_of(0, ".index"))
    fs.overwrite(file_of(0), fs.content(file_of(0))[:-1])
    for log in (opened(fs, clean=True), opened(fs, clean=True)):
        assert offsets(log) == [0, 1, 2]
        assert aside(log) == [f"{file_of(0)}.damaged.set-aside"]


def test_a_copy_that_a_crash_left_is_used_again() -> None:
    fs = MemoryFileSystem()
    segments_of(fs, (0, 4))
    flip(fs, 0, 1)
    content = fs.content(file_of(0))
    name = f"{file_of(0)}.damaged.set-aside"
    write(fs, name, content[len(batches(0, 1)[0]) :])
    assert aside(opened(fs)) == [name]
    fs.overwrite(file_of(0), content)
    fs.overwrite(name, b"of another damage".ljust(len(fs.content(name)), b"."))
    assert aside(opened(fs)) == [name, name.replace("damaged", "damaged.2")]


def test_without_space_for_a_copy_the_segment_is_set_aside() -> None:
    fs = MemoryFileSystem()
    segments_of(fs, (0, 4), (4, 8), (8, 12))
    flip(fs, 4, 1)
    content = fs.content(file_of(4))
    fs.fail("pwrite", errno.ENOSPC, path_part="set-aside")
    log = opened(fs)
    assert log.segments.base_offsets == [0, 4]
    assert (offsets(log), log.log_end_offset) == ([0, 1, 2, 3], 4)
    assert log.producer_state.producers[7].last_sequence == 3
    names = [f"{file_of(8)}.after-gap.set-aside", f"{file_of(4)}.damaged.set-aside"]
    assert aside(log) == names
    assert fs.content(names[1]) == content
    assert not [path for path in fs.paths() if path.endswith(".tmp")]


def test_segments_without_a_valid_batch_are_deleted() -> None:
    """Of a power failure: space that was reserved, or never written."""
    fs = MemoryFileSystem()
    segments_of(fs, (0, 4))
    fs.overwrite(file_of(0), fs.content(file_of(0))[:-1])
    write(fs, file_of(4), bytes(3 << 20))
    write(fs, file_of(8), b"")
    log = opened(fs)
    assert (log.segments.base_offsets, aside(log)) == ([0], [])


def test_a_recovery_point_above_the_end_is_not_one() -> None:
    """It is that of another log: everything is read, and what is damaged is found."""
    fs = MemoryFileSystem()
    segments_of(fs, (0, 4), (4, 8))
    flip(fs, 0, 2)
    log = opened(fs, recovery_point=8)
    assert log.log_end_offset == 8
    log = opened(fs, recovery_point=9)
    assert (offsets(log), log.recovery_point) == ([0, 1], 0)
    assert aside(log) == [f"{file_of(0)}.damaged.set-aside", f"{file_of(4)}.after-gap.set-aside"]


def test_where_nothing_is_deleted_the_directory_is_not_synced() -> None:
    fs = MemoryFileSystem()
    segments_of(fs, (0, 4))
    flip(fs, 0, 3)
    fs.calls.clear()
    assert opened(fs).log_end_offset == 3
    assert ("sync_directory", PATH) not in fs.calls


def test_what_is_discarded_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    fs = MemoryFileSystem()
    segments_of(fs, (0, 4))
    flip(fs, 0, 3)
    opened(fs)
    size = len(batches(0, 1)[0])
    assert f"Truncating to 3, discarding {size} bytes of segment 0" in caplog.text


def test_a_damaged_segment_without_indexes_is_recovered_after_a_clean_stop() -> None:
    fs = MemoryFileSystem()
    segments_of(fs, (0, 4), (4, 8), (8, 12))
    path = file_of(4)
    fs.overwrite(path, fs.content(path)[:-1])
    fs.remove(file_of(4, ".index"))
    log = opened(fs, clean=True, recovery_point=12)
    assert offsets(log) == list(range(7))
    assert log.recovery_point == 4


def test_an_index_beyond_the_end_of_the_last_segment_shows_after_a_clean_stop() -> None:
    """What remains of the log is read: it does not pass for empty."""
    fs = MemoryFileSystem()
    segments_of(fs, (0, 4), (4, 8))
    path = file_of(4)
    fs.overwrite(path, fs.content(path)[: 2 * len(batches(0, 1)[0])])
    log = opened(fs, clean=True, recovery_point=8)
    assert offsets(log) == list(range(6))


@pytest.mark.parametrize("suffix", INDEXES)
def test_a_damaged_index_of_the_last_segment_shows_after_a_clean_stop(
    suffix: str, caplog: pytest.LogCaptureFixture
) -> None:
    fs = MemoryFileSystem()
    segments_of(fs, (0, 4), (4, 8))
    before = indexes(fs)
    with_zeros(fs, 4, suffix)
    log = opened(fs, clean=True, recovery_point=8)
    assert "it is corrupt after a clean shutdown" in caplog.text
    assert (log.log_end_offset, log.recovery_point) == (8, 4)
    assert indexes(fs) == before


def test_missing_indexes_are_rebuilt_below_the_recovery_point(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Above it recovery writes them anyway."""
    fs = MemoryFileSystem()
    segments_of(fs, (0, 4), (4, 8), (8, 12))
    before = indexes(fs)
    for path in before:
        fs.remove(path)
    caplog.clear()
    opened(fs, recovery_point=4)
    text = "Rebuilding the indexes"
    rebuilt = [each.args[0] for each in caplog.records if text in each.msg and each.args]
    assert rebuilt == [file_of(0)]
    assert indexes(fs) == before
    for path in before:
        fs.remove(path)
    opened(fs, clean=True)
    assert indexes(fs) == before


def test_files_that_cannot_be_read_are_removed() -> None:
    fs = MemoryFileSystem()
    for name in (LEADER_EPOCH_CHECKPOINT, "partition.metadata"):
        write(fs, f"{PATH}/{name}", b"???")
    opened(fs)
    assert not fs.exists(f"{PATH}/{LEADER_EPOCH_CHECKPOINT}")
    assert not fs.exists(f"{PATH}/partition.metadata")


# --- what is known to be valid -------------------------------------------------------------------


@pytest.mark.parametrize("recovery_point", [2, 3, 6])
def test_what_was_flushed_is_not_read_again(recovery_point: int) -> None:
    """In the same segment: damage below the recovery point does not show."""
    fs = MemoryFileSystem()
    segments_of(fs, (0, 6))
    flip(fs, 0, 1)
    progress = DirectoryProgress()
    log = opened(fs, recovery_point=recovery_point, progress=progress)
    assert log.log_end_offset == 6
    assert progress.recovered_bytes == (6 - recovery_point) * len(batches(0, 1)[0])
    assert log.local.active.newest() == (NOW_MS + 5, 5)
    segment = log.local.active
    entries = [segment.offset_index.entry(n)[0] for n in range(segment.offset_index.entries)]
    assert entries == [offset for offset in range(1, 6) if offset != recovery_point]
    entries = [segment.time_index.entry(n)[1] for n in range(segment.time_index.entries)]
    assert entries == [offset for offset in range(1, 6) if offset != recovery_point]
    entries_left = segment.offset_index.entries_left, segment.time_index.entries_left
    assert segment.index_entries_left == min(entries_left)


@pytest.mark.parametrize("recovery_point", [1, 50])
def test_a_recovery_point_where_no_batch_begins(recovery_point: int) -> None:
    """The segment that contains it is read from its start."""
    fs = MemoryFileSystem()
    write(fs, file_of(0), bytes(batch_of(3)) + b"".join(batches(3, 6)))
    flip(fs, 0, 3)
    log = opened(fs, recovery_point=recovery_point)
    assert log.log_end_offset < 6
    assert log.recovery_point == (1 if recovery_point == 1 else 0)


@pytest.mark.parametrize("suffix", [*INDEXES, ".txnindex"])
@pytest.mark.parametrize("recovery_point", [0, 4])
def test_with_a_damaged_index_the_whole_segment_is_read(suffix: str, recovery_point: int) -> None:
    fs = MemoryFileSystem()
    data = batch_of(1, producer_id=9, producer_epoch=0, base_sequence=0, transactional=True)
    end = marker(9, committed=False)
    end[0:8] = (1).to_bytes(8, "big")
    write(fs, file_of(0), bytes(data) + bytes(end) + b"".join(batches(2, 6)))
    aborted = opened(fs).local.active.txn_index.entries()
    assert len(aborted) == 1
    before = indexes(fs)
    with_zeros(fs, 0, suffix)
    log = opened(fs, recovery_point=recovery_point)
    assert log.log_end_offset == 6
    assert indexes(fs) == before
    assert log.local.active.txn_index.entries() == aborted


def test_the_newest_timestamp_may_be_one_that_was_flushed() -> None:
    fs = MemoryFileSystem()
    newest = batch_of([(NOW_MS + 999, b"k", b"", [])])
    write(fs, file_of(0), bytes(newest) + b"".join(batches(1, 4)))
    log = opened(fs)
    log.local.active.finish()
    assert opened(fs, recovery_point=2).local.active.newest() == (NOW_MS + 999, 0)


# --- where the log starts ------------------------------------------------------------------------


def write_epochs(fs: MemoryFileSystem, *entries: tuple[int, int]) -> None:
    lines = ["0", str(len(entries)), *(f"{epoch} {start}" for epoch, start in entries), ""]
    write(fs, f"{PATH}/{LEADER_EPOCH_CHECKPOINT}", "\n".join(lines).encode())


@pytest.mark.parametrize("clean", [True, False])
@pytest.mark.parametrize("epochs", [[], [(0, 30)]])
def test_a_log_that_ends_below_its_start_has_nothing_of_before(
    clean: bool, epochs: list[tuple[int, int]]
) -> None:
    """If the leader epochs say so, too. What is there is set aside."""
    fs = MemoryFileSystem()
    segments_of(fs, (0, 4))
    write_epochs(fs, *epochs)
    content = fs.content(file_of(0))
    log = opened(fs, clean=clean, log_start_offset=30)
    assert (log.log_start_offset, log.log_end_offset) == (30, 30)
    assert log.leader_epochs.entries == []
    assert log.producer_state.producers == {}
    assert (log.producer_state.snapshots, log.producer_state.end_offset) == ([], 30)
    assert not fs.exists(file_of(0))
    assert aside(log) == [f"{file_of(0)}.below-log-start.set-aside"]
    assert fs.content(aside(log)[0]) == content


@pytest.mark.parametrize("clean", [True, False])
@pytest.mark.parametrize(
    ("begin", "start"),
    [*((0, each) for each in (1, 3, 4, 5, 30, 1 << 62)), *((None, each) for each in (4, 5, 30))],
)
def test_a_log_start_that_the_epochs_do_not_confirm_hides_nothing(
    clean: bool, start: int, begin: int | None, caplog: pytest.LogCaptureFixture
) -> None:
    fs = MemoryFileSystem()
    segments_of(fs, (0, 4), (4, 8))
    if begin is not None:
        write_epochs(fs, (0, begin))
    log = opened(fs, clean=clean, log_start_offset=start)
    assert (log.log_start_offset, offsets(log)) == (0, list(range(8)))
    assert f"Starting at offset 0 and not at {start}" in caplog.text


@pytest.mark.parametrize("clean", [True, False])
@pytest.mark.parametrize("start", [1, 3])
def test_deleted_records_stay_deleted_without_the_file_of_leader_epochs(
    clean: bool, start: int
) -> None:
    """The log start is in the first segment: what is below has been deleted, so it was one."""
    fs = MemoryFileSystem()
    segments_of(fs, (0, 4), (4, 8))
    log = opened(fs, clean=clean, log_start_offset=start)
    assert (log.log_start_offset, offsets(log)[-1]) == (start, 7)


@pytest.mark.parametrize("clean", [True, False])
@pytest.mark.parametrize("start", [3, 4, 5, 8])
def test_a_log_start_is_the_same_after_many_starts(clean: bool, start: int) -> None:
    """Also at the log end, where no leader epoch is left."""
    fs = MemoryFileSystem()
    segments_of(fs, (0, 4), (4, 8))
    log = opened(fs)
    log.update_high_watermark(8)
    log.truncator.delete_records_before(start)
    for _ in range(3):
        log = opened(fs, clean=clean, log_start_offset=start)
        assert log.log_start_offset == start


def test_the_start_of_a_log_without_leader_epochs_is_that_of_the_checkpoint() -> None:
    """Its messages have none. But a log does not begin behind its end."""
    fs = MemoryFileSystem()
    segments_of(fs, (0, 4), (4, 8))
    old = {"message_format_version": "0.10.0"}
    assert opened(fs, log_start_offset=5, **old).log_start_offset == 5
    assert opened(fs, log_start_offset=9, **old).log_start_offset == 0


@pytest.mark.parametrize("clean", [True, False])
def test_a_log_does_not_start_before_its_first_segment(clean: bool) -> None:
    fs = MemoryFileSystem()
    segments_of(fs, (4, 6), (6, 8))
    for offset in (4, 6):
        write(fs, file_of(offset, ".snapshot"), b"damaged")
    log = opened(fs, clean=clean)
    assert log.log_start_offset == 4
    assert 4 not in log.producer_state.snapshots
    assert log.producer_state.producers[7].last_sequence == 7


@pytest.mark.parametrize("clean", [True, False])
def test_producers_below_the_log_start_are_known(clean: bool) -> None:
    """As long as their records are on this disk."""
    fs = MemoryFileSystem()
    segments_of(fs, (0, 2))
    other = batch_of(1, base_offset=2, producer_id=8, producer_epoch=0, base_sequence=0)
    write(fs, file_of(2), bytes(other) + b"".join(batches(3, 5)))
    write_epochs(fs, (0, 3))
    log = opened(fs, clean=clean, log_start_offset=3)
    assert sorted(log.producer_state.producers) == [7, 8]


@pytest.mark.parametrize("clean", [True, False])
def test_leader_epochs_are_those_of_the_records(clean: bool) -> None:
    fs = MemoryFileSystem()
    parts = [*batches(0, 2, epoch=1), *batches(2, 4, epoch=3), *batches(4, 6, epoch=5)]
    write(fs, file_of(0), b"".join(parts))
    assert opened(fs).leader_epochs.entries == [(1, 0), (3, 2), (5, 4)]
    fs.overwrite(file_of(0), b"".join(parts[:4]))
    write_epochs(fs, (1, 1), (3, 2), (5, 4))
    log = opened(fs, clean=clean, log_start_offset=1)
    assert log.leader_epochs.entries == [(1, 1), (3, 2)]


@pytest.mark.parametrize("clean", [True, False])
def test_snapshots_of_no_segment_are_deleted_but_for_the_newest(clean: bool) -> None:
    fs = MemoryFileSystem()
    segments_of(fs, (0, 4), (4, 8))
    log = opened(fs)
    state = log.producer_state
    for offset in (2, 6, 7):
        entry = ProducerEntry(7)
        last = offset - 1
        entry.remember(0, AppendedBatch(last, last, last, last, NOW_MS))
        write(fs, file_of(offset, ".snapshot"), encode_snapshot([entry]))
    assert state.snapshots == [4]
    again = opened(fs, clean=clean, recovery_point=8)
    assert again.producer_state.snapshots == [4, 7]


@pytest.mark.parametrize(("preallocate", "size"), [(False, 0), (True, 5000)])
def test_the_first_segment_of_a_new_log(preallocate: bool, size: int) -> None:
    fs = MemoryFileSystem()
    log = opened(fs, preallocate=preallocate, segment_bytes=5000, log_start_offset=3)
    assert (log.log_start_offset, log.log_end_offset) == (3, 3)
    assert len(fs.content(file_of(3))) == size


def test_every_segment_that_is_recovered_gets_a_snapshot_and_whole_indexes() -> None:
    fs = MemoryFileSystem()
    segments_of(fs, (0, 4), (4, 8), (8, 10))
    before = indexes(fs)
    log = opened(fs)
    assert log.producer_state.snapshots == [4, 8]
    assert log.producer_state.end_offset == 10
    assert log.producer_state.producers[7].last_sequence == 9
    assert indexes(fs) == before
