"""A log against a list: random appends, reads, truncations, rolls, retention, compaction, restarts.

After every step the log must hold exactly what the model holds, offset by offset. A failing run
prints its seed; `OTTLA_TEST_SEED=<seed>` runs that one alone.
"""

from __future__ import annotations

from random import Random

import pytest

from ottla.protocol.records.reader import read_records
from ottla.protocol.records.record import Record
from ottla.protocol.steps import run_at_once
from ottla.storage.cleaner.cleaner import Cleaner
from ottla.storage.directories.log_manager import LogManager
from ottla.storage.log.log import Log
from ottla.storage.log.segment import Segment
from ottla.storage.producer.producer_entry import AppendOrigin
from tests.doubles.compactions import next_compaction
from tests.doubles.log_model import Model, Row
from tests.doubles.memory_file_system import MemoryFileSystem
from tests.doubles.record_batches import iterate_batches
from tests.doubles.seeds import seeds
from tests.doubles.storage_logs import (
    NOW_MS,
    NewRecord,
    batch_of,
    fetched,
    manager_on,
    marker,
    next_offset,
    records_in,
)

RUNS = 8
STEPS = 100
SEEDS = seeds(RUNS, 3101177299)


def rows(records: list[Record]) -> list[Row]:
    return [(r.offset, r.timestamp, r.key, r.value) for r in records]


