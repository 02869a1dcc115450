"""SCRAM users in the znode tree, without a broker: for the first ones, before brokers start."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ottla.broker.security.sasl.scram_admin import (
    add_credential,
    credentials_of,
    remove_credentials,
)
from ottla.cli.offline_tree import OfflineTree, Place
from ottla.cli.output import Cell

if TYPE_CHECKING:
    from ottla.controller.tree.store import ZnodeStore


class OfflineUsers:
    """Each call opens the tree; one in a log directory no broker may have open meanwhile. Raises
    Failure."""

    def __init__(self, place: Place) -> None:
        self._tree = OfflineTree(
            place,
            "use the first directory of log.dirs of a broker without ZooKeeper that was started "
            "once, or `ottla start --add-scram` for its first start",
        )

    def credentials(self) -> list[dict[str, Cell]]:
        return [
            {"user": user, "mechanism": mechanism, "iterations": credential.iterations}
            for user, held in sorted(self._tree.run(credentials_of).items())
            for mechanism, credential in held.items()
        ]

    def add(self, user: str, password: str, mechanisms: list[str], iterations: int) -> None:
        async def change(store: ZnodeStore) -> None:
            for mechanism in mechanisms:
                await add_credential(store, user, password, mechanism, iterations)

        self._tree.run(change, makes_root=True)

    def remove(self, user: str, mechanisms: list[str]) -> list[str]:
        """Those that were there and are gone; all of them if none is named."""
        return self._tree.run(lambda store: remove_credentials(store, user, mechanisms))
