"""Taking back and discarding what is set aside."""

from __future__ import annotations

import errno
from collections.abc import Callable
from itertools import count
from pathlib import Path
from random import Random

import pytest

from ottla.storage.directories.log_manager import LogManager
from ottla.storage.errors import CorruptFile
from ottla.storage.files.checkpoints import (
    read_epoch_checkpoint,
    read_offset_checkpoint,
    write_offset_checkpoint,
)
from ottla.storage.files.fs import RealFileSystem, replace_file
from ottla.storage.files.layout import LOG_SUFFIX, segment_file_name
from ottla.storage.files.set_aside import (
    NOTE_FILE,
    Note,
    Reason,
    SetAside,
    set_file_aside,
    write_note,
)
from ottla.storage.inspection.set_aside_restore import (
    Refused,
    Restorer,
    find_set_aside,
    item_at,
    log_summary,
    root_of,
    summary_of,
)
from ottla.storage.log.log import Log
from tests.doubles.memory_file_system import MemoryFileSystem
from tests.doubles.storage_logs import (
    NOW_MS,
    ROOT,
    append,
    batch_of,
    end_transaction,
    fetched,
    manager_on,
)

DIRECTORY = f"{ROOT}/t-0"
OTHER = "/other"
DIGITS = "0" * 31
NUMBERS = count(100)
# A segment has two of the batches that `filled` appends.
SEGMENT_BYTES = 720
CHANGES = frozenset(("replace", "remove", "remove_tree", "pwrite", "sync", "sync_directory"))


class Killed(BaseException):
    """The process ends at this call."""


class MortalFileSystem(MemoryFileSystem):
    """Ends the process before the call number `dies_at` of those that change something."""

    dies_at = -1

    def _call(self, operation: str, path: str) -> object:  # type: ignore[override]
        if operation in CHANGES:
            self.dies_at -= 1
            if self.dies_at == 0:
                self.dies_at = 0
                raise Killed
        return super()._call(operation, path)


def filled(fs: MemoryFileSystem, batches: int = 10, **settings: int) -> None:
    """A log `t-0` of 10 records a batch, with two batches a segment, closed cleanly."""
    manager = manager_on(fs, segment_bytes=SEGMENT_BYTES, **settings)
    manager.write_meta_properties(1, "c")
    log = manager.get_or_create("t", 0, topic_id=b"i" * 16, now_ms=NOW_MS)
    for _ in range(batches):
        append(log, 10)
    manager.shutdown(NOW_MS)


def opened(fs: MemoryFileSystem, roots: tuple[str, ...] = (ROOT,)) -> Log:
    log = manager_on(fs, roots, segment_bytes=SEGMENT_BYTES).get("t", 0)
    assert log is not None
    return log


def offsets_of(log: Log) -> list[int]:
    return [record.offset for record in fetched(log)]


def bases(fs: MemoryFileSystem) -> list[int]:
    return sorted(int(name[:20]) for name in fs.list_files(DIRECTORY) if name.endswith(".log"))


def names_of(path: str, base: int) -> str:
    return f"{path}/{base:020d}.log"


def set_aside(fs: MemoryFileSystem, base: int, reason: Reason = Reason.AFTER_GAP) -> SetAside:
    """Sets a segment aside, without its indexes, as recovery does."""
    path = set_file_aside(fs, names_of(DIRECTORY, base), reason)
    for suffix in ("index", "timeindex", "snapshot"):
        index = f"{DIRECTORY}/{base:020d}.{suffix}"
        if fs.exists(index):
            fs.remove(index)
    fs.sync_directory(DIRECTORY)
    return item_at(fs, path)


def restorer(fs: MemoryFileSystem, *roots: str, knows_all: bool = False) -> Restorer:
    return Restorer(
        fs,
        roots or (ROOT,),
        NOW_MS,
        knows_all_roots=knows_all,
        unique_name=lambda: f"{next(NUMBERS):032x}",
    )


def stray(
    fs: MemoryFileSystem,
    reason: Reason = Reason.NOT_ASSIGNED,
    *,
    root: str = ROOT,
    name: str = "t-0",
    note: bool = True,
) -> SetAside:
    path = f"{root}/{name}.{DIGITS}a-stray"
    if note:
        write_note(fs, f"{root}/{name}", Note(reason, "why", True, NOW_MS))
    fs.replace(f"{root}/{name}", path)
    fs.sync_directory(root)
    return item_at(fs, path)


