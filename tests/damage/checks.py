"""What a log has to serve after a damage, through each operation of a running broker."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Generator, Iterator
from random import Random
from typing import TypeVar

from ottla.protocol.records.errors import CorruptRecordError, RecordsError
from ottla.protocol.records.reader import read_records
from ottla.storage.cleaner.cleaner import Cleaner
from ottla.storage.directories.log_manager import LogManager
from ottla.storage.index.txn_index import TXN_ENTRY_BYTES
from ottla.storage.log.batch_scan import CorruptLog, check_checksum, place_at
from ottla.storage.log.log import Log
from tests.damage.damages import Damage
from tests.damage.directories import Partition, compact, last_sequences
from tests.doubles.storage_logs import NOW_MS, batch_of

T = TypeVar("T")
Content = tuple[int, int, bytes | None, bytes | None]

# Of records that are appended after the damage: newer than all others.
ADDED_MS = NOW_MS + 10**6

# Without records of its own, a fetch would not end.
_FETCHES_MAX = 2000


def run(steps: Generator[object, None, T]) -> T:
    """All steps of a sliced operation at once."""
    try:
        while True:
            step = next(steps)
            if callable(step):
                step()
    except StopIteration as end:
        result: T = end.value
        return result


# Damages of an index of aborted transactions that are found when the log is opened: a file that is
# missing, or that ends between two entries, may be as it was written.
_SEEN_OF_AN_INDEX = frozenset(
    ("flip", "sign", "garbage", "empty", "directory", "dangling", "loop"),
)


class Required:
    """The records of an intact partition that have to be served in spite of the damages to it."""

    def __init__(self, intact: Partition, clean: bool) -> None:
        self.intact = intact
        self.records = list(intact.records)
        #: Whether all records are required, so that lookups have one correct result.
        self.is_whole = True
        self.has_aborted = True
        self._clean = clean

    def apply(self, damage: Damage, *, running: bool) -> None:
        """Drops what this damage may cost."""
        if damage.kind == ".txnindex" and (
            running
            or damage.action not in _SEEN_OF_AN_INDEX
            or 10 <= (damage.position or 0) % TXN_ENTRY_BYTES < 18
        ):
            # A file that ends early looks like one with fewer entries. Entries are compared with
            # their markers when the log is opened; those do not have the first offset.
            self.has_aborted = False
        is_swap = damage.action == "swap" and damage.kind.endswith("checkpoint")
        if damage.kind in CHECKPOINTS_THAT_DECIDE or (is_swap and "leader" not in damage.kind):
            self.lose_all()
        if damage.kind.startswith("leader-epoch") and self._begins_within_a_segment():
            # One of two witnesses of the log's start. Where they disagree, deleted records come
            # back; that is said, and better than the loss of others.
            self.is_whole = False
        if damage.kind != ".log":
            return
        self.is_whole = self.has_aborted = False
        base = damage.base_offset
        assert base is not None
        position = damage.position or 0
        in_front = [r for r in self.records if (r.segment, r.position) < (base, position)]
        # The batch with the first damaged byte ends behind it.
        last = max((r.position for r in in_front if r.segment == base), default=-1)
        is_batch = self._begins_at(base, position)
        kept = [r for r in in_front if r.segment < base or r.position < last or is_batch]
        if damage.action.startswith("extend"):
            kept = [r for r in self.records if r.segment <= base]
        if base == self.intact.segments[0] and damage.position is None:
            kept = []
        behind = [r for r in self.records if r.segment > base]
        keeps_behind = running or (self._clean and damage.position is not None)
        self.records = kept + (behind if keeps_behind and damage.action != "x" else [])

    def _begins_within_a_segment(self) -> bool:
        records = self.intact.records
        return bool(records) and records[0].offset > self.intact.segments[0]

    def _begins_at(self, base: int, position: int) -> bool:
        records = self.intact.records
        return any(r.segment == base and r.position == position for r in records)

    def lose_all(self) -> None:
        """Nothing is required any more but that nothing is raised."""
        self.records, self.is_whole, self.has_aborted = [], False, False

    def truncate(self, offset: int) -> None:
        self.records = [r for r in self.records if r.offset < offset]


# They are valid in themselves whatever number they have, and a log is opened by them.
CHECKPOINTS_THAT_DECIDE = ("log-start-offset-checkpoint", "recovery-point-offset-checkpoint")


def fetch_all(log: Log, max_bytes: int, *, read_committed: bool = False) -> dict[int, Content]:
    """The records as a consumer gets them, that skips what it cannot read by segments."""
    found: dict[int, Content] = {}
    aborted: set[tuple[int, int]] = set()
    offset, end = log.log_start_offset, log.log_end_offset
    bases = log.segments.base_offsets
    for _ in range(_FETCHES_MAX):
        if offset >= end:
            break
        try:
            info = log.read(offset, max_bytes, up_to=end, read_committed=read_committed)
        except CorruptRecordError:
            info = None
        following = offset
        if info is not None and info.slice is not None:
            aborted.update(info.aborted_transactions)
            for following_offset, records in parse(info.slice.read()):
                if not offset <= following_offset - 1 < next_base(bases, offset, end):
                    break  # nothing says that the offsets of a batch header are right
                for record in records:
                    if offset <= record[0] < end:
                        found.setdefault(record[0], record)
                following = max(following, following_offset)
        if following == offset:
            # As an operator does who has read that a batch is damaged.
            following = next_base(bases, offset, end)
        offset = following
    else:
        raise AssertionError(f"{log.name}: fetching does not end, it is at {offset} of {end}")
    if read_committed:
        found[-1] = (-1, 0, None, repr(sorted(aborted)).encode())
    return found


def next_base(bases: list[int], offset: int, end: int) -> int:
    """Where the segment after that of `offset` begins."""
    at = bisect_left(bases, offset + 1)
    return bases[at] if at < len(bases) else end


def parse(content: bytes) -> Iterator[tuple[int, list[Content]]]:
    """(next offset, records) of each batch up to the first damaged one."""
    at = 0
    while at < len(content):
        try:
            place = place_at("slice", content, at, at)
            batch = memoryview(content)[at : at + place.size]
            if len(batch) < place.size:
                return
            check_checksum("slice", place, batch)
            records = read_records(bytes(batch), include_control=True)
            found = [(r.offset, r.timestamp, r.key, r.value) for r in records]
        except (CorruptLog, RecordsError):
            return
        yield place.last_offset + 1, found
        at += place.size


def check_served(log: Log, required: Required, max_bytes: int, when: str) -> None:
    found = fetch_all(log, max_bytes)
    missing = [r for r in required.records if found.get(r.offset) != r.content]
    assert not missing, (
        f"{log.name}: {when}: {len(missing)} of {len(required.records)} records are not served as"
        f" they were, from offset {missing[0].offset} on: {found.get(missing[0].offset)},"
        f" not {missing[0].content}"
    )
    if required.is_whole:
        known = {r.offset for r in required.records}
        others = [
            offset for offset in found if offset not in known and offset < required.intact.end
        ]
        assert not others, f"{log.name}: {when}: offsets {others} were not written"


def check_lookups(random: Random, log: Log, required: Required) -> None:
    """Offsets by time, and the aborted transactions of a range."""
    times = sorted({r.timestamp for r in required.intact.records})
    samples = [*random.sample(times, min(4, len(times))), 0, times[-1] + 1]
    for timestamp in samples:
        try:
            found = log.offset_for_timestamp(timestamp)
        except CorruptRecordError:
            assert not required.is_whole, f"{log.name}: offsets by time"
            continue
        if required.is_whole:
            first = next((r for r in required.records if r.timestamp >= timestamp), None)
            expected = None if first is None else (first.timestamp, first.offset)
            got = None if found is None or found[0] == ADDED_MS else found[:2]
            assert got == expected, f"{log.name}: time {timestamp}: {got}, not {expected}"
    try:
        newest = log.max_timestamp_offset()
    except CorruptRecordError:
        assert not required.is_whole
    else:
        if required.is_whole:
            is_newest = newest is not None and newest[0] in (times[-1], ADDED_MS)
            assert is_newest, f"{log.name}: newest is {newest}, not {times[-1]}"
    if required.has_aborted:
        got_aborted = fetch_all(log, 1 << 20, read_committed=True)[-1][3]
        assert got_aborted == repr(required.intact.aborted).encode(), (
            f"{log.name}: aborted {got_aborted!r}, not {required.intact.aborted}"
        )
    else:
        fetch_all(log, 500, read_committed=True)
    try:
        for _ in log.batches(log.log_start_offset):
            pass
    except CorruptRecordError:
        assert not required.is_whole


def check_derived(log: Log, required: Required) -> None:
    """What producers, readers of committed records and followers are told: it is in the batches."""
    intact = required.intact
    if not required.is_whole:
        return
    assert log.last_stable_offset == intact.stable, f"{log.name}: last stable offset"
    assert last_sequences(log) == intact.sequences, f"{log.name}: sequence numbers"
    epoch = next(reversed(log.leader_epochs.entries), None)
    assert epoch == intact.epoch, f"{log.name}: latest epoch {epoch}, not {intact.epoch}"


def change(random: Random, manager: LogManager, log: Log, required: Required) -> None:
    """Appends, rolls, flushes, compacts, deletes and truncates."""
    for _ in range(2):
        first = log.log_end_offset
        records = [(ADDED_MS, b"new", b"value", [])]
        log.append(batch_of(records), leader_epoch=9, now_ms=NOW_MS)
        log.update_high_watermark(log.log_end_offset)
        # Behind a batch whose header has too high an offset, which no checksum covers, it is found
        # when there are more segments.
        try:
            is_served = first in fetch_from(log, first)
        except CorruptRecordError:
            is_served = False
        assert is_served or not required.is_whole, f"{log.name}: offset {first} was just appended"
        log.roll(NOW_MS)
    log.flusher.flush(NOW_MS)
    if log.config.compact:
        # A record that is not required may be the newer one of its key.
        last = {r.key: r for r in required.records} if required.is_whole else {}
        required.is_whole = False
        compact(manager, Cleaner(manager.logs))
        required.records = sorted(last.values())
    if random.random() < 0.3:
        try:
            target = random.randint(log.log_start_offset, log.log_end_offset)
            for part in log.truncator.parts(target):
                run(log.truncator.prepare(part))
                log.truncator.truncate_to(part)
        except (CorruptLog, CorruptRecordError):
            assert not required.is_whole
        else:
            assert log.log_end_offset <= max(target, log.log_start_offset)
            required.truncate(log.log_end_offset)
            required.is_whole = False
            required.has_aborted = False
    log.update_config(
        log.config.replace(retention_bytes=log.local.size_in_bytes // 2, retention_ms=10**12)
    )
    if random.random() < 0.3 and "delete" in log.config.cleanup_policy:
        run(log.retention.delete_old_segments(NOW_MS))
        start = log.log_start_offset
        required.records = [r for r in required.records if r.offset >= start]
        required.is_whole = False
        required.has_aborted = False


def fetch_from(log: Log, offset: int) -> list[int]:
    info = log.read(offset, 1 << 20, up_to=log.log_end_offset)
    assert info.slice is not None, f"{log.name}: nothing at {offset}"
    return [r[0] for _, records in parse(info.slice.read()) for r in records]
