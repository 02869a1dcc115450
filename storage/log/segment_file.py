"""The `.log` file of a segment: record batches without gaps."""

from __future__ import annotations

import os

from ottla.storage.files.fs import (
    CREATE_EMPTY,
    READ_WRITE,
    UNUSABLE_FILE,
    Buffer,
    FileSystem,
    rename_obstacle,
    write_fully,
)
from ottla.storage.files.open_files import FileSlice, OpenFile, OpenFiles


class PinnedFile:
    """A `.log` file that is read on, whatever happens to its segment: see `SegmentFile.pinned`."""

    __slots__ = ("_file", "_fs", "path")

    def __init__(self, fs: FileSystem, path: str, file: OpenFile) -> None:
        self._fs = fs
        self._file = file
        self.path = path

    def read(self, position: int, length: int) -> bytes:
        """Up to `length` bytes at `position`, fewer at the end of the file."""
        return self._fs.pread(self._file.descriptor, length, position)


class SegmentFile:
    """One `.log` file. `size` is the position of the next batch.

    With `preallocate` the file on disk is longer than `size` until `trim`. The descriptor is opened
    on first use and `OpenFiles` may close it between uses.
    """

    __slots__ = ("_file", "_files", "_fs", "path", "pread", "recently_used", "size")

    def __init__(self, fs: FileSystem, path: str, size: int, files: OpenFiles) -> None:
        self._fs = fs
        self._files = files
        self._file: OpenFile | None = None
        self.pread = fs.pread
        self.path = path
        self.size = size
        self.recently_used = False

    def file(self) -> OpenFile:
        """The open file. The descriptor stays open as long as the result is referenced."""
        self.recently_used = True
        file = self._file
        if file is None:
            file = self._open(READ_WRITE)
        return file

    def create(self) -> None:
        """Create the file, or empty an existing one."""
        self.close()
        try:
            self._open(CREATE_EMPTY)
        except OSError as error:
            if error.errno not in UNUSABLE_FILE or not self._fs.exists(os.path.dirname(self.path)):
                raise
            rename_obstacle(self._fs, self.path)
            self._open(CREATE_EMPTY)
        self.size = 0

    def _open(self, flags: int) -> OpenFile:
        self._file = file = OpenFile(self._fs, self.path, flags)
        self._files.admit(self)
        return file

    def append(self, buffer: Buffer) -> None:
        """Write at the end with one `pwrite`. In the page cache when this returns, not on disk.

        Raises OSError; `size` is unchanged then, and `remove_partial_write` repairs the file.
        """
        file = self._file
        if file is None:
            file = self.file()
        else:
            self.recently_used = True
        size = len(buffer)
        position = self.size
        if self._fs.pwrite(file.descriptor, buffer, position) != size:
            write_fully(self._fs, file.descriptor, buffer, position)
        self.size = position + size

    def remove_partial_write(self) -> None:
        """Truncate the file to `size`, which removes a partial write."""
        self._fs.truncate(self.file().descriptor, self.size)

    def read(self, position: int, length: int) -> bytes:
        """Up to `length` bytes at `position`, fewer at the end of the file."""
        length = max(0, min(length, self.size - position))
        return self._fs.pread(self.file().descriptor, length, position)

    def pinned(self) -> PinnedFile:
        """The file as it is open now: readable when it is renamed, deleted or closed meanwhile."""
        return PinnedFile(self._fs, self.path, self.file())

    def slice(self, position: int, length: int) -> FileSlice:
        """A slice that can be read, or sent with sendfile, whatever happens to the log."""
        file = self._file
        if file is None:
            file = self.file()
        else:
            self.recently_used = True
        return FileSlice(file, position, length)

    def truncate(self, size: int, file: OpenFile | None = None) -> None:
        """Remove everything from `size` on. `file`: the open file, so that it stays open."""
        self._fs.truncate((file or self.file()).descriptor, size)
        self.size = size

    def preallocate(self, size: int) -> None:
        """Extend the file on disk to `size` bytes; `self.size` does not change."""
        self._fs.truncate(self.file().descriptor, size)

    def trim(self) -> None:
        """Remove preallocated space."""
        descriptor = self.file().descriptor
        if self._fs.size(descriptor) != self.size:
            self._fs.truncate(descriptor, self.size)

    def release(self) -> None:
        """Drop the descriptor, for `OpenFiles`. Slices keep it open."""
        self._file = None

    def close(self) -> None:
        if self._file is not None:
            self._file = None
            self._files.forget(self)