# --- parts of a log ---------------------------------------------------------------------------


@pytest.mark.parametrize("at", [0, 1, 2, -1])
def test_a_segment_comes_back_with_all_its_records(at: int) -> None:
    fs = MemoryFileSystem()
    filled(fs)
    base = bases(fs)[at]
    item = set_aside(fs, base)
    assert summary_of(fs, item)[:2] == (base, base + (20 if at >= 0 else 100 - base))
    assert "restored" in restorer(fs).restore(item)
    log = opened(fs)
    assert offsets_of(log) == list(range(100))
    assert not log.log_directory.set_aside
    assert log.topic_id == b"i" * 16


def test_segments_at_the_end_come_back_after_the_broker_served_without_them() -> None:
    """The start truncated the epochs, wrote its checkpoints and began at the gap."""
    fs = MemoryFileSystem()
    filled(fs)
    gone, *behind = bases(fs)[2:]
    items = [set_aside(fs, base) for base in behind]
    lost = set_aside(fs, gone, Reason.DAMAGED)
    manager = manager_on(fs, segment_bytes=SEGMENT_BYTES)
    log = manager.get("t", 0)
    assert log is not None
    assert log.log_end_offset == gone
    assert len(log.log_directory.set_aside) == 4 - 1
    manager.shutdown(NOW_MS)
    work = restorer(fs)
    for item in items:
        work.restore(item)
    fs.remove(lost.path)
    log = opened(fs)
    assert offsets_of(log) == [*range(gone), *range(behind[0], 100)]
    # An unclean start later recovers it from the recovery point on, behind the gap.
    assert offsets_of(opened(fs.after_kill())) == offsets_of(log)


def test_a_segment_below_the_log_start_is_served_again() -> None:
    fs = MemoryFileSystem()
    filled(fs)
    manager = manager_on(fs, segment_bytes=SEGMENT_BYTES)
    log = manager.get("t", 0)
    assert log is not None
    log.truncator.delete_records_before(25)
    manager.shutdown(NOW_MS)
    assert read_offset_checkpoint(fs, f"{ROOT}/log-start-offset-checkpoint") == {("t", 0): 25}
    item = set_aside(fs, 0, Reason.BELOW_LOG_START)
    assert offsets_of(opened(fs.after_kill()))[0] == 25
    restorer(fs).restore(item)
    assert offsets_of(opened(fs)) == list(range(100))


def test_the_end_of_a_segment_comes_back_as_a_segment() -> None:
    """Recovery copies it under the name of the segment, which it truncates."""
    fs = MemoryFileSystem()
    filled(fs)
    path = names_of(DIRECTORY, 80)
    content = fs.content(path)
    half = len(content) // 2
    fs.overwrite(path, content[:half])
    aside = f"{path}.damaged.set-aside"
    replace_file(fs, aside, content[half:], sync=True)
    for suffix in ("index", "timeindex"):
        fs.remove(f"{DIRECTORY}/{80:020d}.{suffix}")
    assert opened(fs).log_end_offset == 90
    restorer(fs).restore(item_at(fs, aside))
    assert bases(fs)[-2:] == [80, 90]
    assert offsets_of(opened(fs)) == list(range(100))


def test_all_segments_come_back_to_an_empty_log() -> None:
    fs = MemoryFileSystem()
    filled(fs)
    items = [set_aside(fs, base, Reason.DAMAGED) for base in bases(fs)]
    manager = manager_on(fs, segment_bytes=SEGMENT_BYTES)
    manager.shutdown(NOW_MS)
    assert bases(fs) == [0]
    work = restorer(fs)
    for item in items:
        work.restore(item)
    assert offsets_of(opened(fs)) == list(range(100))


def test_an_empty_segment_inside_of_what_comes_back_is_removed() -> None:
    fs = MemoryFileSystem()
    filled(fs)
    item = set_aside(fs, 40)
    replace_file(fs, names_of(DIRECTORY, 50), b"", sync=True)
    restorer(fs).restore(item)
    assert 50 not in bases(fs)
    assert offsets_of(opened(fs)) == list(range(100))


