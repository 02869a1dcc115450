"""Configuration of topics, brokers, clients, users and addresses in the tree.

An entity is named by its path below ``/config``: ``topics/t``, ``brokers/1``,
``brokers/<default>``, ``clients/c``, ``users/u``, ``users/u/clients/c``, ``ips/10.0.0.1``; names
that may hold any letter (users, clients) are sanitised in it. A change writes the entity's node,
then a sequential node under ``/config/changes`` that tells every broker which entity to read
again; both in one multi.
"""

import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping

from ottla.controller.runtime import Runtime
from ottla.controller.tree import znodes
from ottla.controller.tree.change_notifications import Announced, ChangeNotifications
from ottla.controller.tree.store import (
    CreateOp,
    DeleteOp,
    NodeExists,
    NoNode,
    NotEmpty,
    Op,
    SetOp,
    StoreError,
    ZnodeStore,
    ancestors_of,
    children_or_empty,
)
from ottla.controller.tree.znode_json import MalformedZnode
from ottla.controller.tree.znodes_admin import (
    decode_config,
    decode_config_change,
    encode_config,
    encode_config_change,
)

logger = logging.getLogger("ottla.controller")


def entity_path(entity_type: str, name: str, *, client: str | None = None) -> str:
    """``name`` and ``client`` as users write them; znodes.DEFAULT_ENTITY for the default."""
    path = f"{entity_type}/{_encoded(entity_type, name)}"
    if client is not None:
        path += f"/{znodes.ENTITY_CLIENTS}/{_encoded(znodes.ENTITY_CLIENTS, client)}"
    return path


def _encoded(entity_type: str, name: str) -> str:
    if name == znodes.DEFAULT_ENTITY or entity_type in (
        znodes.ENTITY_TOPICS,
        znodes.ENTITY_BROKERS,
    ):
        return name
    return znodes.sanitize(name)


async def read_config(store: ZnodeStore, entity: str) -> dict[str, str]:
    """The properties of an entity, empty when it has none."""
    return (await read_configs(store, [entity]))[entity]


async def read_configs(store: ZnodeStore, entities: Iterable[str]) -> dict[str, dict[str, str]]:
    """Properties by entity path, in one pipelined read; a malformed node reads as empty."""
    wanted = list(entities)
    paths = [znodes.config_path(entity) for entity in wanted]
    found: dict[str, dict[str, str]] = {}
    for entity, path, node in zip(wanted, paths, await store.get_many(paths), strict=True):
        try:
            found[entity] = {} if node is None else decode_config(path, node[0])
        except MalformedZnode as error:
            logger.error("Ignoring a configuration: %s", error)
            found[entity] = {}
    return found


async def entities_of(store: ZnodeStore, entity_type: str) -> list[str]:
    """Entity paths of a type that have a node, with ``users/u/clients/c`` for users."""
    found: list[str] = []
    for name in await children_or_empty(store, znodes.config_path(entity_type)):
        found.append(f"{entity_type}/{name}")
        if entity_type == znodes.ENTITY_USERS:
            below = f"{entity_type}/{name}/{znodes.ENTITY_CLIENTS}"
            for client in await children_or_empty(store, znodes.config_path(below)):
                found.append(f"{below}/{client}")
    return found


async def write_config(store: ZnodeStore, entity: str, properties: Mapping[str, str]) -> None:
    """Replaces the properties of an entity and tells every broker; durable when it returns.

    An entity that is left without properties keeps an empty node if it is a topic or a broker;
    of clients, users and addresses the node goes, with parents that are left empty.
    """
    path = znodes.config_path(entity)
    change = CreateOp(znodes.CONFIG_CHANGE_PREFIX, encode_config_change(entity), sequential=True)
    entity_type = entity.partition("/")[0]
    if not properties and entity_type not in (znodes.ENTITY_TOPICS, znodes.ENTITY_BROKERS):
        await _delete_config(store, entity, change)
        return
    payload = encode_config(properties)
    for _attempt in range(3):  # another writer may make or remove the node in between
        try:
            await store.multi([SetOp(path, payload), change])
            return
        except NoNode:
            pass
        needed = [*ancestors_of(path), znodes.CONFIG_CHANGES]
        missing = [
            each
            for each, found in zip(needed, await store.get_many(needed), strict=True)
            if found is None
        ]
        ops: list[Op] = [CreateOp(each) for each in missing]
        try:
            await store.multi([*ops, CreateOp(path, payload), change])
            return
        except NodeExists:
            continue
    raise StoreError(path, f"{path} is made and removed again and again by others")


async def _delete_config(store: ZnodeStore, entity: str, change: CreateOp) -> None:
    path = znodes.config_path(entity)
    if await store.exists(path) is None:
        return
    if await children_or_empty(store, path):  # a user with clients of their own
        await store.multi([SetOp(path, encode_config({})), change])
        return
    await store.multi([DeleteOp(path), change])
    # users/u/clients and users/u go when nothing is left in them
    parent = path.rpartition("/")[0]
    while parent.count("/") > 2:
        try:
            data, stat = await store.get(parent)
            if stat.children_count or (data and decode_config(parent, data)):
                return
            await store.delete(parent, stat.version)
        except (NoNode, NotEmpty):
            return
        parent = parent.rpartition("/")[0]


ConfigCallback = Callable[[str, str, dict[str, str]], Awaitable[None] | None]
"""(entity type, name as in the path after the type, properties)"""


class ConfigChangeWatcher:
    """Calls back for every configuration change of any broker, in the order they were made.

    ``start`` does not replay what happened before: read the configurations first, or after it.
    Errors of the callback are logged; the next change is still delivered.
    """

    def __init__(self, store: ZnodeStore, runtime: Runtime, callback: ConfigCallback) -> None:
        self.store = store
        self.callback = callback
        self._notifications = ChangeNotifications(
            store, runtime, [znodes.CONFIG_CHANGES], self._process, name="config-changes"
        )

    async def start(self) -> None:
        await self._notifications.start()

    def stop(self) -> None:
        self._notifications.stop()

    async def _process(self, announced: Announced) -> None:
        entities: dict[str, None] = {}
        for path, data in announced:
            try:
                entities[decode_config_change(path, data)] = None
            except MalformedZnode as error:
                logger.error("Ignoring a configuration change: %s", error)
        for entity, properties in (await read_configs(self.store, entities)).items():
            entity_type, _, name = entity.partition("/")
            try:
                result = self.callback(entity_type, name, properties)
                if result is not None:
                    await result
            except Exception:
                logger.exception("The configuration of %s could not be applied", entity)
