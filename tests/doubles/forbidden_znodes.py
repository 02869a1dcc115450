"""A znode tree in which some znodes may not be read, as with an ACL of ZooKeeper for others."""

from __future__ import annotations

from collections.abc import Sequence

from ottla.controller.tree.embedded_store import EmbeddedStore
from ottla.controller.tree.store import NotPermitted, Stat


class ForbiddenZnodes(EmbeddedStore):
    """In memory; `forbidden` are paths."""

    def __init__(self) -> None:
        super().__init__(None)
        self.forbidden: set[str] = set()

    async def get(self, path: str) -> tuple[bytes, Stat]:
        if path in self.forbidden:
            raise NotPermitted(path, f"ZooKeeper denied reading {path}: NoAuth")
        return await super().get(path)

    async def get_many(self, paths: Sequence[str]) -> list[tuple[bytes, Stat] | None]:
        denied = self.forbidden.intersection(paths)
        if denied:
            raise NotPermitted(min(denied), f"ZooKeeper denied reading {min(denied)}: NoAuth")
        return await super().get_many(paths)