def test_offsets_of_other_logs_stay_in_the_checkpoints() -> None:
    fs = MemoryFileSystem()
    filled(fs)
    path = f"{ROOT}/recovery-point-offset-checkpoint"
    write_offset_checkpoint(fs, path, {("t", 0): 10, ("u", 1): 7})
    last, before = set_aside(fs, 80), set_aside(fs, 60)
    restorer(fs).restore(last)
    assert read_offset_checkpoint(fs, path) == {("t", 0): 80, ("u", 1): 7}
    log = opened(fs.after_kill())
    assert offsets_of(log) == [*range(60), *range(80, 100)]
    path = f"{ROOT}/log-start-offset-checkpoint"
    replace_file(fs, path, b"garbage", sync=True)
    with pytest.raises(CorruptFile, match="log-start-offset-checkpoint"):
        restorer(fs).restore(before)
    assert fs.exists(before.path)


def test_leader_epochs_are_known_again() -> None:
    fs = MemoryFileSystem()
    manager = manager_on(fs, segment_bytes=SEGMENT_BYTES)
    manager.write_meta_properties(1, "c")
    log = manager.get_or_create("t", 0, now_ms=NOW_MS)
    for number in range(6):
        log.append(batch_of(10), leader_epoch=number, now_ms=NOW_MS)
    manager.shutdown(NOW_MS)
    items = [set_aside(fs, base) for base in bases(fs)[1:]]
    manager_on(fs, segment_bytes=SEGMENT_BYTES).shutdown(NOW_MS)
    path = f"{DIRECTORY}/leader-epoch-checkpoint"
    assert len(read_epoch_checkpoint(fs, path)) == 2
    work = restorer(fs)
    for item in items:
        work.restore(item)
    assert read_epoch_checkpoint(fs, path) == [(number, number * 10) for number in range(6)]


def test_what_another_leader_has_written_since_is_not_mixed() -> None:
    fs = MemoryFileSystem()
    filled(fs)
    item = set_aside(fs, bases(fs)[-1])
    manager = manager_on(fs, segment_bytes=SEGMENT_BYTES)
    log = manager.get("t", 0)
    assert log is not None
    log.append(batch_of(1), leader_epoch=3, now_ms=NOW_MS)
    manager.shutdown(NOW_MS)
    with pytest.raises(Refused, match="overlaps segment"):
        restorer(fs).restore(item)
    # A gap in between does not make it better.
    path = f"{DIRECTORY}/{200:020d}.log.after-gap.set-aside"
    other = MemoryFileSystem()
    filled(other, batches=24)
    descriptor = other.open(names_of(DIRECTORY, 200), 0)
    replace_file(fs, path, other.pread(descriptor, 10_000, 0), sync=True)
    other.close(descriptor)
    with pytest.raises(Refused, match="another leader"):
        restorer(fs).restore(item_at(fs, path))


def damage(fs: MemoryFileSystem, path: str) -> None:
    content = bytearray(fs.content(path))
    content[-1] ^= 1
    fs.overwrite(path, bytes(content))


def test_refusals_name_the_reason_and_change_nothing() -> None:
    fs = MemoryFileSystem()
    filled(fs)
    item = set_aside(fs, 40)

    def refuses(path: str, reason: str) -> None:
        before = {each: fs.content(each) for each in fs.paths()}
        with pytest.raises(Refused, match=reason):
            restorer(fs).restore(item_at(fs, path))
        assert {each: fs.content(each) for each in fs.paths()} == before

    damaged = f"{DIRECTORY}/{40:020d}.log.damaged.set-aside"
    replace_file(fs, damaged, fs.content(item.path), sync=True)
    damage(fs, damaged)
    refuses(damaged, r"is damaged \(position .*checksum.*ottla log dump --payload")
    index = f"{DIRECTORY}/{40:020d}.index.damaged.set-aside"
    replace_file(fs, index, b"12345678", sync=True)
    refuses(index, "the broker rebuilds such files; discard it")
    empty = f"{DIRECTORY}/{40:020d}.log.damaged.2.set-aside"
    replace_file(fs, empty, b"", sync=True)
    refuses(empty, "has no records; discard it")
    wrong_name = f"{DIRECTORY}/{45:020d}.log.overlap.set-aside"
    replace_file(fs, wrong_name, fs.content(item.path), sync=True)
    refuses(wrong_name, "comes after offset 44")
    far = f"{DIRECTORY}/{1 << 40:020d}.log.overlap.set-aside"
    replace_file(fs, far, fs.content(item.path), sync=True)
    refuses(far, "comes after offset")
    swap = names_of(DIRECTORY, 0) + ".swap"
    replace_file(fs, swap, b"", sync=True)
    refuses(item.path, "a compaction of .* was interrupted")
    fs.remove(swap)
    # What recovery would read, and does not because of another gap behind it.
    write_offset_checkpoint(fs, f"{ROOT}/recovery-point-offset-checkpoint", {("t", 0): 0})
    set_aside(fs, 60)
    damage(fs, names_of(DIRECTORY, 20))
    refuses(item.path, "start the broker once")


