"""A lock for each key that is in use."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Hashable
from contextlib import asynccontextmanager
from typing import Generic, TypeVar

Key = TypeVar("Key", bound=Hashable)


class KeyedLocks(Generic[Key]):
    """Serializes what is done to one key; a key that no task uses takes no memory."""

    def __init__(self) -> None:
        # The lock, and one item for each task that has it or waits for it.
        self._locks: dict[Key, tuple[asyncio.Lock, list[None]]] = {}

    def __len__(self) -> int:
        return len(self._locks)

    @asynccontextmanager
    async def locked(self, key: Key) -> AsyncIterator[None]:
        """Hold the lock of the key; tasks get it in the order in which they came."""
        lock, users = self._locks.setdefault(key, (asyncio.Lock(), []))
        users.append(None)
        try:
            async with lock:
                yield
        finally:
            users.pop()
            if not users:
                del self._locks[key]
