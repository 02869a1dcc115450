"""SCRAM users in the znode tree of a stopped broker that has no ZooKeeper."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable
from typing import TypeVar

from ottla.broker.cluster.identity import EMBEDDED_STORE_FILE
from ottla.broker.security.sasl.scram_admin import (
    add_credential,
    credentials_of,
    remove_credentials,
)
from ottla.cli.output import Cell, Failure
from ottla.controller.tree.embedded_store import EmbeddedStore
from ottla.controller.tree.store import StoreError
from ottla.storage.directories.log_directories import DirectoryLock
from ottla.storage.errors import DirectoryInUse

T = TypeVar("T")


class OfflineUsers:
    """Each call opens the tree, which no broker may have open meanwhile. Raises Failure."""

    def __init__(self, data_dir: str) -> None:
        self._data_dir = data_dir
        self._path = os.path.join(data_dir, EMBEDDED_STORE_FILE)
        if not os.path.exists(self._path):
            raise Failure(
                f"--data-dir: there is no {EMBEDDED_STORE_FILE} in {data_dir}; use the first "
                "directory of log.dirs of a broker without ZooKeeper that was started once, or "
                "`ottla start --add-scram` for its first start."
            )

    def credentials(self) -> list[dict[str, Cell]]:
        return [
            {"user": user, "mechanism": mechanism, "iterations": credential.iterations}
            for user, held in sorted(self._run(credentials_of).items())
            for mechanism, credential in held.items()
        ]

    def add(self, user: str, password: str, mechanisms: list[str], iterations: int) -> None:
        async def change(store: EmbeddedStore) -> None:
            for mechanism in mechanisms:
                await add_credential(store, user, password, mechanism, iterations)

        self._run(change)

    def remove(self, user: str, mechanisms: list[str]) -> list[str]:
        """Those that were there and are gone; all of them if none is named."""
        return self._run(lambda store: remove_credentials(store, user, mechanisms))

    def _run(self, work: Callable[[EmbeddedStore], Awaitable[T]]) -> T:
        async def run() -> T:
            store = EmbeddedStore(self._path)
            await store.connect()
            try:
                return await work(store)
            finally:
                await store.close()

        try:
            lock = DirectoryLock(self._data_dir)
            try:
                return asyncio.run(run())
            finally:
                lock.release()
        except (DirectoryInUse, StoreError, OSError) as error:
            raise Failure(f"{error}.") from None
