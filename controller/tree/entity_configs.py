"""Configurations of topics, brokers, clients, users and IP addresses in the znode tree.

The path of an entity is relative to `/config`: `topics/t`, `brokers/1`,
`brokers/<default>`, `clients/c`, `users/u`, `users/u/clients/c`, `ips/10.0.0.1`; names
with arbitrary characters (users, clients) are sanitized. A change writes the znode of the entity
and a change notification under `/config/changes` for all brokers, in one multi.
"""

import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import NamedTuple

from ottla.controller.runtime import Runtime
from ottla.controller.tree import znodes
from ottla.controller.tree.change_notifications import Announced, ChangeNotifications
from ottla.controller.tree.store import (
    ANY_VERSION,
    BadVersion,
    ConnectionLost,
    CreateOp,
    DeleteOp,
    NodeExists,
    NoNode,
    NotEmpty,
    NotPermitted,
    Op,
    SetOp,
    Stat,
    StoreError,
    ZnodeStore,
    ancestors_of,
    children_or_empty,
    get_permitted,
    make_paths,
)
from ottla.controller.tree.znode_json import MalformedZnode
from ottla.controller.tree.znodes_admin import (
    decode_config,
    decode_config_change,
    decode_config_to_change,
    decode_protecting_config,
    encode_config,
    encode_config_change,
)
from ottla.protocol.steps import Turn, over

logger = logging.getLogger("ottla.controller")

NO_VERSION = -2
"""The version of an entity without a znode."""
ENTITIES_PER_READ = 8
"""A topic takes a broker up to a millisecond, as it looks through its logs for those of the topic.
A CreateTopics request with settings announces each of its topics."""
_KINDS = (*znodes.ENTITY_TYPES, znodes.ENTITY_CLIENT_METRICS, znodes.ENTITY_GROUPS)
_MAX_NAME_BYTES = 32_767
"""As in requests. No response could have a longer one, and the others with it."""
MAX_CHANGE_ATTEMPTS = 10
"""Others may change an entity at the same time; more often than that they do not."""


def entity_path(entity_type: str, name: str, *, client: str | None = None) -> str:
    """`name` and `client` are not sanitized; znodes.DEFAULT_ENTITY for the default."""
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


def is_entity(path: str) -> bool:
    """Whether `entity_path` can have made it: other names are nobody's."""
    kind, *rest = path.split("/")
    names = [rest[0], rest[2]] if _is_client_of_user(kind, rest) else rest
    if kind not in _KINDS or (len(rest) != 1 and not _is_client_of_user(kind, rest)):
        return False
    if kind in (znodes.ENTITY_TOPICS, znodes.ENTITY_BROKERS):
        return names[0] != ""
    try:
        return all(0 < len(znodes.desanitize(name).encode()) <= _MAX_NAME_BYTES for name in names)
    except MalformedZnode:
        return False


def _is_client_of_user(kind: str, rest: list[str]) -> bool:
    return kind == znodes.ENTITY_USERS and len(rest) == 3 and rest[1] == znodes.ENTITY_CLIENTS


class UnreadableConfig(StoreError):
    """A znode of settings holds something that this version cannot read."""


async def read_config(store: ZnodeStore, entity: str) -> dict[str, str]:
    """The properties of an entity; empty if it has none. Raises UnreadableConfig."""
    return (await _read_to_change(store, entity))[0]


async def _read_to_change(store: ZnodeStore, entity: str) -> tuple[dict[str, str], int]:
    """The properties of an entity and the version of its znode, NO_VERSION if there is none.

    Raises UnreadableConfig for everything that a write of the properties would lose.
    """
    path = znodes.config_path(entity)
    try:
        data, stat = await store.get(path)
    except NoNode:
        return {}, NO_VERSION
    protects = entity.partition("/")[0] in PROTECTING
    if not data and (stat.children_count or not protects):
        return {}, stat.version
    decode = decode_protecting_config if protects else decode_config_to_change
    try:
        return decode(path, data), stat.version
    except MalformedZnode as error:
        raise UnreadableConfig(
            path,
            f"{error}. It is not changed, as its settings would be lost: correct the znode, or "
            f"empty it ({_how_to_empty(entity)})",
        ) from None


def _how_to_empty(entity: str) -> str:
    kind, _, name = entity.partition("/")
    if kind == znodes.ENTITY_TOPICS:
        return f"`ottla configs unset topic {name} --all --offline`"
    if kind == znodes.ENTITY_BROKERS:
        resource = "cluster" if name == znodes.DEFAULT_ENTITY else f"broker {name}"
        return f"`ottla configs unset {resource} --all --offline`"
    return 'set {"version":1,"config":{}}'