def test_an_overlap_is_refused_on_both_sides() -> None:
    fs = MemoryFileSystem()
    filled(fs)
    for base in (20, 80):
        copy = f"{DIRECTORY}/{base:020d}.log.overlap.set-aside"
        replace_file(fs, copy, fs.content(names_of(DIRECTORY, base)), sync=True)
        with pytest.raises(Refused, match=f"overlaps segment {base}"):
            restorer(fs).restore(item_at(fs, copy))


def test_an_aborted_transaction_stays_aborted() -> None:
    fs = MemoryFileSystem()
    manager = manager_on(fs, segment_bytes=SEGMENT_BYTES)
    manager.write_meta_properties(1, "c")
    log = manager.get_or_create("t", 0, now_ms=NOW_MS)
    append(log, 10)
    append(log, 10)
    append(log, 5, producer_id=1, producer_epoch=0, base_sequence=0, transactional=True)
    end_transaction(log, 1, committed=False)
    for _ in range(4):
        append(log, 10)
    manager.shutdown(NOW_MS)
    assert fs.exists(f"{DIRECTORY}/{20:020d}.txnindex")
    item = set_aside(fs, 20)
    fs.remove(f"{DIRECTORY}/{20:020d}.txnindex")
    restorer(fs).restore(item)
    log = opened(fs)
    assert len(offsets_of(log)) == log.log_end_offset
    found = log.read(20, 1 << 20, up_to=log.log_end_offset)
    assert found.slice is not None
    assert [each.producer_id for each in log.segments.from_offset(20)[0].txn_index.entries()] == [1]


def with_transaction(fs: MemoryFileSystem) -> int:
    """A log whose segment of offset 20 has records of a transaction that is aborted in the next
    segment. Returns its base offset."""
    manager = manager_on(fs, segment_bytes=SEGMENT_BYTES)
    manager.write_meta_properties(1, "c")
    log = manager.get_or_create("t", 0, now_ms=NOW_MS)
    for _ in range(3):
        append(log, 10)
    append(log, 5, producer_id=1, producer_epoch=0, base_sequence=0, transactional=True)
    for _ in range(3):
        append(log, 10)
    end_transaction(log, 1, committed=False)
    append(log, 10)
    manager.shutdown(NOW_MS)
    return 20


def aborted(log: Log) -> list[tuple[int, int]]:
    return [
        (entry.first_offset, entry.last_offset)
        for segment in log.segments
        for entry in segment.txn_index.entries()
    ]


@pytest.mark.parametrize("dies_at", [0, *range(1, 40)])
def test_an_abort_behind_a_segment_that_was_away_is_known(dies_at: int) -> None:
    """A broker that recovered the later segment meanwhile could not know what it aborts."""
    fs = MortalFileSystem()
    base = with_transaction(fs)
    wanted = aborted(opened(fs.after_kill()))
    assert wanted == [(30, 65)]
    item = set_aside(fs, base)
    later = [each for each in bases(fs) if each > base]
    # As recovery leaves them that does not have the transaction.
    for each in later:
        path = f"{DIRECTORY}/{each:020d}.txnindex"
        if fs.exists(path):
            fs.remove(path)
    fs.dies_at = dies_at or -1
    try:
        restorer(fs).restore(item)
    except Killed:
        left = fs.after_kill()
        if left.exists(item.path):
            restorer(left).restore(item_at(left, item.path))
        else:
            done = restorer(left).finish(item.path)
            assert done is not None
            assert "the next start recovers" in done
    else:
        left = fs.after_kill()
    log = opened(left)
    assert aborted(log) == wanted
    assert log.high_watermark in (log.last_stable_offset, 0)


