"""The interface to an object store: whole objects under keys, as all providers have them.

All methods block, may be called in several threads, and end within the deadlines of the store. What
fails raises RemoteStorageError; an object that is not there RemoteResourceNotFoundError.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

from ottla.storage.files.fs import Buffer


@dataclass(frozen=True, slots=True)
class StoredObject:
    """An object in a listing. `modified_ms` is the time of the store, in milliseconds."""

    key: str
    size: int
    modified_ms: int


class ObjectStore(Protocol):
    def put(self, key: str, content: Iterable[Buffer]) -> int:
        """Stores an object, durable when this returns, and replaces one that is there. Returns its
        size. Readers see no part of an object: if `content` raises, there is none."""

    def get(self, key: str, limit: int) -> bytes:
        """A whole object. Raises RemoteObjectCorruptError if it has more than `limit` bytes."""

    def get_range(self, key: str, position: int, size: int) -> bytes | memoryview:
        """Exactly `size` bytes, more than 0. A view is one of these bytes only. Raises
        RemoteObjectCorruptError if the object ends before."""

    def size(self, key: str) -> int:
        """The size of an object in bytes."""

    def delete(self, keys: Sequence[str]) -> None:
        """Deletes objects in this order. What is not there is no error."""

    def list(self, prefix: str) -> Iterator[StoredObject]:
        """All objects whose keys begin with the prefix, in any order."""

    def close(self) -> None:
        """Ends connections. No method is called afterwards."""
