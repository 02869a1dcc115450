"""Places where znode stores meet: the embedded tree in memory or in a file, a real ZooKeeper.

The contract tests run on all of them; each gives any number of sessions on one fresh tree.
"""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from typing import Protocol

from ottla.controller.tree.embedded_store import EmbeddedStore
from ottla.controller.tree.embedded_tree import EmbeddedTree
from ottla.controller.tree.store import NoNode, ZnodeStore, paths_below
from ottla.controller.tree.zookeeper_store import ZooKeeperStore
from tests.doubles.zookeeper_process import ZooKeeperProcess

WAIT_DEADLINE_S = 60.0


class Ensemble(Protocol):
    async def open(self) -> ZnodeStore:
        """One more session on the tree."""

    async def expire(self, store: ZnodeStore) -> None:
        """Ends the session as the server does when it heard nothing for too long."""

    async def close(self) -> None: ...


class EmbeddedEnsemble:
    """In memory, or with the first session's file when a path is given."""

    def __init__(self, path: Path | None = None) -> None:
        self._path = path
        self._tree: EmbeddedTree | None = None
        self._stores: list[EmbeddedStore] = []

    async def open(self) -> ZnodeStore:
        if self._tree is None:
            path = None if self._path is None else str(self._path)
            store = EmbeddedStore(path)
            self._tree = store.tree
        else:
            store = EmbeddedStore(tree=self._tree)
        self._stores.append(store)
        await store.connect()
        return store

    async def expire(self, store: ZnodeStore) -> None:
        assert isinstance(store, EmbeddedStore)
        store.expire_session()

    async def close(self) -> None:
        for store in reversed(self._stores):
            await store.close()


class ZooKeeperEnsemble:
    """A directory of its own on a server that is shared by many tests."""

    _count = 0

    def __init__(self, zookeeper: ZooKeeperProcess) -> None:
        ZooKeeperEnsemble._count += 1
        self.connect = f"{zookeeper.connect}/test-{time.time_ns()}-{ZooKeeperEnsemble._count}"
        self._stores: list[ZooKeeperStore] = []

    async def open(self) -> ZnodeStore:
        store = ZooKeeperStore(self.connect, session_timeout_ms=10_000)
        self._stores.append(store)
        await store.connect()
        return store

    async def expire(self, store: ZnodeStore) -> None:
        from kazoo.client import KazooClient

        assert isinstance(store, ZooKeeperStore)
        # The client that presents the id and password of a session owns it, and may close it, if
        # the store has not taken it back before that.
        client_id = store.session.kazoo().client_id
        assert client_id is not None

        def close_session() -> bool:
            """Whether it was there."""
            twin = KazooClient(hosts=self.connect.partition("/")[0], client_id=client_id)
            twin.start(60)
            is_same = twin.client_id[0] == client_id[0]
            twin.stop()
            twin.close()
            return is_same

        while await asyncio.to_thread(close_session):
            pass

    async def close(self) -> None:
        for store in self._stores:
            await store.close()


async def delete_recursively(store: ZnodeStore, path: str) -> None:
    """Delete the znode and all below it; not atomic, no error if it does not exist."""
    for below in reversed(await paths_below(store, path)):
        try:
            await store.delete(below)
        except NoNode:
            continue