class Machine:
    """Drives the log and the model side by side."""

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        self.compacted = self.random.random() < 0.4
        self.settings: dict[str, object] = {
            "segment_bytes": self.random.choice((600, 2000, 10_000)),
            "index_interval_bytes": self.random.choice((0, 100, 1000)),
            "cleanup_policy": ("compact",) if self.compacted else ("delete",),
            "retention_ms": -1,
            "min_cleanable_dirty_ratio": 0.0,
            "delete_retention_ms": 0,
            "segment_index_bytes": self.random.choice((80, 10_000)),
        }
        self.fs = MemoryFileSystem()
        self.model = Model()
        # What is known of transactions above the high watermark does not survive a restart.
        self.restarted = False
        self.manager = self.load()
        self.log = self.manager.get_or_create("t", 0, now_ms=NOW_MS)
        self.cleaner = Cleaner(self.manager.logs)
        self.clock = NOW_MS

    def load(self) -> LogManager:
        return manager_on(self.fs, **self.settings)

    def records(self) -> list[NewRecord]:
        found: list[NewRecord] = []
        for _ in range(self.random.randint(1, 6)):
            self.clock += self.random.randint(-5, 20)
            key = b"key-%d" % self.random.randint(0, 12)
            value = None if self.random.random() < 0.1 else self.random.randbytes(10)
            found.append((self.clock, key, value, []))
        return found

    # --- steps -------------------------------------------------------------------------------

    def append(self) -> None:
        for _ in range(self.random.randint(1, 12)):
            if self.random.random() < 0.05:
                self.model.epoch += 1
            records = self.records()
            batch = batch_of(records, codec=self.random.choice((0, 0, 1)))
            info = self.log.append(batch, leader_epoch=self.model.epoch, now_ms=self.clock)
            assert info.first_offset == self.model.end
            self.model.append(records)
            assert info.last_offset == self.model.end - 1
        self.move_high_watermark()

    def move_high_watermark(self) -> None:
        self.log.update_high_watermark(self.random.randint(self.log.high_watermark, self.model.end))

    def follow(self) -> None:
        parts = []
        for _ in range(self.random.randint(1, 4)):
            records = self.records()
            parts.append(
                batch_of(records, base_offset=self.model.end, leader_epoch=self.model.epoch)
            )
            self.model.append(records)
        info = self.log.append_as_follower(bytearray(b"".join(parts)), now_ms=self.clock)
        assert info.last_offset == self.model.end - 1

    def produce(self) -> None:
        """An idempotent producer, inside or outside of transactions, that sends some twice."""
        producer_id = self.random.randint(0, 4)
        transactional = producer_id < 3
        entry = self.log.producer_state.producers.get(producer_id)
        if (
            self.compacted
            and entry is not None
            and not entry.batches
            and self.model.next_sequence(producer_id)
        ):
            return  # only its marker is left of it: it would need a new epoch
        for _ in range(self.random.randint(1, 7)):
            records = self.records()
            batch = self.model.append(records, producer_id, transactional=transactional)
            content = batch_of(
                records,
                producer_id=producer_id,
                producer_epoch=0,
                base_sequence=batch.first_sequence,
                transactional=transactional,
            )
            again = bytearray(content)
            info = self.log.append(content, leader_epoch=self.model.epoch, now_ms=self.clock)
            assert (info.first_offset, info.duplicate) == (batch.first, False)
            if self.random.random() < 0.2:
                info = self.log.append(again, leader_epoch=self.model.epoch, now_ms=self.clock)
                assert info.duplicate
                assert (info.first_offset, info.last_offset) == (batch.first, batch.last)
        self.move_high_watermark()

    def end_transaction(self) -> None:
        ongoing = list(self.model.open_transactions())
        if not ongoing:
            return
        producer_id = self.random.choice(ongoing)
        committed = self.random.random() < 0.5
        content = marker(producer_id, committed=committed)
        (record,) = read_records(bytes(content), include_control=True)
        self.log.append(
            content,
            leader_epoch=self.model.epoch,
            now_ms=self.clock,
            origin=AppendOrigin.COORDINATOR,
        )
        rows = [(record.timestamp, record.key, record.value, [])]
        self.model.append(rows, producer_id, transactional=True, ends=committed)
        self.move_high_watermark()

    def roll(self) -> None:
        self.log.roll(self.clock)

    def truncate(self) -> None:
        low = self.log.high_watermark
        if self.random.random() < 0.5:
            low = max(low, self.model.end - 20)
        offset = self.random.randint(min(low, self.model.end), self.model.end)
        self.log.truncator.truncate_to(offset)
        self.model.truncate(offset)
        self.restarted = True
        self.cleaner.truncated(self.log)

    def delete_records(self) -> None:
        offset = self.random.randint(self.log.log_start_offset, self.log.high_watermark)
        self.log.truncator.delete_records_before(offset)
        self.model.start = max(self.model.start, offset)

    def retain(self) -> None:
        by_size = self.random.randint(0, max(1, 2 * self.log.local.size_in_bytes))
        self.log.update_config(self.log.config.replace(retention_bytes=by_size))
        run_at_once(self.log.retention.delete_old_segments(self.clock))
        self.model.start = max(self.model.start, self.log.log_start_offset)
        if not self.compacted:
            over = self.log.local.size_in_bytes - self.log.segments.first.size >= by_size
            first_kept = self.log.segments.after(self.log.segments.first)
            stuck = first_kept is None or first_kept.base_offset > self.log.high_watermark
            assert not over or stuck, "retention by size kept too much"
        self.log.update_config(self.log.config.replace(retention_bytes=-1))

    def purge(self) -> None:
        self.manager.purge(self.clock + 1_000_000_000)

    def flush(self) -> None:
        self.log.flusher.flush(self.clock)
        assert self.log.recovery_point == self.model.end

    def compact(self) -> None:
        compaction = next_compaction(self.cleaner, self.clock)
        if compaction is None:
            return
        compaction.run()
        if self.random.random() < 0.3:
            self.append()  # the loop continues while a worker compacts
        assert compaction.error is None, compaction.error
        assert self.cleaner.finish(compaction, self.clock)
        compaction.sync()
        self.model.compact(compaction.end_offset, self.log)

    def restart(self) -> None:
        """A clean shutdown and a start."""
        high_watermark = self.log.high_watermark
        self.manager.shutdown(self.clock)
        self.cleaner.write_checkpoints()
        self.reload()
        assert self.log.recovery_point == self.model.end
        assert self.log.high_watermark == high_watermark

    def kill(self) -> None:
        """kill -9: nothing that was written is lost."""
        self.manager.checkpoint_all()
        self.fs = self.fs.after_kill()
        self.reload()

    def reload(self) -> None:
        self.manager = self.load()
        log = self.manager.get("t", 0)
        assert log is not None
        self.log = log
        self.cleaner = Cleaner(self.manager.logs)
        self.restarted = True

    # --- checks ------------------------------------------------------------------------------

    def check(self) -> None:
        log, model = self.log, self.model
        assert log.log_start_offset == model.start
        assert log.log_end_offset == model.end
        assert (
            log.log_start_offset
            <= log.last_stable_offset
            <= log.high_watermark
            <= log.log_end_offset
        )
        wanted = model.visible()
        assert rows(records_in(log)) == wanted
        assert rows(fetched(log, max_bytes=self.random.randint(1, 3000))) == wanted
        self.check_reads()
        self.check_times(wanted)
        self.check_epochs()
        self.check_producers()
        self.check_committed()
        bases = log.segments.base_offsets
        assert bases == sorted(set(bases))
        for segment in log.segments:
            check_index(segment)

    def check_reads(self) -> None:
        log = self.log
        for _ in range(5):
            offset = self.random.randint(log.log_start_offset, log.log_end_offset)
            up_to = self.random.randint(log.log_start_offset, log.log_end_offset)
            info = log.read(offset, self.random.randint(0, 2000), up_to=up_to, min_one_batch=False)
            if info.slice is None:
                continue
            content = info.slice.read()
            assert len(content) == len(info.slice) > 0
            assert info.first_batch_base_offset <= up_to
            assert next_offset(content) > offset
            beyond = [b for b in self.model.batches if b.first < up_to <= b.last]
            assert next_offset(content) <= max(up_to, *(b.last + 1 for b in beyond), 0)

    def check_times(self, wanted: list[Row]) -> None:
        for _ in range(3):
            timestamp = self.clock - self.random.randint(-50, 3000)
            response = self.log.offset_for_timestamp(timestamp)
            expected = next((row for row in wanted if row[1] >= timestamp), None)
            if expected is None:
                assert response is None
            else:
                assert response is not None
                assert response[:2] == (expected[1], expected[0])
        newest = self.log.max_timestamp_offset()
        if wanted:
            assert newest is not None
            assert newest[0] == max(row[1] for row in wanted)

    def check_epochs(self) -> None:
        for batch in self.model.batches[-10:]:
            if batch.first >= self.log.log_start_offset:
                assert self.log.leader_epochs.epoch_for_offset(batch.first) == batch.epoch

    def check_producers(self) -> None:
        log, model = self.log, self.model
        state = log.producer_state
        opened = model.open_transactions()
        found = {producer_id: first for first, producer_id in state.open_transactions().items()}
        if not self.compacted:
            assert found == opened
            assert {p for p, e in state.producers.items() if e.batches} == {
                p for p in range(5) if model.last_batch(p) is not None
            }
        # Of a transaction that began below the log start a restart knows only the rest, if any.
        whole = {p: first for p, first in opened.items() if first >= model.start}
        assert {p: found.get(p) for p in whole} == whole
        assert all(first >= opened[p] for p, first in found.items())
        if whole == opened and (opened or not self.restarted):
            stable = model.last_stable_offset(log.high_watermark, know_unreplicated=True)
            least = model.last_stable_offset(log.high_watermark, know_unreplicated=False)
            assert stable <= log.last_stable_offset <= (least if self.restarted else stable)
        for producer_id, entry in state.producers.items():
            last = model.last_batch(producer_id)
            if last is not None and entry.batches:
                assert entry.batches[-1].last_offset == last.last
                assert entry.batches[-1].first_sequence == last.first_sequence

    def check_committed(self) -> None:
        """A reader of committed data gets exactly what was committed, below the last stable one."""
        log, model = self.log, self.model
        end = log.last_stable_offset
        dropped = model.aborted_offsets() | model.markers()
        whole = {o for b in model.batches if b.last < end for o in range(b.first, b.last + 1)}
        wanted = [r[0] for r in model.visible() if r[0] in whole and r[0] not in dropped]
        assert committed_offsets(log, self.random.randint(1, 2000)) == wanted


