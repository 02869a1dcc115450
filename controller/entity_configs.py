"""Configuration of topics, brokers, clients, users and addresses in the tree.

An entity is named by its path below ``/config``: ``topics/t``, ``brokers/1``,
``brokers/<default>``, ``clients/c``, ``users/u``, ``users/u/clients/c``, ``ips/10.0.0.1``; names
that may hold any letter (users, clients) are sanitised in it. A change writes the entity's node,
then a sequential node under ``/config/changes`` that tells every broker which entity to read
again; both in one multi.
"""

import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping

from controller import znodes
from controller.runtime import Runtime
from controller.store import (
    CreateOp,
    DeleteOp,
    NodeExists,
    NoNode,
    NotEmpty,
    Op,
    SetOp,
    StoreError,
    WatchEvent,
    WatchHandle,
    ZnodeStore,
    ancestors_of,
    children_or_empty,
)
from controller.znode_json import MalformedZnode
from controller.znodes_admin import (
    decode_config,
    decode_config_change,
    encode_config,
    encode_config_change,
)

logger = logging.getLogger("ottla.controller")

CHANGE_EXPIRATION_MS = 15 * 60 * 1000
"""How long change notifications stay, so that brokers away for a moment find them; as Kafka."""


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
        self.runtime = runtime
        self.callback = callback
        self._last = -1
        self._handle: WatchHandle | None = None
        self._busy = False
        self._again = False
        self._stopped = False

    async def start(self) -> None:
        self._handle = await self.store.watch_children(znodes.CONFIG_CHANGES, self._on_event)
        self._last = max((_number(name) for name in await self._names()), default=-1)

    def stop(self) -> None:
        self._stopped = True
        if self._handle is not None:
            self._handle.cancel()

    def _on_event(self, event: WatchEvent) -> None:
        self._again = True
        if not self._busy and not self._stopped:
            self._busy = True
            self.runtime.spawn(self._drain(), name="config-changes")

    async def _drain(self) -> None:
        """At most one at a time, so that changes keep their order."""
        try:
            while self._again and not self._stopped:
                self._again = False
                await self._process()
        except StoreError as error:
            # The watch is set again with the next session and fires then.
            logger.warning("Configuration changes cannot be read now: %s", error)
        finally:
            self._busy = False

    async def _names(self) -> list[str]:
        return sorted(await children_or_empty(self.store, znodes.CONFIG_CHANGES), key=_number)

    async def _process(self) -> None:
        names = await self._names()
        fresh = [name for name in names if _number(name) > self._last]
        paths = [f"{znodes.CONFIG_CHANGES}/{name}" for name in fresh]
        nodes = await self.store.get_many(paths)
        entities: dict[str, None] = {}
        for path, node in zip(paths, nodes, strict=True):
            if node is not None:
                try:
                    entities[decode_config_change(path, node[0])] = None
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
        if fresh:
            self._last = _number(fresh[-1])
        await self._purge(names)

    async def _purge(self, names: list[str]) -> None:
        """Removes notifications that are old enough for everybody to have seen them."""
        horizon = self.runtime.now_ms() - CHANGE_EXPIRATION_MS
        for name in names:
            path = f"{znodes.CONFIG_CHANGES}/{name}"
            stat = await self.store.exists(path)
            if stat is None:
                continue
            if stat.ctime_ms > horizon:
                return
            try:
                await self.store.delete(path)
            except NoNode:
                continue


def _number(name: str) -> int:
    digits = name.rpartition("_")[2]
    return int(digits) if digits.isdecimal() else -1
