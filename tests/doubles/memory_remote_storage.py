"""A remote storage in memory; calls can be made to fail before or after they took effect."""

from __future__ import annotations

from collections.abc import Sequence
from uuid import UUID

from ottla.storage.remote.remote_storage import (
    NoRemoteIndexError,
    RemoteIndexType,
    RemoteResourceNotFoundError,
    RemoteStorageError,
)
from ottla.storage.remote.segments import LogSegmentData, RemoteLogSegmentMetadata


class MemoryRemoteStorage:
    """Objects by segment id and suffix. Called in worker threads."""

    def __init__(self) -> None:
        self.objects: dict[UUID, dict[str, bytes]] = {}
        self.custom_metadata: bytes | None = None
        #: Names of the next calls that fail: "copy" before, "copied" after the objects are there.
        self.fail: list[str] = []

    #: No store is the wrong one.
    is_proven = True

    def prove(self, known: Sequence[RemoteLogSegmentMetadata], *, is_unused: bool) -> None: ...

    def copy_log_segment(
        self, metadata: RemoteLogSegmentMetadata, data: LogSegmentData
    ) -> bytes | None:
        self._maybe_fail("copy")
        files = {
            "log": data.segment,
            RemoteIndexType.OFFSET.value: data.offset_index,
            RemoteIndexType.TIMESTAMP.value: data.time_index,
            RemoteIndexType.TRANSACTION.value: data.transaction_index,
            RemoteIndexType.PRODUCER_SNAPSHOT.value: data.producer_snapshot,
        }
        objects = {name: path.read_bytes() for name, path in files.items() if path is not None}
        objects[RemoteIndexType.LEADER_EPOCH.value] = data.leader_epoch_checkpoint
        self.objects[metadata.segment_id.id] = objects
        self._maybe_fail("copied")
        return self.custom_metadata

    #: Nothing is in memory for readers, as far as they can tell.
    read_ahead_bytes = 0

    def fetch_log_segment_if_cached(
        self, metadata: RemoteLogSegmentMetadata, start_position: int, end_position: int
    ) -> bytes | None:
        return None

    def fetch_log_segment_file(
        self, metadata: RemoteLogSegmentMetadata, start_position: int, end_position: int
    ) -> None:
        return None

    fetch_log_segment_file_if_cached = fetch_log_segment_file

    def segment_file(self, metadata: RemoteLogSegmentMetadata) -> None:
        return None

    def fetch_log_segment(
        self, metadata: RemoteLogSegmentMetadata, start_position: int, end_position: int
    ) -> bytes:
        return self._object(metadata, "log")[start_position:end_position]

    def fetch_index(self, metadata: RemoteLogSegmentMetadata, index_type: RemoteIndexType) -> bytes:
        try:
            return self._object(metadata, index_type.value)
        except RemoteResourceNotFoundError as error:
            if metadata.segment_id.id in self.objects:
                raise NoRemoteIndexError(str(error)) from None
            raise

    def delete_log_segment(self, metadata: RemoteLogSegmentMetadata) -> None:
        self._maybe_fail("delete")
        self.objects.pop(metadata.segment_id.id, None)
        self._maybe_fail("deleted")

    def close(self) -> None:
        pass

    def _object(self, metadata: RemoteLogSegmentMetadata, name: str) -> bytes:
        self._maybe_fail("fetch")
        try:
            return self.objects[metadata.segment_id.id][name]
        except KeyError:
            raise RemoteResourceNotFoundError(f"{metadata.segment_id.id}.{name}") from None

    def _maybe_fail(self, name: str) -> None:
        if name in self.fail:
            self.fail.remove(name)
            raise RemoteStorageError(f"{name} failed for the test")