# --- whole logs -------------------------------------------------------------------------------


def test_a_whole_log_comes_back() -> None:
    fs = MemoryFileSystem()
    filled(fs)
    item = stray(fs)
    for name in ("recovery-point", "log-start", "replication", "cleaner"):
        # Of a later log of this partition, which was here for a while.
        path = f"{ROOT}/{name}-offset-checkpoint"
        write_offset_checkpoint(fs, path, {("t", 0): 60, ("u", 0): 3})
    (found,) = find_set_aside(fs, [ROOT])
    assert found == item
    assert (item.reason, item.detail, item.set_aside_ms) == (Reason.NOT_ASSIGNED, "why", NOW_MS)
    assert str(summary_of(fs, item)).startswith("offsets 0 to 100, ")
    assert restorer(fs).restore(item).startswith(f"restored {DIRECTORY} (offsets 0 to 100")
    assert not fs.exists(f"{DIRECTORY}/{NOTE_FILE}")
    assert not fs.exists(f"{ROOT}/.kafka_cleanshutdown")
    path = f"{ROOT}/log-start-offset-checkpoint"
    assert read_offset_checkpoint(fs, path) == {("u", 0): 3}
    log = opened(fs)
    assert offsets_of(log) == list(range(100))
    assert not log.log_directory.set_aside


def test_a_log_in_its_place_is_replaced_on_request_only() -> None:
    fs = MemoryFileSystem()
    filled(fs)
    item = stray(fs)
    manager = manager_on(fs)
    append(manager.get_or_create("t", 0, topic_id=b"j" * 16, now_ms=NOW_MS), 3)
    manager.shutdown(NOW_MS)
    with pytest.raises(Refused, match=r"offsets 0 to 100, .*offsets 0 to 3, .*--replace"):
        restorer(fs).restore(item)
    done = restorer(fs).restore(item, replace=True)
    assert "is set aside (offsets 0 to 3" in done
    assert "topic id" in done
    log = opened(fs)
    assert offsets_of(log) == list(range(100))
    (replaced,) = log.log_directory.set_aside
    assert (replaced.reason, replaced.needs_attention) == (Reason.REPLACED, False)
    assert item.path in replaced.detail
    # And back.
    manager = manager_on(fs)
    manager.shutdown(NOW_MS)
    restorer(fs).restore(replaced, replace=True)
    assert opened(fs).log_end_offset == 3


def test_a_second_copy_needs_all_log_directories() -> None:
    fs = MemoryFileSystem()
    fs.make_directory(OTHER)
    filled(fs)
    item = stray(fs, Reason.SECOND_COPY)
    with pytest.raises(Refused, match="--log-dir"):
        restorer(fs).restore(item)
    manager = manager_on(fs, (OTHER,))
    append(manager.get_or_create("t", 0, now_ms=NOW_MS), 3)
    manager.shutdown(NOW_MS)
    with pytest.raises(Refused, match=f"which is {OTHER}/t-0"):
        restorer(fs, ROOT, OTHER, knows_all=True).restore(item)
    restorer(fs, ROOT, OTHER, knows_all=True).restore(item, replace=True)
    log = opened(fs, (ROOT, OTHER))
    assert (log.path, log.log_end_offset) == (DIRECTORY, 100)


def test_a_future_log_without_a_current_one_becomes_it() -> None:
    fs = MemoryFileSystem()
    filled(fs)
    fs.replace(DIRECTORY, f"{ROOT}/t-0.{DIGITS}b-future")
    (item,) = find_set_aside(fs, [ROOT])
    assert item.reason is Reason.INCOMPLETE_MOVE
    assert root_of(item) == ROOT
    restorer(fs, ROOT, knows_all=True).restore(item)
    assert offsets_of(opened(fs)) == list(range(100))
    fs.make_directory(f"{ROOT}/t-0.{DIGITS}c-future")
    assert find_set_aside(fs, [ROOT]) == []


