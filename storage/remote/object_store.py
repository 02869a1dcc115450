"""The interface to an object store: whole objects under keys, as all providers have them.

All methods block, may be called in several threads, and end within the deadlines of the store. What
fails raises RemoteStorageError; an object that is not there RemoteResourceNotFoundError.

`StoreIdentity` proves that a store is the one that this cluster wrote to: it contains an object of
the cluster. A folder whose file system is not mounted, another `storage.root` or another
`key.prefix` is an empty store. A deletion would find nothing there and count as done, and a copy
would go to a disk that nobody reads. Kafka and Aiven's plugin have no such object, and do not read
this one.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

from ottla.storage.files.fs import Buffer
from ottla.storage.remote.remote_storage import (
    RemoteObjectCorruptError,
    RemoteResourceNotFoundError,
    RemoteStorageError,
)


@dataclass(frozen=True, slots=True)
class StoredObject:
    """An object in a listing. `modified_ms` is the time of the store, in milliseconds."""

    key: str
    size: int
    modified_ms: int


class ObjectStore(Protocol):
    def put(self, key: str, content: Iterable[Buffer]) -> int:
        """Store an object, durable when this returns, and replace one that is there. Returns its
        size. Readers see no part of an object: if `content` raises, there is none."""

    def get(self, key: str, limit: int) -> bytes:
        """A whole object. Raises RemoteObjectCorruptError if it has more than `limit` bytes."""

    def get_range(self, key: str, position: int, size: int) -> bytes | memoryview:
        """Exactly `size` bytes, more than 0. A view is one of these bytes only. Raises
        RemoteObjectCorruptError if the object ends before."""

    def size(self, key: str) -> int:
        """The size of an object in bytes."""

    def delete(self, keys: Sequence[str]) -> None:
        """Delete objects in this order. Missing ones are ignored."""

    def list(self, prefix: str) -> Iterator[StoredObject]:
        """All objects whose keys begin with the prefix, in any order."""

    def close(self) -> None:
        """End connections. No method is called afterwards."""


#: The name of the object after the key prefix; the cluster id follows. Clusters may share a store.
NAME = "ottla-store-"
_MAX_BYTES = 4096
_VERSION = 1


class StoreNotProvenError(RemoteStorageError):
    """The store does not have the object of this cluster: nothing is written or deleted there."""


class StoreIdentity:
    """Reads and writes the object that identifies the cluster. All methods block."""

    def __init__(self, store: ObjectStore, prefix: str, cluster_id: str, where: str) -> None:
        """`where` names the store for operators."""
        self._store = store
        self._cluster_id = cluster_id
        self.where = where
        self.key = f"{prefix}{NAME}{cluster_id}"

    def check(self) -> None:
        """Raise StoreNotProvenError, or RemoteStorageError if the store fails."""
        try:
            content = json.loads(self._store.get(self.key, _MAX_BYTES))
        except RemoteResourceNotFoundError:
            reason = "is not there"
        except (RemoteObjectCorruptError, ValueError):
            reason = "is not what a broker wrote"
        else:
            if isinstance(content, dict) and content.get("clusterId") == self._cluster_id:
                return
            reason = "is not that of this cluster"
        raise StoreNotProvenError(
            f"{self.where} is not known as the store of this cluster: its object {self.key}"
            f" {reason}. Nothing is copied or deleted there. Mount the file system, or correct the"
            " settings of the store; if it is the right one, use `ottla tiered adopt`"
        )

    def write(self) -> None:
        """Make this the store of the cluster. Raises RemoteStorageError."""
        content = {"version": _VERSION, "clusterId": self._cluster_id}
        self._store.put(self.key, [json.dumps(content).encode()])
