"""Leader epochs of a log and their start offsets (KIP-101, Kafka's `LeaderEpochFileCache`).

Kept in memory and in `leader-epoch-checkpoint`. Followers and consumers use it to find the offset
where two logs diverge. Epochs and their start offsets are strictly ascending.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from itertools import pairwise

from ottla.storage.errors import CorruptFile
from ottla.storage.files.checkpoints import read_epoch_checkpoint, write_epoch_checkpoint
from ottla.storage.files.fs import FileSystem

NO_EPOCH = -1
NO_OFFSET = -1


class LeaderEpochs:
    """(epoch, start offset) pairs in ascending order.

    Changes are in the file when a method returns, but survive a power failure only after the next
    flush; `changes` counts them. Recovery reads the epochs of later batches from the batches.
    """

    __slots__ = (
        "_epochs",
        "_fs",
        "_starts",
        "changes",
        "is_enabled",
        "is_written",
        "latest_epoch",
        "path",
        "synced_changes",
    )

    def __init__(self, fs: FileSystem, path: str, *, is_enabled: bool = True) -> None:
        self._fs = fs
        self.path = path
        #: False for a log that gets messages of an old format: it knows no epochs at all, also not
        #: those of its other batches. Kafka: the log has no cache.
        self.is_enabled = is_enabled
        self._epochs: list[int] = []
        self._starts: list[int] = []
        # The newest epoch, or -1. Kept as an attribute because every append reads it.
        self.latest_epoch = NO_EPOCH
        self.changes = 0
        #: False while the file has epochs below the log start, which could not be written.
        self.is_written = True
        # The next flush syncs what an earlier process wrote, but it requires none.
        self.synced_changes = -1

    @property
    def requires_flush(self) -> bool:
        """Whether there are changes since the file was loaded that are not on disk."""
        return self.changes > max(self.synced_changes, 0)

    def load(self) -> None:
        """Read the file. Raises CorruptFile, with nothing loaded, when it is corrupt."""
        entries = read_epoch_checkpoint(self._fs, self.path)
        for (epoch, start), (later, later_start) in pairwise(entries):
            if not (epoch < later and start < later_start):
                raise CorruptFile(self.path, f"epoch {later} at {later_start} is out of order")
        self._set(entries)

    def _set(self, entries: list[tuple[int, int]]) -> None:
        self._epochs = [epoch for epoch, _ in entries]
        self._starts = [start for _, start in entries]
        self._update_latest()

    def _update_latest(self) -> None:
        self.latest_epoch = self._epochs[-1] if self._epochs else NO_EPOCH

    def __len__(self) -> int:
        return len(self._epochs)

    @property
    def entries(self) -> list[tuple[int, int]]:
        return list(zip(self._epochs, self._starts, strict=True))

    def assign(self, epoch: int, start_offset: int) -> None:
        """Batches from `start_offset` on have this epoch. Raises OSError.

        Changes nothing when it is the newest epoch and started before, when the file cannot be
        written, or when they are not enabled. Removes entries that conflict with the new one: those
        with a later epoch or a later start offset.
        """
        if epoch < 0 or start_offset < 0:
            raise ValueError(f"epoch {epoch} cannot start at offset {start_offset}")
        if not self.is_enabled:
            return
        before = self.entries
        if self._add(epoch, start_offset):
            self._write_or_restore(before)

    def _add(self, epoch: int, start_offset: int) -> bool:
        epochs, starts = self._epochs, self._starts
        if epochs and epochs[-1] == epoch and start_offset >= starts[-1]:
            return False
        while epochs and (epochs[-1] >= epoch or starts[-1] >= start_offset):
            epochs.pop()
            starts.pop()
        epochs.append(epoch)
        starts.append(start_offset)
        self.latest_epoch = epoch
        return True

    def end_offset_for(self, epoch: int, log_end_offset: int) -> tuple[int, int]:
        """(epoch, end offset) for an OffsetForLeaderEpoch request with `epoch`.

        The largest known epoch that is not above the requested one, and the start offset of the
        next epoch, or the log end for the newest. (-1, -1) when the requested epoch is newer than
        all known ones, or none is known.
        """
        if epoch == NO_EPOCH or not self._epochs or epoch > self._epochs[-1]:
            return NO_EPOCH, NO_OFFSET
        if epoch == self._epochs[-1]:
            return epoch, log_end_offset
        index = bisect_right(self._epochs, epoch)
        if index == 0:
            # Older than all known epochs: the whole log was written after it.
            return epoch, self._starts[0]
        return self._epochs[index - 1], self._starts[index]

    def epoch_for_offset(self, offset: int) -> int:
        """The epoch of the batch at `offset`, or -1."""
        index = bisect_right(self._starts, offset)
        return self._epochs[index - 1] if index else NO_EPOCH

    def truncate_from_end(self, end_offset: int) -> None:
        """Remove epochs that start at or after `end_offset`. Raises OSError, with none removed."""
        keep = bisect_left(self._starts, end_offset)
        if keep < len(self._starts):
            before = self.entries
            self._set(before[:keep])
            self._write_or_restore(before)

    def truncate_from_start(self, start_offset: int) -> None:
        """Remove epochs that end at or before `start_offset`, where the first one starts then."""
        covering = bisect_right(self._starts, start_offset) - 1
        if covering < 0 or (covering == 0 and self._starts[0] == start_offset):
            return
        del self._epochs[:covering]
        del self._starts[:covering]
        self._starts[0] = start_offset
        self.is_written = False
        self._write()

    def write_again(self) -> None:
        """Write what `truncate_from_start` could not write. Raises OSError."""
        if not self.is_written:
            self._write()

    def clear(self) -> None:
        """Remove all epochs. Raises OSError."""
        if self._epochs:
            before = self.entries
            self._set([])
            self._write_or_restore(before)

    def forget_up_to(self, offset: int) -> None:
        """At `offset` is a message without epoch: what is below it cannot be compared any more.

        Removes the epochs that start at or below it. Raises OSError, with none removed.
        """
        forgotten = bisect_right(self._starts, offset)
        if forgotten:
            before = self.entries
            self._set(before[forgotten:])
            self._write_or_restore(before)

    def enable(self, is_enabled: bool) -> None:
        """Whether epochs are known from now on; if not, there is no file either, as in Kafka.

        Raises OSError if it cannot be removed.
        """
        self.is_enabled = is_enabled
        if not is_enabled:
            self._set([])
            if self._fs.exists(self.path):
                self._fs.remove(self.path)
                self.changes += 1

    def replace(self, entries: list[tuple[int, int]]) -> None:
        """Replace all entries by these, which are ascending. Raises OSError."""
        before = self.entries
        self._set(entries if self.is_enabled else [])
        self._write_or_restore(before)

    def _write_or_restore(self, before: list[tuple[int, int]]) -> None:
        try:
            self._write()
        except OSError:
            self._set(before)  # or a retry would find nothing to write
            raise

    def _write(self) -> None:
        write_epoch_checkpoint(self._fs, self.path, self.entries, sync=False)
        self.is_written = True
        self.changes += 1