def test_a_long_topic_name_comes_back_whole() -> None:
    fs, topic = MemoryFileSystem(), "t" * 249
    manager = manager_on(fs)
    manager.write_meta_properties(1, "c")
    append(manager.get_or_create(topic, 0, now_ms=NOW_MS), 3)
    manager.delete_async(topic, 0, NOW_MS, Note(Reason.NOT_ASSIGNED, "why"))
    manager.shutdown(NOW_MS)
    (item,) = find_set_aside(fs, [ROOT])
    assert item.topic == topic
    assert topic not in item.path
    fs.remove(f"{item.path}/{NOTE_FILE}")
    with pytest.raises(Refused, match="first part of a long topic name"):
        restorer(fs).restore(item_at(fs, item.path))
    write_note(fs, item.path, Note(Reason.NOT_ASSIGNED, "why"), (topic, 0))
    restorer(fs).restore(item_at(fs, item.path))
    found = manager_on(fs).get(topic, 0)
    assert found is not None
    assert found.log_end_offset == 3


def test_a_note_about_another_partition_is_not_believed() -> None:
    fs = MemoryFileSystem()
    filled(fs)
    item = stray(fs)
    for log in (("u", 0), ("t", 1)):
        write_note(fs, item.path, Note(Reason.NOT_ASSIGNED, "why"), log)
        assert item_at(fs, item.path)[1:3] == ("t", 0)


# --- what is refused, and what is deleted --------------------------------------------------------


def test_only_what_is_set_aside_is_an_item() -> None:
    fs = MemoryFileSystem()
    filled(fs)
    item = set_aside(fs, 20)
    for path, reason in (
        (DIRECTORY, "is not set aside"),
        (names_of(DIRECTORY, 0), "is not set aside"),
        (ROOT, "is not set aside"),
        (f"{ROOT}/meta.properties", "is not set aside"),
        (f"{ROOT}/none.{DIGITS}a-stray", "does not exist"),
        (f"{DIRECTORY}/none.set-aside", "does not exist"),
    ):
        with pytest.raises(Refused, match=reason):
            item_at(fs, path)
    # Elsewhere than in a log directory.
    fs.make_directory(f"/home/x/t-0.{DIGITS}a-stray")
    with pytest.raises(Refused, match="is not set aside"):
        item_at(fs, f"/home/x/t-0.{DIGITS}a-stray")
    replace_file(fs, "/home/x/notes.set-aside", b"", sync=True)
    with pytest.raises(Refused, match="is not set aside"):
        item_at(fs, "/home/x/notes.set-aside")
    assert item_at(fs, item.path) == item


def test_parts_of_a_log_that_is_set_aside_come_after_it() -> None:
    fs = MemoryFileSystem()
    filled(fs)
    part = set_aside(fs, 20)
    whole = stray(fs)
    assert find_set_aside(fs, [ROOT]) == [whole]
    inside = item_at(fs, part.path.replace(DIRECTORY, whole.path))
    with pytest.raises(Refused, match="restore that first"):
        restorer(fs).restore(inside)
    work = restorer(fs)
    work.restore(whole)
    work.restore(part)
    assert offsets_of(opened(fs)) == list(range(100))


def test_discard() -> None:
    fs = MemoryFileSystem()
    filled(fs)
    part = set_aside(fs, bases(fs)[-1])
    assert part.path in restorer(fs).discard(part)
    whole = stray(fs)
    restorer(fs).discard(whole)
    assert find_set_aside(fs, [ROOT]) == []
    assert fs.list_directories(ROOT) == []


# --- a process that ends at any call ----------------------------------------------------------


def change_part(fs: MemoryFileSystem) -> Callable[[Restorer], str | None]:
    item = set_aside(fs, 40)
    return lambda work: work.restore(item_at(fs, item.path)) if fs.exists(item.path) else ""


def change_last(fs: MemoryFileSystem) -> Callable[[Restorer], str | None]:
    item = set_aside(fs, bases(fs)[-1])
    manager_on(fs, segment_bytes=SEGMENT_BYTES).shutdown(NOW_MS)
    return lambda work: work.restore(item_at(fs, item.path)) if fs.exists(item.path) else ""


def change_whole(fs: MemoryFileSystem) -> Callable[[Restorer], str | None]:
    path = stray(fs).path

    def run(work: Restorer) -> str | None:
        return work.restore(item_at(fs, path)) if fs.exists(path) else work.finish(path)

    return run


