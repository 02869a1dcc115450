"""ACLs in the znode tree: read at the start, followed from then on, changed with compare-and-set.

What is written here is what Kafka's brokers and tools read, and the other way round. A change is
a multi of the resource's node and a sequential node from which every broker learns which resource
to read again.
"""

from __future__ import annotations

import logging
from asyncio import sleep
from collections.abc import Callable, Iterable
from functools import partial

from ottla.broker.config.unusable_znodes import UnusableZnodes
from ottla.broker.security.authorization.acl_rules import AclRules
from ottla.controller.runtime import Runtime
from ottla.controller.tree.change_notifications import Announced, ChangeNotifications
from ottla.controller.tree.store import (
    BadVersion,
    ConnectionLost,
    CreateOp,
    DeleteOp,
    NodeExists,
    NoNode,
    NotPermitted,
    Op,
    SetOp,
    StoreError,
    ZnodeStore,
    children_or_empty,
    get_permitted,
    make_paths,
)
from ottla.controller.tree.znode_json import MalformedZnode
from ottla.controller.tree.znodes_security import (
    ACL_CHANGES,
    ACL_PATHS,
    ACLS,
    EXTENDED_ACL_CHANGES,
    LITERAL,
    PREFIXED,
    PREFIXED_ACLS,
    RESOURCE_TYPES,
    Acl,
    AclResource,
    acl_change_prefix,
    acl_path,
    decode_acl_change,
    decode_acls,
    encode_acl_change,
    encode_acls,
)
from ottla.protocol.errors import ErrorCode, KafkaError

logger = logging.getLogger("ottla.security")

# Another broker may change the same resource at the same time; more often than that it does not.
MAX_UPDATE_ATTEMPTS = 10

# Resources that are read at once. Decoding them, with a few ACLs each, takes about a
# millisecond; then the loop serves others before the next are read.
RESOURCES_AT_ONCE = 100


class AclStore:
    """Keeps `rules` in step with the tree."""

    def __init__(
        self, store: ZnodeStore, runtime: Runtime, rules: AclRules, unusable: UnusableZnodes
    ) -> None:
        """`unusable` gets the znodes whose ACLs cannot be read: what they cover is denied."""
        self._store = store
        self._unusable = unusable
        self._rules = rules
        self._notifications = ChangeNotifications(
            store,
            runtime,
            [ACL_CHANGES, EXTENDED_ACL_CHANGES],
            self._reload,
            self._load_all,
            name="acl-changes",
        )

    async def start(self) -> None:
        """Read everything there is; changes are followed when it returns."""
        await make_paths(self._store, ACL_PATHS)
        await self._notifications.start()
        await self._load_all()

    async def _load_all(self) -> None:
        """Also of the resources whose ACLs were deleted since the last time."""
        resources = self._rules.resources()
        for root, pattern_type in ((ACLS, LITERAL), (PREFIXED_ACLS, PREFIXED)):
            for kind in RESOURCE_TYPES:
                names = await children_or_empty(self._store, f"{root}/{kind}")
                resources.extend(AclResource(pattern_type, kind, name) for name in names)
        await self._load(resources)

    def stop(self) -> None:
        self._notifications.stop()

    async def update(
        self, resource: AclResource, change: Callable[[frozenset[Acl]], frozenset[Acl]]
    ) -> None:
        """Replace what is attached to a resource by what `change` makes of it.

        Durable, and in force here, when it returns; other brokers follow in a moment. Raises
        StoreError, and KafkaError where the present ACLs cannot be read.
        """
        path = acl_path(resource)
        was_lost = False
        for _ in range(MAX_UPDATE_ATTEMPTS):
            before, version = await self._read(resource)
            after = change(before)
            if after == before and not was_lost:
                self._rules.replace(resource, before)
                return
            announce = CreateOp(
                acl_change_prefix(resource.pattern_type),
                encode_acl_change(resource),
                sequential=True,
            )
            write: list[Op] = []
            if after and version < 0:
                write = [CreateOp(path, encode_acls(after))]
            elif after:
                write = [SetOp(path, encode_acls(after), version)]
            elif version >= 0:
                write = [DeleteOp(path, version)]
            try:
                await self._store.multi([*write, announce])
            except (BadVersion, NodeExists, NoNode):
                continue
            except ConnectionLost:
                if was_lost:
                    raise
                was_lost = True  # it may be applied, and only a response says that it is durable
                continue
            self._rules.replace(resource, after)
            logger.info("Updated the ACLs of %s %s", resource.resource_type, resource.name)
            return
        raise StoreError(path, f"{path} is changed by others again and again")

    async def _read(self, resource: AclResource) -> tuple[frozenset[Acl], int]:
        path = acl_path(resource)
        try:
            data, stat = await self._store.get(path)
        except NoNode:
            return frozenset(), -1
        try:
            return decode_acls(path, data), stat.version
        except MalformedZnode as error:
            raise KafkaError(
                ErrorCode.INVALID_REQUEST,
                f"{error}: restore the znode or delete it before its ACLs can change",
            ) from None

    async def _load(self, resources: Iterable[AclResource]) -> None:
        wanted = list(dict.fromkeys(resources))
        for start in range(0, len(wanted), RESOURCES_AT_ONCE):
            await self._load_some(wanted[start : start + RESOURCES_AT_ONCE])
            await sleep(0)

    async def _load_some(self, wanted: list[AclResource]) -> None:
        paths = [acl_path(resource) for resource in wanted]
        nodes = await get_permitted(self._store, paths)
        for resource, path, node in zip(wanted, paths, nodes, strict=True):
            try:
                if isinstance(node, NotPermitted):
                    raise node
                self._rules.replace(resource, decode_acls(path, node[0]) if node else ())
            except (MalformedZnode, NotPermitted) as error:
                self._deny(resource, path, str(error))
            else:
                self._unusable.repaired(path)

    def _deny(self, resource: AclResource, path: str, problem: str) -> None:
        """Keeping what was in force would be right now, and open the resource at the next start."""
        self._rules.deny(resource)
        kind, name = resource.resource_type, resource.name
        covered = f"{kind} {name}" if resource.pattern_type == LITERAL else f"{kind} {name}*"
        self._unusable.report(
            path,
            problem,
            f"everything on {covered} is denied, but to super.users,",
            partial(self._load_some, [resource]),
        )

    async def _reload(self, announced: Announced) -> None:
        resources: list[AclResource] = []
        for path, data in announced:
            try:
                resources.append(decode_acl_change(path, data))
            except MalformedZnode as error:
                logger.error("Ignoring an ACL change notification: %s", error)
        await self._load(resources)
