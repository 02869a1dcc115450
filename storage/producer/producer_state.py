"""The producer state of one log: sequence numbers, open transactions, snapshots.

Kafka's `ProducerStateManager`. The state as of an offset can be rebuilt from the last snapshot at
or below it and the batches after that. Snapshots are written when a segment is rolled and when the
log is closed.
"""

from __future__ import annotations

import logging
from bisect import bisect_left, insort
from collections.abc import Iterable, Mapping, Sequence
from itertools import chain

from ottla.protocol.records.batch import CONTROL_MASK, TRANSACTIONAL_MASK, BatchHeader, read_header
from ottla.protocol.records.control import ABORT, COMMIT, control_type, read_end_transaction_marker
from ottla.protocol.records.errors import RecordsError
from ottla.protocol.records.reader import read_batch
from ottla.protocol.steps import Steps, run_at_once
from ottla.storage.errors import CorruptFile, InvalidTransactionState
from ottla.storage.files.fs import FileSystem, clear_path, read_file, replace_file
from ottla.storage.files.layout import (
    DELETED_SUFFIX,
    SNAPSHOT_SUFFIX,
    offset_of_file,
    segment_file_name,
)
from ottla.storage.producer.producer_entry import (
    NO_OFFSET,
    AppendedBatch,
    AppendOrigin,
    CompletedTransaction,
    ProducerAppend,
    ProducerEntry,
)
from ottla.storage.producer.producer_snapshot import decode_snapshot, encode_snapshot

logger = logging.getLogger("ottla.storage")

_SPECIAL = TRANSACTIONAL_MASK | CONTROL_MASK
DEFAULT_EXPIRATION_MS = 86_400_000
# Five million producers; a larger file is not a snapshot.
_SNAPSHOT_BYTES_MAX = 256 << 20


