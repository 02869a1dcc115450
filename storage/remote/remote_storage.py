"""The interface to a remote storage. Mirrors KIP-405's RemoteStorageManager.

All methods block and are called in worker threads, also several at the same time. Each ends or
raises within the deadlines of the storage's own settings. An object becomes visible whole or not
at all.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum
from typing import Protocol

from ottla.storage.errors import StorageError
from ottla.storage.files.open_files import FileSlice
from ottla.storage.remote.segments import LogSegmentData, RemoteLogSegmentMetadata


class RemoteStorageError(StorageError):
    """The remote storage failed. The call can be made again; local data must be kept."""


class RemoteResourceNotFoundError(RemoteStorageError):
    """The object is not there: it was deleted, or never copied."""


class NoRemoteIndexError(RemoteStorageError):
    """The segment is there, and did not have an index of this type when it was copied."""


class RemoteObjectCorruptError(RemoteStorageError):
    """The object is there, and its bytes are not those that were copied."""


class RemoteIndexType(Enum):
    OFFSET = "index"
    TIMESTAMP = "timeindex"
    PRODUCER_SNAPSHOT = "snapshot"
    TRANSACTION = "txnindex"
    LEADER_EPOCH = "leader-epoch-checkpoint"


class SegmentFile(Protocol):
    """The file of a segment, for one reader that reads it from front to back."""

    def part_if_valid(self, start: int, end: int) -> FileSlice | None:
        """The bytes from `start` to before `end`, which are in the segment; None if something is to
        be read for it. Does not block."""


class RemoteStorage(Protocol):
    @property
    def read_ahead_bytes(self) -> int:
        """How far a segment is read ahead of a reader that continues in it; 0: not at all."""

    @property
    def is_proven(self) -> bool:
        """If not, `prove` is called before the next copy or deletion. Does not block."""

    def prove(self, known: Sequence[RemoteLogSegmentMetadata], *, is_unused: bool) -> None:
        """Make sure that this is the store that the cluster wrote to.

        A store that is not marked as that is marked if it has an object of one of the `known`
        segments, or if the cluster has no remote segments (`is_unused`). Raises
        StoreNotProvenError. `copy_log_segment` and `delete_log_segment` raise it, too, once the
        store is not that one any more.
        """

    def copy_log_segment(
        self, metadata: RemoteLogSegmentMetadata, data: LogSegmentData
    ) -> bytes | None:
        """Copy the files of one segment. When this returns they are durable and can be read.
        Returns the custom metadata to keep with the segment. May be called again after an error."""

    def fetch_log_segment(
        self, metadata: RemoteLogSegmentMetadata, start_position: int, end_position: int
    ) -> bytes | memoryview:
        """The bytes of the segment file from `start_position` to before `end_position`, or to its
        end. The caller bounds the length. A view may be one of more bytes, which stay in memory as
        long as the view. Raises RemoteResourceNotFoundError."""

    def fetch_log_segment_if_cached(
        self, metadata: RemoteLogSegmentMetadata, start_position: int, end_position: int
    ) -> bytes | memoryview | None:
        """As `fetch_log_segment`, without a request to the store: None if a part of it is not in
        memory. Does not block."""

    def fetch_log_segment_file(
        self, metadata: RemoteLogSegmentMetadata, start_position: int, end_position: int
    ) -> FileSlice | None:
        """The same bytes as a part of a file that reports what is in the page cache; None if there
        is no such file. They were verified, like those of `fetch_log_segment`."""

    def fetch_log_segment_file_if_cached(
        self, metadata: RemoteLogSegmentMetadata, start_position: int, end_position: int
    ) -> FileSlice | None:
        """As `fetch_log_segment_file`, None if something is to be read for it. Does not block."""

    def segment_file(self, metadata: RemoteLogSegmentMetadata) -> SegmentFile | None:
        """The file of `fetch_log_segment_file_if_cached`. None if there is none. Does not block."""

    def fetch_index(self, metadata: RemoteLogSegmentMetadata, index_type: RemoteIndexType) -> bytes:
        """A whole index. Raises NoRemoteIndexError for a transaction index or a producer snapshot
        that the segment did not have, and RemoteResourceNotFoundError when that is not known,
        because an object of the segment is not there."""

    def delete_log_segment(self, metadata: RemoteLogSegmentMetadata) -> None:
        """Delete all objects of the segment. What is not there any more is no error, if the store
        is proven to be the right one."""

    def close(self) -> None:
        """End connections. No method is called afterwards."""