async def read_configs(store: ZnodeStore, entities: Iterable[str]) -> dict[str, dict[str, str]]:
    """Properties by entity path, in one pipelined read; a malformed znode counts as empty."""
    wanted = list(entities)
    paths = [znodes.config_path(entity) for entity in wanted]
    found: dict[str, dict[str, str]] = {}
    nodes = await store.get_many(paths)
    async for entity, path, node in over(zip(wanted, paths, nodes, strict=True)):
        try:
            found[entity] = {} if node is None else decode_config(path, node[0])
        except MalformedZnode as error:
            logger.error("Ignoring malformed configuration, defaults apply: %s", error)
            found[entity] = {}
    return found


class Unreadable(NamedTuple):
    """Why the properties of an entity cannot be read; `problem` has the path of its znode."""

    path: str
    problem: str


#: What the entities of these types hold protects something.
PROTECTING = (
    *(znodes.ENTITY_USERS, znodes.ENTITY_CLIENTS, znodes.ENTITY_IPS, znodes.ENTITY_BROKERS),
)


async def read_entities(
    store: ZnodeStore, entities: Iterable[str]
) -> dict[str, dict[str, str] | Unreadable]:
    """As `read_configs`, with the reason where the properties cannot be read."""
    wanted = list(entities)
    paths = [znodes.config_path(entity) for entity in wanted]
    found: dict[str, dict[str, str] | Unreadable] = {}
    nodes = await get_permitted(store, paths)
    async for entity, path, node in over(zip(wanted, paths, nodes, strict=True)):
        if node is None:
            found[entity] = {}
        elif isinstance(node, NotPermitted):
            found[entity] = Unreadable(path, str(node))
        else:
            try:
                found[entity] = _decoded(entity, path, *node)
            except MalformedZnode as error:
                found[entity] = Unreadable(path, str(error))
    return found


def _decoded(entity: str, path: str, data: bytes, stat: Stat) -> dict[str, str]:
    if entity.partition("/")[0] not in PROTECTING:
        return decode_config_to_change(path, data)
    if not data and stat.children_count:  # a user without settings of its own, with clients
        return {}
    return decode_protecting_config(path, data)


async def entities_of(store: ZnodeStore, entity_type: str) -> list[str]:
    """The paths of the entities of a type, with `users/u/clients/c` for users."""
    found: list[str] = []
    for name in await children_or_empty(store, znodes.config_path(entity_type)):
        found.append(f"{entity_type}/{name}")
        if entity_type == znodes.ENTITY_USERS:
            below = f"{entity_type}/{name}/{znodes.ENTITY_CLIENTS}"
            for client in await children_or_empty(store, znodes.config_path(below)):
                found.append(f"{below}/{client}")
    for entity in found:
        if not is_entity(entity):
            logger.error("Ignoring %s/%s: its name is nobody's", znodes.CONFIG, entity)
    return [entity for entity in found if is_entity(entity)]


async def change_config(
    store: ZnodeStore, entity: str, change: Callable[[dict[str, str]], Awaitable[dict[str, str]]]
) -> dict[str, str]:
    """Replace the properties of an entity by what `change` makes of them; return those.

    As `write_config`; `change` runs again if the entity changes meanwhile, so that of two changes
    at the same time none is lost. (In Kafka it may be.) What it raises is passed on. Raises
    UnreadableConfig for a znode that cannot be read, which Kafka would replace.

    It runs once more after a write whose response was lost, and writes again even if that was
    applied: only a response says that the change is durable.
    """
    path = znodes.config_path(entity)
    was_lost = False
    for _attempt in range(MAX_CHANGE_ATTEMPTS):
        before, version = await _read_to_change(store, entity)
        properties = await change(before)
        try:
            await write_config(store, entity, properties, version=version)
        except BadVersion:
            continue
        except ConnectionLost:
            if was_lost:
                raise
            was_lost = True
            continue
        return properties
    raise StoreError(path, f"{path} keeps being changed by other clients")