class ProducerState:
    """The producers of the log `name` in `directory`, as of `end_offset` (exclusive)."""

    __slots__ = (
        "_fs",
        "_name",
        "_ongoing",
        "_snapshots",
        "_unreplicated",
        "directory",
        "end_offset",
        "expiration_ms",
        "producers",
        "snapshot_offset",
    )

    def __init__(
        self,
        fs: FileSystem,
        name: str,
        directory: str,
        file_names: Mapping[str, int] | None = None,
        expiration_ms: int = DEFAULT_EXPIRATION_MS,
    ) -> None:
        """`file_names`: the files of the directory, among them the existing snapshots."""
        self._fs = fs
        self._name = name
        self.expiration_ms = expiration_ms
        self.directory = directory
        self.producers: dict[int, ProducerEntry] = {}
        # First offset -> producer id. First offsets ascend as transactions begin, so the first key
        # is the oldest open transaction.
        self._ongoing: dict[int, int] = {}
        # First offset -> offset of the marker, for completed transactions whose marker is not below
        # the high watermark yet.
        self._unreplicated: dict[int, int] = {}
        self._snapshots: list[int] = sorted(
            offset
            for file_name in file_names or ()
            if file_name.endswith(SNAPSHOT_SUFFIX)
            and (offset := offset_of_file(file_name)) is not None
        )
        self.end_offset = 0
        self.snapshot_offset = 0

    # --- reading -----------------------------------------------------------------------------

    @property
    def first_unstable_offset(self) -> int | None:
        """The first offset of the oldest transaction that is open or not fully replicated."""
        oldest = next(iter(self._ongoing), None)
        if self._unreplicated:
            ended = min(self._unreplicated)
            return ended if oldest is None else min(ended, oldest)
        return oldest

    @property
    def snapshots(self) -> list[int]:
        """The offsets of the snapshot files, ascending."""
        return list(self._snapshots)

    def snapshots_from(self, offset: int) -> list[int]:
        """The offsets of the snapshot files at or above `offset`, ascending."""
        snapshots = self._snapshots
        return snapshots[bisect_left(snapshots, offset) :]

    @property
    def is_empty(self) -> bool:
        """Whether there are neither producers nor transactions."""
        return not (self.producers or self._ongoing or self._unreplicated)

    def first_open_offset(self) -> int | None:
        """The first offset of the oldest open transaction."""
        return next(iter(self._ongoing), None)

    def has_open_transaction(self, producer_id: int, epoch: int) -> bool:
        """Whether a transaction of this epoch is open.

        With transaction version 2 a producer raises its epoch with each transaction, and may begin
        the next one before the marker of the last one is written here.
        """
        entry = self.producers.get(producer_id)
        return entry is not None and entry.transaction_first_offset >= 0 and entry.epoch == epoch

    def open_transactions(self) -> dict[int, int]:
        """First offset -> producer id of the open transactions, oldest first."""
        return dict(self._ongoing)

    def last_stable_offsets_after(
        self, appends: Iterable[ProducerAppend], completed: Sequence[CompletedTransaction]
    ) -> list[int]:
        """The last stable offset after each of `completed`, which are among `appends`.

        It is the start of the oldest open transaction of another producer, or the offset after the
        marker: a follower appends batches at once of which a later one begins a transaction.
        Changes nothing: `appends` need not be written yet.
        """
        firsts = chain(self._ongoing, sorted(first for each in appends for first in each.started))
        oldest = next(firsts, None)
        ended: set[int] = set()
        found = []
        for each in completed:
            ended.add(each.first_offset)
            # Passes each one once: a follower appends thousands of transactions at once. One of the
            # same producer begins behind the marker, so it changes nothing.
            while oldest in ended:
                oldest = next(firsts, None)
            end = each.last_offset + 1
            found.append(end if oldest is None else min(oldest, end))
        return found

    # --- changing ----------------------------------------------------------------------------

    def begin_append(
        self, producer_id: int, origin: AppendOrigin, lowest_sequence: int | None = None
    ) -> ProducerAppend:
        """Check and collect the batches of one producer before they are written."""
        current = self.producers.get(producer_id)
        return ProducerAppend(self._name, producer_id, current, origin, lowest_sequence)

    def check(
        self,
        append: ProducerAppend,
        header: BatchHeader,
        batch: bytes | bytearray | memoryview,
        first_offset: int,
    ) -> CompletedTransaction | None:
        """Add a batch, data or a marker, to `append`. Raises ProducerError.

        `header` may still have the base offset of the producer; `first_offset` is that of the log.
        """
        if not header.is_control:
            append.append_data(header, first_offset, first_offset + header.last_offset_delta)
            return None
        # Compaction may leave control batches without a record.
        for record in read_batch(batch, 0):
            if control_type(record.key) not in (ABORT, COMMIT):
                return None
            marker = read_end_transaction_marker(record)
            return append.append_marker(
                header.producer_epoch,
                marker.coordinator_epoch,
                first_offset,
                record.timestamp,
                marker.type == ABORT,
            )
        return None

    def update(self, appends: Iterable[ProducerAppend]) -> None:
        """Apply `appends`, whose batches were written together."""
        started: list[tuple[int, int]] = []
        for append in appends:
            entry = append.entry
            self.producers[entry.producer_id] = entry
            started += [(first_offset, entry.producer_id) for first_offset in append.started]
        if started:
            self._ongoing.update(sorted(started))

    def complete(self, completed: CompletedTransaction) -> None:
        """The marker has been written. The transaction stays unstable until it is replicated."""
        del self._ongoing[completed.first_offset]
        self._unreplicated[completed.first_offset] = completed.last_offset

    def on_high_watermark(self, high_watermark: int) -> None:
        """Transactions whose marker is below the high watermark are no longer unstable."""
        if self._unreplicated:
            self._unreplicated = {
                first: last for first, last in self._unreplicated.items() if last >= high_watermark
            }

    def remove_expired(self, now_ms: int) -> Steps[int]:
        """Remove producers that have been idle for `expiration_ms`. Returns their number.

        May pause after each producer: there may be appends and truncations meanwhile, so each is
        looked up again.
        """
        removed = 0
        for producer_id in list(self.producers):
            entry = self.producers.get(producer_id)
            if entry is not None and entry.is_expired(now_ms, self.expiration_ms):
                del self.producers[producer_id]
                removed += 1
            yield
        return removed

    def replay(self, header: BatchHeader, batch: memoryview) -> CompletedTransaction | None:
        """Apply a batch that is in the log already, for recovery and loading."""
        entry = self.producers.get(header.producer_id)
        if (
            entry is not None
            and entry.epoch == header.producer_epoch
            and entry.transaction_first_offset < 0
            and not header.attributes & _SPECIAL
        ):
            # The same as below for a batch outside transactions, without a copy of the entry.
            last_offset = header.base_offset + header.last_offset_delta
            batch_done = AppendedBatch(
                header.base_sequence,
                header.last_sequence,
                header.base_offset,
                last_offset,
                header.max_timestamp,
            )
            entry.remember(header.producer_epoch, batch_done)
            return None
        append = self.begin_append(header.producer_id, AppendOrigin.REPLICATION)
        try:
            completed = self.check(append, header, batch, header.base_offset)
        except InvalidTransactionState as error:
            # A broker has accepted it that had forgotten the transaction, after all of its records
            # were deleted. So it is not open.
            logger.warning("%s", error)
            assert entry is not None
            del self._ongoing[entry.transaction_first_offset]
            entry.transaction_first_offset = NO_OFFSET
            return self.replay(header, batch)
        self.update((append,))
        if completed is not None:
            self.complete(completed)
        return completed

    # --- snapshots ---------------------------------------------------------------------------

    def take_snapshot(self, *, sync: bool = False) -> str | None:
        """Write a snapshot as of `end_offset` unless it exists. Returns its path if written.

        Without `sync` it is durable only after the caller has synced it. Raises OSError.
        """
        if self.end_offset <= self.snapshot_offset:
            return None
        logger.debug("%s: Writing producer snapshot at offset %d", self._name, self.end_offset)
        path = self.snapshot_path(self.end_offset)
        replace_file(self._fs, path, encode_snapshot(self.producers.values()), sync=sync)
        self.snapshot_offset = self.end_offset
        self._snapshots.append(self.end_offset)
        return path

    def reload(self, first_offset: int, log_end_offset: int, now_ms: int) -> None:
        """Load the newest snapshot in [first_offset, log end] and delete those outside.

        `first_offset` is where the first segment begins, which may be below the log start. Kafka
        uses no snapshot at or below the log start, and so forgets producers of which every record
        was deleted; but a retry of them is a duplicate all the same. The caller replays the batches
        from `end_offset` on.
        """
        self._delete_snapshots_outside(first_offset, log_end_offset)
        self.producers, self._ongoing, self._unreplicated = {}, {}, {}
        run_at_once(self._take(self._newest(first_offset), now_ms))

    def forget(self, offset: int) -> None:
        """Drop everything known below `offset`. The caller replays the batches from there."""
        self.producers, self._ongoing, self._unreplicated = {}, {}, {}
        self.end_offset = offset

    def _delete_snapshots_outside(self, first_offset: int, log_end_offset: int) -> None:
        self.delete_snapshots(0, first_offset)
        self.delete_snapshots(log_end_offset + 1)

    def _newest(self, first_offset: int) -> Iterable[ProducerEntry]:
        """The entries of the newest snapshot; deletes those that are damaged. Raises OSError."""
        while self._snapshots:
            offset = self._snapshots[-1]
            path = self.snapshot_path(offset)
            try:
                entries = decode_snapshot(path, read_file(self._fs, path, _SNAPSHOT_BYTES_MAX))
            except (CorruptFile, FileNotFoundError) as damage:
                logger.warning("%s: Ignoring producer snapshot: %s", self._name, damage)
                self.delete_snapshot(offset)
                continue
            self.end_offset = self.snapshot_offset = offset
            return entries
        self.end_offset = self.snapshot_offset = first_offset
        return ()

    def _take(self, entries: Iterable[ProducerEntry], now_ms: int) -> Steps[None]:
        for entry in entries:
            if not entry.is_expired(now_ms, self.expiration_ms):
                self.producers[entry.producer_id] = entry
            yield
        opened = (e for e in self.producers.values() if e.transaction_first_offset >= 0)
        for entry in sorted(opened, key=lambda e: e.transaction_first_offset):
            self._ongoing[entry.transaction_first_offset] = entry.producer_id

    def as_of_snapshot(self, first_offset: int, offset: int) -> Steps[ProducerState]:
        """Another state, as of the newest snapshot in [first_offset, offset], to replay batches on.

        May pause after each producer: the state that is built is known to nobody else. Its
        `end_offset` is that of the snapshot, or `first_offset` (see `reload`). Raises OSError.
        """
        state = ProducerState(self._fs, self._name, self.directory, None, self.expiration_ms)
        found = [each for each in self._snapshots if first_offset <= each <= offset]
        state._snapshots = found.copy()
        entries = state._newest(first_offset)
        for damaged in found[len(state._snapshots) :]:  # it has deleted them
            self._snapshots.remove(damaged)
        yield from state._take(entries, now_ms=0)
        return state

    def truncate_to(
        self, log_end_offset: int, first_offset: int, state: ProducerState | None
    ) -> None:
        """The log was truncated. `state` has its producers as of the new end, None for the same.

        Deletes the snapshots outside [first_offset, log end]. Raises OSError.
        """
        if state is not None:
            self.producers, self._ongoing = state.producers, state._ongoing
            self._unreplicated = state._unreplicated
        self._delete_snapshots_outside(first_offset, log_end_offset)
        self.end_offset = log_end_offset
        self.snapshot_offset = self._snapshots[-1] if self._snapshots else first_offset

    def snapshot_content(self, offset: int) -> bytes | None:
        """The snapshot as of `offset`; None if there is none that is intact. Raises OSError."""
        if offset not in self._snapshots:
            return None
        path = self.snapshot_path(offset)
        try:
            content = read_file(self._fs, path, _SNAPSHOT_BYTES_MAX)
            decode_snapshot(path, content)
        except (CorruptFile, FileNotFoundError):
            return None
        return content

    def receive_snapshot(self, offset: int, content: bytes) -> None:
        """Store a snapshot of another replica, for `reset`. Raises CorruptFile, OSError."""
        path = self.snapshot_path(offset)
        decode_snapshot(path, content)
        replace_file(self._fs, path, content, sync=False)
        if offset not in self._snapshots:
            insort(self._snapshots, offset)

    def reset(self, offset: int, snapshot: bytes | None = None, now_ms: int = 0) -> None:
        """Remove all producers and snapshots; the log is empty and starts at `offset`.

        The producers are those of `snapshot`, which is stored as of `offset` and stays. No file is
        read, which would need a descriptor. Raises CorruptFile with nothing done, OSError.
        """
        entries = [] if snapshot is None else decode_snapshot(self.snapshot_path(offset), snapshot)
        self.producers, self._ongoing, self._unreplicated = {}, {}, {}
        for each in self.snapshots:
            if snapshot is None or each != offset:
                self.delete_snapshot(each)
        run_at_once(self._take(entries, now_ms))
        self.end_offset = self.snapshot_offset = offset

    def keep_snapshots_of(self, base_offsets: list[int]) -> None:
        """Delete snapshots that belong to no segment, except for the newest one."""
        wanted = {*base_offsets, *self._snapshots[-1:]}
        for offset in self.snapshots:
            if offset not in wanted:
                self.delete_snapshot(offset)

    def delete_snapshots(self, start: int, end: int | None = None) -> None:
        """Delete the snapshots as of offsets in [start, end), None for all from `start` on. Raises
        OSError."""
        for offset in self.snapshots_from(start):
            if end is None or offset < end:
                self.delete_snapshot(offset)

    def delete_snapshot(self, offset: int) -> None:
        """Delete the snapshot as of `offset`, if there is one."""
        if offset in self._snapshots:
            self._snapshots.remove(offset)
            clear_path(self._fs, self.snapshot_path(offset))

    def retire_snapshot(self, offset: int) -> str | None:
        """Rename the snapshot as of `offset` to `.deleted`. Returns its new path, if any."""
        if offset not in self._snapshots:
            return None
        self._snapshots.remove(offset)
        path = self.snapshot_path(offset)
        try:
            self._fs.replace(path, path + DELETED_SUFFIX)
        except FileNotFoundError:
            return None
        return path + DELETED_SUFFIX

    def snapshot_path(self, offset: int) -> str:
        """The path of the snapshot as of `offset`."""
        return f"{self.directory}/{segment_file_name(offset, SNAPSHOT_SUFFIX)}"


def header_of(batch: memoryview) -> BatchHeader | None:
    """The header of a batch with a producer id; None for any other batch or message."""
    try:
        header = read_header(batch)
    except RecordsError:
        return None
    return header if header.has_producer_id else None