def change_replaced(fs: MemoryFileSystem) -> Callable[[Restorer], str | None]:
    path = stray(fs).path
    manager = manager_on(fs)
    append(manager.get_or_create("t", 0, now_ms=NOW_MS), 3)
    manager.shutdown(NOW_MS)

    def run(work: Restorer) -> str | None:
        if not fs.exists(path):
            return work.finish(path)
        return work.restore(item_at(fs, path), replace=True)

    return run


@pytest.mark.parametrize("power", [False, True])
@pytest.mark.parametrize("prepare", [change_part, change_last, change_whole, change_replaced])
def test_a_restore_that_is_killed_is_completed_by_the_next(
    prepare: Callable[[MemoryFileSystem], Callable[[Restorer], str | None]], power: bool
) -> None:
    for dies_at in count(1):
        fs = MortalFileSystem()
        filled(fs)
        run = prepare(fs)
        fs.dies_at = dies_at
        try:
            run(restorer(fs))
        except Killed:
            pass
        else:
            assert dies_at > 4
            break
        left = fs.after_power_failure(Random(dies_at)) if power else fs.after_kill()
        # What a broker finds that starts now: no record of the others is harmed.
        log = manager_on(left.after_kill(), segment_bytes=SEGMENT_BYTES).get("t", 0)
        found = [] if log is None else offsets_of(log)
        assert set(found) in ({*range(3)}, {*range(100)}, {*range(40), *range(60, 100)}) or (
            found == list(range(80)) or not found
        )
        work = restorer(left)
        vars(fs).update(vars(left))
        fs.dies_at = -1
        run(work)
        log = opened(left)
        assert offsets_of(log) == list(range(100))
        assert not left.exists(f"{DIRECTORY}/{NOTE_FILE}")
        assert all(item.reason is Reason.REPLACED for item in log.log_directory.set_aside)


@pytest.mark.parametrize("power", [False, True])
def test_a_log_that_is_half_deleted_is_never_restored(power: bool) -> None:
    for dies_at in count(1):
        fs = MortalFileSystem()
        filled(fs)
        item = stray(fs)
        fs.dies_at = dies_at
        try:
            restorer(fs).discard(item)
        except Killed:
            pass
        else:
            assert dies_at == 5
            break
        left = fs.after_power_failure() if power else fs.after_kill()
        if left.exists(item.path):
            assert log_summary(left, item.path).next_offset == 100
            restorer(left).discard(item)
        else:
            restorer(left).finish(item.path)
        assert left.list_directories(ROOT) == []
        assert restorer(left).finish(item.path) is None


def test_a_broker_deletes_the_rest_of_a_discarded_log() -> None:
    fs = MortalFileSystem()
    filled(fs)
    item = stray(fs)
    fs.dies_at = 3
    with pytest.raises(Killed):
        restorer(fs).discard(item)
    left = fs.after_kill()
    manager = LogManager((ROOT,), fs=left)
    manager.load(NOW_MS)
    manager.purge(NOW_MS + 1)
    assert left.list_directories(ROOT) == []


def test_a_future_log_whose_current_log_is_away_is_not_set_aside(tmp_path: Path) -> None:
    """Restored, it would take the place of the log on a disk that is not mounted."""
    (tmp_path / f"t-0.{DIGITS}1-future").mkdir()
    fs = RealFileSystem()
    assert [item.path for item in find_set_aside(fs, [str(tmp_path)])]
    (tmp_path / "t-0").symlink_to(tmp_path / "nowhere")
    assert find_set_aside(fs, [str(tmp_path)]) == []


def test_one_log_that_may_not_be_read_hides_no_other(caplog: pytest.LogCaptureFixture) -> None:
    fs = MemoryFileSystem()
    for name in ("t-0", "t-1"):
        fs.make_directory(f"{ROOT}/{name}")
    part = f"{ROOT}/t-1/{segment_file_name(0, LOG_SUFFIX)}"
    replace_file(fs, part, b"", sync=False)
    set_file_aside(fs, part, Reason.DAMAGED)
    fs.fail("list_files", errno.EACCES, path_part=f"{ROOT}/t-0", times=10)
    assert [item.partition for item in find_set_aside(fs, [ROOT])] == [1]
    assert f"Cannot look into {ROOT}/t-0: Permission denied" in caplog.text