def committed_offsets(log: Log, max_bytes: int) -> list[int]:
    """The offsets that a client with `read_committed` shows its user."""
    found: list[int] = []
    offset, end = log.log_start_offset, log.last_stable_offset
    while offset < end:
        info = log.read(offset, max_bytes, up_to=end, read_committed=True)
        if info.slice is None:
            break
        content = info.slice.read()
        pending = sorted(info.aborted_transactions, key=lambda pair: pair[1])
        aborted: set[int] = set()
        for position, header in iterate_batches(content):
            while pending and pending[0][1] <= header.last_offset:
                aborted.add(pending.pop(0)[0])
            if header.is_control:
                aborted.discard(header.producer_id)
            elif not (header.is_transactional and header.producer_id in aborted):
                batch = content[position : position + header.size_in_bytes]
                found += [r.offset for r in read_records(batch) if r.offset >= offset]
        offset = next_offset(content)
    return [offset for offset in found if offset < end]


def check_index(segment: Segment) -> None:
    entries = [segment.offset_index.entry(n) for n in range(segment.offset_index.entries)]
    assert entries == sorted(set(entries))
    for offset, position in entries:
        place = segment.find_batch(offset)
        assert place is not None
        assert place.position == position
    times = [segment.time_index.entry(n) for n in range(segment.time_index.entries)]
    assert times == sorted(times)


def steps_of(machine: Machine) -> list[tuple[int, str]]:
    steps = [
        (30, "append"), (6, "follow"), (10, "produce"), (6, "end_transaction"), (4, "roll"),
        (4, "truncate"), (3, "delete_records"), (3, "retain"), (2, "purge"), (3, "flush"),
        (2, "restart"), (3, "kill"),
    ]  # fmt: skip
    if machine.compacted:
        steps.append((6, "compact"))
    return steps


@pytest.mark.parametrize("seed", SEEDS)
def test_a_log_is_a_list(seed: int) -> None:
    machine = Machine(seed)
    steps = steps_of(machine)
    weights, names = [w for w, _ in steps], [n for _, n in steps]
    history: list[str] = []
    try:
        for _ in range(STEPS):
            (name,) = machine.random.choices(names, weights)
            history.append(name)
            getattr(machine, name)()
            if name != "append" or machine.random.random() < 0.2:
                machine.check()
        machine.check()
    except BaseException:
        print(f"OTTLA_TEST_SEED={seed}: {' '.join(history)}")
        raise
