"""Whether a store is the one that this cluster wrote to: an object of the cluster says so.

A folder whose file system is not mounted, another `storage.root` or another `key.prefix` are empty
stores. There, a deletion would find nothing and count as done, and a copy would go to a disk that
nobody reads. Kafka and Aiven's plugin have no such object, and do not read this one.
"""

from __future__ import annotations

import json

from ottla.storage.remote.object_store import ObjectStore
from ottla.storage.remote.remote_storage import (
    RemoteObjectCorruptError,
    RemoteResourceNotFoundError,
    RemoteStorageError,
)

#: The name of the object after the key prefix; the cluster id follows. Clusters may share a store.
NAME = "ottla-store-"
_MAX_BYTES = 4096
_VERSION = 1


class StoreNotProvenError(RemoteStorageError):
    """The store does not have the object of this cluster: nothing is written or deleted there."""


class StoreIdentity:
    """All methods block, as those of the store."""

    def __init__(self, store: ObjectStore, prefix: str, cluster_id: str, where: str) -> None:
        """`where` names the store for operators."""
        self._store = store
        self._cluster_id = cluster_id
        self.where = where
        self.key = f"{prefix}{NAME}{cluster_id}"

    def check(self) -> None:
        """Raises StoreNotProvenError, or RemoteStorageError if the store fails."""
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
        """Makes this the store of the cluster. Raises RemoteStorageError."""
        content = {"version": _VERSION, "clusterId": self._cluster_id}
        self._store.put(self.key, [json.dumps(content).encode()])
