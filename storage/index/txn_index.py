"""`.txnindex`: the aborted transactions whose markers are in the segment, 34 bytes per entry.

    version int16 (0) | producer id int64 | first offset int64 | last offset int64 |
    last stable offset int64

`last offset` is the offset of the abort marker, `last stable offset` that of the log when the
marker was written. Segments without aborted transactions have no such file. The entries are few;
the first fetch with isolation level read_committed reads all of them.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable
from functools import partial
from operator import attrgetter
from struct import Struct
from typing import NamedTuple

from ottla.storage.errors import CorruptIndex
from ottla.storage.files.fs import (
    CREATE,
    READ_ONLY,
    UNUSABLE_FILE,
    FileSystem,
    clear_path,
    replace_file,
    write_fully,
)
from ottla.storage.files.open_files import OpenFile

_ENTRY = Struct(">hqqqq")
TXN_ENTRY_BYTES = _ENTRY.size
_VERSION = 0

#: The entries of a damaged index again, from the batches of its log. The arguments are the base
#: offset of its segment and the damage; raises CorruptIndex if the batches are damaged, too.
Rebuild = Callable[[int, CorruptIndex], "list[AbortedTransaction]"]


class AbortedTransaction(NamedTuple):
    """One aborted transaction."""

    producer_id: int
    first_offset: int
    last_offset: int
    last_stable_offset: int


class TransactionIndex:
    """The aborted transactions of one segment, in the order of their markers."""

    __slots__ = (
        "_entries",
        "_fs",
        "_is_too_long",
        "_stored_bytes",
        "base_offset",
        "changes",
        "path",
        "rebuild",
        "synced_changes",
    )

    def __init__(
        self, fs: FileSystem, path: str, base_offset: int, stored_bytes: int, log_bytes: int
    ) -> None:
        """`log_bytes`: of its segment, which has a longer batch for each entry."""
        self._fs = fs
        self._is_too_long = stored_bytes > log_bytes
        #: What repairs a damaged file; None: it stays as it is.
        self.rebuild: Rebuild | None = None
        self._entries: list[AbortedTransaction] | None = None if stored_bytes else []
        self._stored_bytes = stored_bytes
        # Of the file, and of whether there is one. An earlier process may not have synced it.
        self.changes = 1
        self.synced_changes = 0
        self.path = path
        self.base_offset = base_offset

    @property
    def exists(self) -> bool:
        """Whether there are any entries. Does not read the file."""
        return self._stored_bytes > 0

    @property
    def size_in_bytes(self) -> int:
        return self._stored_bytes

    def entries(self) -> list[AbortedTransaction]:
        """All entries. Rebuilds a damaged file; raises CorruptIndex if that is not possible."""
        if self._entries is None:
            try:
                self._entries = self._load()
            except CorruptIndex as damage:
                if self.rebuild is None:
                    raise
                self.replace(self.rebuild(self.base_offset, damage))
        assert self._entries is not None
        return self._entries

    def check(self) -> list[AbortedTransaction]:
        """The entries, without keeping them in memory. Raises CorruptIndex; rebuilds nothing."""
        return self._load() if self._entries is None else self._entries

    def _load(self) -> list[AbortedTransaction]:
        if self._is_too_long:  # nobody has the memory for a file of any length
            raise CorruptIndex(self.path, f"{self._stored_bytes} bytes, more than its log")
        try:
            file = OpenFile(self._fs, self.path, READ_ONLY)
            content = self._fs.pread(file.descriptor, self._stored_bytes, 0)
        except OSError as error:
            if error.errno not in UNUSABLE_FILE:
                raise
            raise CorruptIndex(self.path, error.strerror or str(error)) from error
        if len(content) < self._stored_bytes:
            raise CorruptIndex(
                self.path, f"the file ends at {len(content)}, not at {self._stored_bytes}"
            )
        if len(content) % TXN_ENTRY_BYTES:
            raise CorruptIndex(
                self.path,
                f"{len(content)} bytes is not a multiple of {TXN_ENTRY_BYTES}",
            )
        found: list[AbortedTransaction] = []
        for at, (version, *fields) in enumerate(_ENTRY.iter_unpack(content)):
            entry = AbortedTransaction._make(fields)
            if version != _VERSION:
                raise CorruptIndex(self.path, f"entry {at} has the unknown version {version}")
            if self.base_offset > entry.last_offset or not (
                0 <= entry.first_offset <= entry.last_offset
                and entry.producer_id >= 0
                and entry.last_stable_offset >= 0
            ):
                raise CorruptIndex(self.path, f"entry {at}, {entry}, is not of this segment")
            if found and found[-1].last_offset >= entry.last_offset:
                raise CorruptIndex(
                    self.path, f"entry {at}, {entry}, does not come after {found[-1]}"
                )
            found.append(entry)
        return found

    def append(self, entry: AbortedTransaction) -> None:
        """Add an aborted transaction. It is in the page cache when this returns."""
        self.append_all([entry])

    def append_all(self, added: list[AbortedTransaction]) -> Callable[[], None]:
        """Add aborted transactions. Raises OSError, with none of them added.

        Returns the function that removes them again, for a marker that could not be written. It
        needs no descriptor and no disk space, and raises OSError like a disk that has failed.
        """
        entries, size = self.entries(), self._stored_bytes
        if entries and entries[-1].last_offset >= added[0].last_offset:
            raise ValueError(f"{added[0]} does not come after {entries[-1]}")
        self.changes += 1
        file = OpenFile(self._fs, self.path, CREATE)
        content = b"".join(_ENTRY.pack(_VERSION, *entry) for entry in added)
        undo = partial(self._keep, file, len(entries))
        try:
            write_fully(self._fs, file.descriptor, content, size)
            entries += added
        except BaseException:  # MemoryError, too
            undo()
            raise
        self._stored_bytes = size + len(content)
        return undo

    def truncate_to(self, offset: int) -> None:
        """Remove the transactions whose marker is at or above `offset`."""
        self.truncation(offset)()

    def truncation(self, offset: int) -> Callable[[], None]:
        """The function that does what `truncate_to` does; it needs no descriptor."""
        entries = self.entries()
        keep = sum(entry.last_offset < offset for entry in entries)
        if keep == len(entries):
            return lambda: None
        return partial(self._keep, OpenFile(self._fs, self.path, CREATE), keep)

    def _keep(self, file: OpenFile, entries: int) -> None:
        """Remove all but the first `entries` entries, and what was written of more of them."""
        self.changes += 1
        del self.entries()[entries:]
        self._stored_bytes = entries * TXN_ENTRY_BYTES
        if entries:
            self._fs.truncate(file.descriptor, self._stored_bytes)
        else:
            self._remove(file)

    def _remove(self, file: OpenFile) -> None:
        """Empty the file first: after a power failure its name may be there again, below the
        recovery point, where nothing compares it with the records."""
        self._fs.truncate(file.descriptor, 0)
        self._fs.sync(file.descriptor)
        self._fs.remove(self.path)

    def reset(self) -> None:
        """Remove all entries, valid or not."""
        self._entries = []
        if self._stored_bytes:
            self.changes += 1
            self._stored_bytes = 0
            try:
                file = OpenFile(self._fs, self.path, CREATE)
            except OSError as error:
                if error.errno not in UNUSABLE_FILE:
                    raise
                clear_path(self._fs, self.path)
            else:
                self._remove(file)

    def clear_name(self) -> None:
        """Remove what has the name of the file and has no entries. Raises OSError."""
        clear_path(self._fs, self.path)

    def replace(self, entries: list[AbortedTransaction]) -> None:
        """Write all entries; they are durable. Raises OSError."""
        if not entries:
            self.reset()
            return
        content = b"".join(_ENTRY.pack(_VERSION, *entry) for entry in entries)
        replace_file(self._fs, self.path, content, sync=True)
        self.changes += 1
        self._entries, self._stored_bytes = entries, len(content)

    def collect(self, fetch_offset: int, upper_bound: int, into: list[AbortedTransaction]) -> bool:
        """Add the transactions that overlap [fetch_offset, upper_bound) to `into`.

        True when later segments cannot contain more of them.
        """
        entries = self.entries()
        # A reader at the end of the log passes all of them with each fetch otherwise.
        first = bisect_left(entries, fetch_offset, key=attrgetter("last_offset"))
        for index in range(first, len(entries)):
            entry = entries[index]
            if entry.first_offset < upper_bound:
                into.append(entry)
            # Kafka's followers write a last stable offset above the marker, if what they fetched
            # at once has a transaction that begins behind it.
            if min(entry.last_stable_offset, entry.last_offset + 1) >= upper_bound:
                return True
        return False
