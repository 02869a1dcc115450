"""The part of `DynamicConfig` that handlers of quotas and credentials use, in memory."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from ottla.broker.config.dynamic_config import Properties


class MemoryEntities:
    """Properties by the path of an entity below /config."""

    def __init__(self) -> None:
        self.nodes: dict[str, Properties] = {}

    async def read(self, entity: str) -> Properties:
        return dict(self.nodes.get(entity, {}))

    async def read_all(self, kind: str) -> dict[str, Properties]:
        return {path: node for path, node in self.nodes.items() if path.startswith(f"{kind}/")}

    async def change(
        self, entity: str, change: Callable[[Properties], Awaitable[Properties]]
    ) -> None:
        self.nodes[entity] = await change(dict(self.nodes.get(entity, {})))
