"""What a log should hold, as a plain list: the other side of `tests/property/test_log_model.py`."""

from __future__ import annotations

from typing import NamedTuple

from ottla.storage.log.log import Log
from tests.doubles.storage_logs import NewRecord, records_in

Row = tuple[int, int, bytes | None, bytes | None]
COMMIT, ABORT = True, False


class Batch(NamedTuple):
    """One batch: truncation drops it as a whole."""

    first: int
    last: int
    epoch: int
    producer_id: int
    first_sequence: int
    transactional: bool
    ends: bool | None  # COMMIT or ABORT for a marker


class Model:
    """Rows and batches of a log, and what follows from them."""

    def __init__(self) -> None:
        self.rows: list[Row] = []
        self.batches: list[Batch] = []
        self.start = 0
        self.end = 0
        self.epoch = 0
        # Whether `batches` still has the sequence numbers of every producer.
        self.compacted_once = False

    def append(
        self,
        records: list[NewRecord],
        producer_id: int = -1,
        *,
        transactional: bool = False,
        ends: bool | None = None,
    ) -> Batch:
        batch = Batch(
            self.end,
            self.end + len(records) - 1,
            self.epoch,
            producer_id,
            self.next_sequence(producer_id) if producer_id >= 0 and ends is None else -1,
            transactional,
            ends,
        )
        self.batches.append(batch)
        for timestamp, key, value, _ in records:
            self.rows.append((self.end, timestamp, key, value))
            self.end += 1
        return batch

    def truncate(self, offset: int) -> None:
        if offset >= self.end:
            return
        end = max((b.first for b in self.batches if b.first <= offset), default=offset)
        self.end = max(end, min(offset, self.start))
        self.batches = [batch for batch in self.batches if batch.first < end]
        self.rows = [row for row in self.rows if row[0] < end]

    def visible(self) -> list[Row]:
        return [row for row in self.rows if row[0] >= self.start]

    def next_sequence(self, producer_id: int) -> int:
        last = self.last_batch(producer_id)
        return 0 if last is None else last.first_sequence + last.last - last.first + 1

    def last_batch(self, producer_id: int) -> Batch | None:
        """The last data batch of the producer."""
        mine = (b for b in reversed(self.batches) if b.producer_id == producer_id)
        return next((b for b in mine if b.ends is None), None)

    def open_transactions(self) -> dict[int, int]:
        """Producer id -> first offset."""
        found: dict[int, int] = {}
        for batch in self.batches:
            if batch.ends is not None:
                found.pop(batch.producer_id, None)
            elif batch.transactional:
                found.setdefault(batch.producer_id, batch.first)
        return found

    def ended_transactions(self) -> list[tuple[int, int, int, bool]]:
        """(producer id, first offset, offset of the marker, committed)."""
        found = []
        begun: dict[int, int] = {}
        for batch in self.batches:
            if batch.ends is not None and batch.producer_id in begun:
                first = begun.pop(batch.producer_id)
                found.append((batch.producer_id, first, batch.first, batch.ends))
            elif batch.transactional and batch.ends is None:
                begun.setdefault(batch.producer_id, batch.first)
        return found

    def last_stable_offset(self, high_watermark: int, *, know_unreplicated: bool) -> int:
        unstable = [high_watermark, *self.open_transactions().values()]
        if know_unreplicated:
            ended = self.ended_transactions()
            unstable += [first for _, first, end, _ in ended if end >= high_watermark]
        return max(self.start, min(unstable))

    def aborted_offsets(self) -> set[int]:
        found: set[int] = set()
        for producer_id, first, end, committed in self.ended_transactions():
            if not committed:
                mine = (b for b in self.batches if b.producer_id == producer_id)
                for batch in mine:
                    if first <= batch.first < end:
                        found.update(range(batch.first, batch.last + 1))
        return found

    def markers(self) -> set[int]:
        return {batch.first for batch in self.batches if batch.ends is not None}

    def compact(self, end_offset: int, log: Log) -> None:
        """The newest record of each key below `end_offset` stays, and everything behind it.

        Whether a tombstone or a marker is still there is a matter of time: that is taken from the
        log, after making sure that nothing else went.
        """
        aborted, markers = self.aborted_offsets(), self.markers()
        newest = {
            row[2]: row[0]
            for row in self.rows
            if row[0] < end_offset and row[0] not in aborted and row[0] not in markers
        }
        there = {record.offset for record in records_in(log, start=0)}
        kept = []
        for row in self.rows:
            offset, _, key, value = row
            if offset < end_offset:
                if offset in aborted:
                    continue
                if offset not in markers and newest[key] != offset:
                    continue
                if offset not in there and offset >= log.log_start_offset:
                    assert value is None or offset in markers, f"{row} was lost in a compaction"
                    continue
            kept.append(row)
        self.rows = kept
        self.compacted_once = True
