"""Odd values of settings, and damaged znodes of settings and rights.

What a broker accepts it starts with; what it finds in the tree and cannot use stops no start, or
denies what it covers. Part of `--operator`.
"""

from __future__ import annotations

import asyncio
from random import Random
from typing import TYPE_CHECKING, Any

from ottla.broker.security.authorization.acl_types import Operation, ResourceType
from ottla.controller.tree import znodes
from ottla.controller.tree.store import CreateOp, SetOp
from ottla.controller.tree.znodes_admin import encode_config
from ottla.controller.tree.znodes_security import LITERAL, Acl, AclResource, acl_path, encode_acls
from ottla.protocol.client.operations import AnyBroker, Route
from ottla.protocol.client.operations import Node as OfBroker
from ottla.protocol.messages.incremental_alter_configs import (
    AlterableConfig,
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
)
from tests.simulation.cluster.waiting import until

if TYPE_CHECKING:
    from tests.simulation.cluster.admin import Admin
    from tests.simulation.cluster.node import Node
    from tests.simulation.cluster.world import World

BROKER_RESOURCE = 4
SET, DELETE = 0, 1
READY_SECONDS = 60
REFUSED_SECONDS = 3
NOTICED_SECONDS = 10

#: Accepted or not; none of them keeps the clients of a simulation from their work for long.
ODD = (
    *(("max.connections.per.ip.overrides", text) for text in ("10.0.0.1", "10.0.0.1:x", "a:5,b")),
    *(("max.connections", text) for text in ("0", "-1", "x", "100000")),
    *(("max.connections.per.ip", text) for text in ("0", "100000")),
    *(("max.connection.creation.rate", text) for text in ("0", "100000")),
    *(("num.replica.fetchers", text) for text in ("0", "2", "2147483647")),
    *(("num.io.threads", text) for text in ("0", "2147483647")),
    *(("log.cleaner.threads", text) for text in ("0", "2")),
    *(("log.roll.ms", text) for text in ("0", "9223372036854775807")),
    *(("sasl.enabled.mechanisms", text) for text in ("", "nonsense")),
    *(("listeners", text) for text in ("", "PLAINTEXT", "x://y:z")),
    *(("num.partitions", "7"), ("log.dirs", "/elsewhere"), ("ssl.client.auth", "sometimes")),
)
GARBAGE = (b"", b"{", b'{"version":2,"config":{}}', b"[]", b'{"version":1}')
READER = Acl("User:reader", "Allow", "Read", "*")
SECRET = AclResource(LITERAL, "Topic", "secret")


class SettingsTroubles:
    """One method for each; the settings are as before when it returns."""

    KINDS = ("odd_setting", "odd_znode", "garbage_znode", "garbage_acls")

    def __init__(self, world: World, admin: Admin) -> None:
        self.world = world
        self.admin = admin
        self.random = Random(f"settings troubles {world.seed}")

    async def odd_setting(self, node: Node) -> None:
        """An administrator sets an odd value at run time, and the broker is started again."""
        name, value = self.random.choice(ODD)
        where, route = self.random.choice([("", AnyBroker()), (str(node.broker_id), _of(node))])
        self.world.note(f"set {name}={value} for {where or 'all brokers'}")
        accepted = await self._alter(where, route, name, SET, value)
        if not accepted:
            return
        await self._start_again(node)
        server: Any = node.server
        if server is not None and node.ready and server.parts.config.ignored:
            self.world.complain(f"{node.host} accepted {name}={value}, and ignores it at a start")
        for _ in range(NOTICED_SECONDS):
            if await self._alter(where, route, name, DELETE, None):
                return
            await asyncio.sleep(1)
        # While ZooKeeper or the broker is away: as with the command for that.
        entity = where or znodes.DEFAULT_ENTITY
        self._write(znodes.config_path(f"{znodes.ENTITY_BROKERS}/{entity}"), encode_config({}))

    async def odd_znode(self, node: Node) -> None:
        """A tool writes settings for which it asked no broker; then a start."""
        entity = self.random.choice([str(node.broker_id), znodes.DEFAULT_ENTITY])
        path = znodes.config_path(f"{znodes.ENTITY_BROKERS}/{entity}")
        names = dict(self.random.sample(ODD, 4))
        if self.random.random() < 0.5:
            self._write(path, encode_config(names))
            await self._start_again(node)
        else:
            await self._end(node)
            self._write(path, encode_config(names))
            await self._start(node)
        self._write(path, encode_config({}))

    async def garbage_znode(self, node: Node) -> None:
        """The settings of a broker cannot be read: they might restrict clients. No start."""
        path = znodes.config_path(f"{znodes.ENTITY_BROKERS}/{node.broker_id}")
        await self._end(node)
        self._write(path, self.random.choice(GARBAGE))
        node.start()
        await asyncio.sleep(REFUSED_SECONDS)
        if node.ready:
            self.world.complain(f"{node.host} starts without the settings of {path}")
        node.kill()
        self._write(path, encode_config({}))
        await self._start(node)

    async def garbage_acls(self, node: Node) -> None:
        """The rights of a topic cannot be read: nobody has any, until they are repaired."""
        path, settings = acl_path(SECRET), node.settings
        await self._end(node)
        self._write(path, encode_acls([READER]))
        node.settings = {
            **settings,
            "authorizer.class.name": "kafka.security.authorizer.AclAuthorizer",
            "allow.everyone.if.no.acl.found": "true",
            "super.users": "User:ANONYMOUS",
        }
        self._write(path, self.random.choice(GARBAGE))
        await self._start(node)
        if node.ready and _allows(node):
            self.world.complain(f"{node.host} allows everything where {path} cannot be read")
        self._write(path, encode_acls([READER]))
        if node.ready and not await until(lambda: _allows(node), NOTICED_SECONDS):
            self.world.complain(f"{node.host} does not see that {path} was repaired")
        node.settings = settings
        await self._start_again(node)

    # --- helpers ---------------------------------------------------------------------------

    async def _alter(
        self, where: str, route: Route, name: str, operation: int, value: str | None
    ) -> bool:
        change = AlterableConfig(name, operation, value)
        resource = AlterConfigsResource(BROKER_RESOURCE, where, [change])
        response = await self.admin.send(IncrementalAlterConfigsRequest([resource], False), route)
        return response is not None and response.responses[0].error_code == 0

    def _write(self, path: str, data: bytes) -> None:
        """Durable, and nobody is told."""
        tree = self.world.ensemble.tree
        session = tree.open_session()
        for end in [at for at, each in enumerate(path) if each == "/"][1:]:
            if path[:end] not in tree.nodes:
                tree.apply(session, [CreateOp(path[:end])])
        tree.apply(session, [SetOp(path, data) if path in tree.nodes else CreateOp(path, data)])
        tree.end_session(session)

    async def _end(self, node: Node) -> None:
        if node.is_up and self.random.random() < 0.5:
            await node.stop()
        node.kill()

    async def _start(self, node: Node) -> None:
        if not node.is_up:
            node.start()
        if not await until(lambda: node.ready, READY_SECONDS) and node.is_up:
            self.world.complain(f"{node.host} does not start")

    async def _start_again(self, node: Node) -> None:
        await self._end(node)
        await self._start(node)


def _of(node: Node) -> Route:
    return OfBroker(node.broker_id)


def _allows(node: Node) -> bool:
    server: Any = node.server
    return bool(
        server.parts.access_control.rules.allows(
            "User:reader", "h", Operation.READ, ResourceType.TOPIC, "secret", without_acls=True
        )
    )
