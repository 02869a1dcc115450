"""Settings in the znode tree, without a broker: in its SQLite file, or in ZooKeeper.

For brokers that do not start because of what is stored there, or that nobody can connect to.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from ottla.broker.config.dynamic_rules import is_secret
from ottla.cli.offline_tree import OfflineTree, Place
from ottla.cli.output import Cell, Failure, usage
from ottla.controller.tree import znodes
from ottla.controller.tree.entity_configs import Unreadable, read_entities, write_config

if TYPE_CHECKING:
    from ottla.controller.tree.store import ZnodeStore

KINDS = ("topic", "broker", "cluster")


class OfflineConfigs:
    """Each call opens the tree. Raises Failure."""

    def __init__(self, place: Place) -> None:
        self._tree = OfflineTree(
            place,
            "name the first directory of log.dirs with --data-dir, a ZooKeeper with --zookeeper, "
            "or the file of the broker with --config",
        )

    def describe(self, kind: str, name: str) -> list[dict[str, Cell]]:
        """What is stored, as it is: a broker may ignore some of it."""
        entity = _entity(kind, name)
        properties = self._tree.run(lambda store: _read(store, entity))
        return [
            {"setting": key, "value": "(secret)" if is_secret(key) else properties[key]}
            for key in sorted(properties)
        ]

    def unset(self, kind: str, name: str, settings: Sequence[str]) -> list[str]:
        """Removes settings, all of them if none is named; returns those that were there."""
        entity = _entity(kind, name)

        async def change(store: ZnodeStore) -> list[str]:
            if not settings:
                found = (await read_entities(store, [entity]))[entity]
                await write_config(store, entity, {})
                return [] if isinstance(found, Unreadable) else sorted(found)
            properties = await _read(store, entity)
            removed = [each for each in settings if properties.pop(each, None) is not None]
            if removed:
                await write_config(store, entity, properties)
            return removed

        return self._tree.run(change)


def _entity(kind: str, name: str) -> str:
    if kind not in KINDS:
        raise usage(f"--offline is for {', '.join(KINDS)}, not for {kind}.")
    if kind == "topic":
        return f"{znodes.ENTITY_TOPICS}/{name}"
    return f"{znodes.ENTITY_BROKERS}/{name or znodes.DEFAULT_ENTITY}"


async def _read(store: ZnodeStore, entity: str) -> dict[str, str]:
    path = znodes.config_path(entity)
    if await store.exists(path) is None:
        return {}
    found = (await read_entities(store, [entity]))[entity]
    if isinstance(found, Unreadable):
        raise Failure(f"{found.problem}. `ottla configs unset ... --all` empties it.")
    return found