async def write_config(
    store: ZnodeStore, entity: str, properties: Mapping[str, str], *, version: int = ANY_VERSION
) -> None:
    """Replace the properties of an entity and notify all brokers; durable when it returns.

    Without properties, the znode of a topic or broker stays and is empty; that of a client, user or
    IP address is deleted, with its empty parents. Raises BadVersion if the znode has another
    version, NO_VERSION if there should be none.
    """
    path = znodes.config_path(entity)
    change = CreateOp(znodes.CONFIG_CHANGE_PREFIX, encode_config_change(entity), sequential=True)
    entity_type = entity.partition("/")[0]
    if not properties and entity_type not in (znodes.ENTITY_TOPICS, znodes.ENTITY_BROKERS):
        await _delete_config(store, entity, change, version)
        return
    payload = encode_config(properties)
    for _attempt in range(3):  # another client may create or delete the znode meanwhile
        if version != NO_VERSION:
            try:
                await store.multi([SetOp(path, payload, version), change])
                return
            except NoNode:
                if await store.exists(znodes.CONFIG_CHANGES) is None:
                    await make_paths(store, [znodes.CONFIG_CHANGES])
                    continue
                if version != ANY_VERSION:
                    raise BadVersion(path) from None
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
        except NodeExists as error:
            if version == NO_VERSION and error.path == path:
                raise BadVersion(path) from None
            continue
    raise StoreError(path, f"{path} keeps being created and deleted by other clients")


async def _delete_config(store: ZnodeStore, entity: str, change: CreateOp, version: int) -> None:
    path = znodes.config_path(entity)
    if version == NO_VERSION or await store.exists(path) is None:
        return
    try:
        if await children_or_empty(store, path):  # a user with client entities
            await store.multi([SetOp(path, encode_config({}), version), change])
            return
        await store.multi([DeleteOp(path, version), change])
    except NoNode:
        if version != ANY_VERSION:
            raise BadVersion(path) from None
        raise
    clients = path.rpartition("/")[0]
    if clients.count("/") > 2:
        await _delete_empty_user(store, clients)


async def _delete_empty_user(store: ZnodeStore, clients: str) -> None:
    """Delete users/u/clients and users/u if they are empty: both at once, as one that is left alone
    by a lost connection would be taken for a damaged one, whose user may do nothing."""
    user = clients.rpartition("/")[0]
    try:
        _, of_clients = await store.get(clients)
        if of_clients.children_count:
            return
        ops: list[Op] = [DeleteOp(clients, of_clients.version)]
        data, of_user = await store.get(user)
        if of_user.children_count == 1 and not (data and decode_config(user, data)):
            ops.append(DeleteOp(user, of_user.version))
        await store.multi(ops)
    except (NoNode, NotEmpty, BadVersion, MalformedZnode):
        return  # another client has changed them, or somebody has damaged them


ConfigCallback = Callable[[str, str, dict[str, str]], Awaitable[None] | None]
"""(entity type, name as in the path after the type, properties)"""


class ConfigChangeWatcher:
    """Calls back for each configuration change, in order, and `read_all` if some were missed.

    `start` skips older changes: read the configurations before or after it. Errors of the
    callback are logged; later changes are still delivered.
    """

    def __init__(
        self,
        store: ZnodeStore,
        runtime: Runtime,
        callback: ConfigCallback,
        read_all: Callable[[], Awaitable[None]],
        unreadable: Callable[[str, Unreadable], None] = lambda entity, found: None,
    ) -> None:
        """`unreadable` is called for an entity whose properties cannot be read."""
        self.store = store
        self.callback = callback
        self.unreadable = unreadable
        parents = [znodes.CONFIG_CHANGES]
        self._notifications = ChangeNotifications(
            store, runtime, parents, self._process, read_all, name="config-changes"
        )

    async def start(self) -> None:
        await self._notifications.start()

    def stop(self) -> None:
        """Nothing is called back after this."""
        self._notifications.stop()

    async def _process(self, announced: Announced) -> None:
        entities: dict[str, None] = {}
        for path, data in announced:
            try:
                entity = decode_config_change(path, data)
            except MalformedZnode as error:
                logger.error("Ignoring malformed configuration change: %s", error)
                continue
            if is_entity(entity):
                entities[entity] = None
            else:
                logger.error("Ignoring %s: it names no entity: %r", path, entity[:200])
        wanted, turn = list(entities), Turn()
        for start in range(0, len(wanted), ENTITIES_PER_READ):
            # Read just before they are taken: newer settings may be taken while others wait.
            await self._deliver(wanted[start : start + ENTITIES_PER_READ])
            await turn.pause()

    async def _deliver(self, entities: list[str]) -> None:
        for entity, properties in (await read_entities(self.store, entities)).items():
            entity_type, _, name = entity.partition("/")
            try:
                if isinstance(properties, Unreadable):
                    self.unreadable(entity, properties)
                    continue
                result = self.callback(entity_type, name, properties)
                if result is not None:
                    await result
            except Exception:
                logger.exception("Failed to apply the configuration of %s", entity)
