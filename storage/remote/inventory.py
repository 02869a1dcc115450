"""The objects in the store, compared with the segments that the cluster knows: verify and gc.

Mirrors nothing of Kafka: there, objects that a failed copy left stay until an operator finds them.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass

from ottla.storage.remote.object_keys import ObjectKind
from ottla.storage.remote.object_remote_storage import ObjectRemoteStorage
from ottla.storage.remote.object_store import NAME, StoredObject
from ottla.storage.remote.remote_storage import (
    NoRemoteIndexError,
    RemoteIndexType,
    RemoteObjectCorruptError,
    RemoteResourceNotFoundError,
)
from ottla.storage.remote.segments import RemoteLogSegmentMetadata, RemoteLogSegmentState

# A copy writes its objects after its metadata record. Objects of segments that are not known and
# are younger than this may belong to a copy whose record was not read yet.
DEFAULT_MIN_AGE_MS = 24 * 60 * 60 * 1000


@dataclass(frozen=True, slots=True)
class Inventory:
    """`live_bytes` and `live_objects` are those of known segments, `young` are unknown objects
    below the minimum age, `foreign` is the number of objects that are no part of a segment."""

    live_objects: int
    live_bytes: int
    orphans: list[StoredObject]
    young: list[StoredObject]
    foreign: int


def take_inventory(
    storage: ObjectRemoteStorage,
    live: Iterable[RemoteLogSegmentMetadata],
    now_ms: int,
    min_age_ms: int = DEFAULT_MIN_AGE_MS,
) -> Inventory:
    """List the store and find the objects that belong to no segment of `live`.

    `live` must have all segments that are not deleted, also those whose copy or deletion has only
    begun, and must be read before this is called. A segment of which the state is
    DELETE_SEGMENT_FINISHED is not live. Memory is needed for one key of each live object and for
    each orphan. Raises RemoteStorageError.
    """
    live_keys: set[str] = set()
    for metadata in live:
        if metadata.state is not RemoteLogSegmentState.DELETE_SEGMENT_FINISHED:
            live_keys.update(storage.keys.of(metadata))
    live_objects = live_bytes = foreign = 0
    orphans: list[StoredObject] = []
    young: list[StoredObject] = []
    for found in storage.store.list(storage.keys.prefix):
        if found.key in live_keys:
            live_objects += 1
            live_bytes += found.size
        elif storage.keys.parse(found.key) is None:
            is_identity = found.key.startswith(f"{storage.keys.prefix}{NAME}")
            foreign += 0 if is_identity else 1
        elif now_ms - found.modified_ms >= min_age_ms:
            orphans.append(found)
        else:
            young.append(found)
    return Inventory(live_objects, live_bytes, orphans, young, foreign)


def delete_orphans(storage: ObjectRemoteStorage, orphans: Collection[StoredObject]) -> None:
    """Delete them, manifests first. Raises RemoteStorageError; some may be deleted then."""
    keys = [orphan.key for orphan in orphans]
    manifest = f".{ObjectKind.MANIFEST.value}"
    storage.store.delete(sorted(keys, key=lambda key: not key.endswith(manifest)))


def verify_segment(
    storage: ObjectRemoteStorage, metadata: RemoteLogSegmentMetadata, *, read_content: bool
) -> Iterator[str]:
    """The defects of the objects of a segment, a sentence each.

    Sizes are compared; with `read_content` all chunks and indexes are read and their checksums
    compared, one chunk at a time. The caches are not used. Raises RemoteStorageError if the store
    fails, which says nothing about the segment.
    """
    log_key = storage.keys.of(metadata).log
    indexes_key = storage.keys.of(metadata).indexes
    try:
        manifest = storage.read_manifest(metadata)
    except (RemoteResourceNotFoundError, RemoteObjectCorruptError) as error:
        yield str(error)
        return
    index = manifest.chunk_index
    if index.original_file_size != metadata.size_bytes:
        yield (
            f"The manifest of {log_key} is of a segment with {index.original_file_size} bytes, the"
            f" metadata of one with {metadata.size_bytes}"
        )
    for key, expected in ((log_key, index.object_size), (indexes_key, manifest.indexes_size)):
        try:
            size = storage.store.size(key)
        except RemoteResourceNotFoundError as error:
            yield str(error)
            continue
        if size != expected:
            yield f"The object {key} has {size} bytes, expected {expected}"
            continue
        if not read_content:
            continue
        if key == log_key:
            for number in range(len(index)):
                try:
                    storage.read_chunk(log_key, manifest, index.chunk(number))
                except RemoteObjectCorruptError as error:
                    yield str(error)
        else:
            for index_type in manifest.indexes:
                yield from _verify_index(storage, metadata, index_type)


def _verify_index(
    storage: ObjectRemoteStorage, metadata: RemoteLogSegmentMetadata, index_type: RemoteIndexType
) -> Iterator[str]:
    try:
        storage.fetch_index(metadata, index_type)
    except (RemoteResourceNotFoundError, RemoteObjectCorruptError) as error:
        yield str(error)
    except NoRemoteIndexError:
        return  # An empty producer snapshot: the segment had none.
