"""A broker in the tree: cluster id, generated broker ids, and the ephemeral ``/brokers/ids/N``.

The czxid of that node is the broker epoch (KIP-380); it goes up with every registration.
"""

import logging
from collections.abc import Callable
from contextlib import suppress

from ottla.controller.model import BrokerInfo
from ottla.controller.settings import control_versions
from ottla.controller.tree import znodes
from ottla.controller.tree.store import (
    BadVersion,
    NodeExists,
    NoNode,
    Stat,
    ZnodeStore,
    make_paths,
    set_or_create,
)
from ottla.protocol.uuids import random_uuid, uuid_to_string

logger = logging.getLogger("ottla.controller")


class InconsistentClusterId(Exception):
    """meta.properties and the tree name different clusters."""


class BrokerIdTaken(Exception):
    """Another living broker has registered our id."""


async def create_persistent_paths(store: ZnodeStore) -> None:
    """The part of the tree every broker expects."""
    await make_paths(store, znodes.PERSISTENT_PATHS)


async def get_or_create_cluster_id(store: ZnodeStore) -> str:
    """The 22 characters that name the cluster, made by its first broker."""
    while True:
        try:
            data, _ = await store.get(znodes.CLUSTER_ID)
            return znodes.decode_cluster_id(data)
        except NoNode:
            pass
        cluster_id = uuid_to_string(random_uuid())
        try:
            await store.create(
                znodes.CLUSTER_ID, znodes.encode_cluster_id(cluster_id), make_parents=True
            )
            return cluster_id
        except NodeExists:  # two brokers start a new cluster at once
            continue


def check_cluster_id(cluster_id: str, stored: str | None, directories: str, store: str) -> None:
    """``stored`` is the id in meta.properties, None when there is none yet."""
    if stored is not None and stored != cluster_id:
        raise InconsistentClusterId(
            f"The data in {directories} belongs to the cluster {stored}, but {store} is the "
            f"cluster {cluster_id}. Point zookeeper.connect (host, port and path after the slash) "
            f"at the cluster of this data, or start with an empty log.dirs; only if you are sure "
            f"that the data belongs to the cluster {cluster_id}, change cluster.id in "
            f"meta.properties."
        )


async def generate_broker_id(store: ZnodeStore, reserved_broker_max_id: int = 1000) -> int:
    """A broker id nobody had before, above reserved.broker.max.id."""
    while True:
        try:
            stat = await store.set(znodes.BROKER_SEQUENCE_ID, b"")
            return stat.version + reserved_broker_max_id
        except NoNode:
            pass
        await make_paths(store, [znodes.BROKER_SEQUENCE_ID])


class BrokerRegistration:
    """Registers our broker, and again after an expired session.

    ``info.epoch`` is ignored; the epoch of the last registration is ``broker_epoch``. ``instance``
    is anything that stays the same as long as the data directory does.
    """

    def __init__(
        self,
        store: ZnodeStore,
        info: BrokerInfo,
        now_ms: Callable[[], int],
        *,
        jmx_port: int = -1,
        inter_broker_protocol_version: str = "3.9",
        instance: str | None = None,
        on_registered: Callable[[int], None] = lambda _epoch: None,
    ) -> None:
        self.store = store
        self.info = info
        self.broker_epoch = -1
        self._now_ms = now_ms
        self._jmx_port = jmx_port
        self._version = control_versions(inter_broker_protocol_version).broker_znode_version
        self._instance = instance
        self._on_registered = on_registered

    def _payload(self) -> bytes:
        return znodes.encode_broker(
            self.info,
            self._now_ms(),
            jmx_port=self._jmx_port,
            version=self._version,
            instance=self._instance,
        )

    async def register(self) -> int:
        """Makes our node and returns the broker epoch.

        A node that an earlier session of this same broker left behind is taken over: we were
        started again before that session ran out. It is ours if it names our data directory, or,
        when it names none, if it has our listeners. Any other owner raises BrokerIdTaken.
        """
        path = znodes.broker_path(self.info.broker_id)
        payload = self._payload()
        while True:
            try:
                _, stat = await self.store.create(path, payload, ephemeral=True, make_parents=True)
                break
            except NodeExists:
                pass
            owned = await self._resolve_existing_registration(path)
            if owned is not None:
                stat = owned
                break
        self.broker_epoch = stat.czxid
        logger.info("Broker %d registered with epoch %d", self.info.broker_id, stat.czxid)
        self._on_registered(stat.czxid)
        return stat.czxid

    async def _resolve_existing_registration(self, path: str) -> Stat | None:
        """Deals with a node that is there; its Stat when it is ours, None when to try again."""
        try:
            data, stat = await self.store.get(path)
        except NoNode:
            return None
        if stat.ephemeral_owner == self.store.session_id:
            return stat  # made by a create whose answer was lost
        other = znodes.decode_broker(self.info.broker_id, data, stat.czxid)
        if not self._is_ours(other, znodes.decode_broker_instance(other.broker_id, data)):
            listeners = ", ".join(znodes.format_endpoint(each) for each in other.endpoints)
            raise BrokerIdTaken(
                f"Broker id {self.info.broker_id} is registered already, by a broker at "
                f"{listeners}. Give this broker another broker.id, or stop the other one; if it "
                f"was this broker with other listeners, wait until its session has ended "
                f"(zookeeper.session.timeout.ms) and start again."
            )
        logger.warning(
            "Taking over the registration of broker %d that an earlier session of it left",
            self.info.broker_id,
        )
        with suppress(NoNode, BadVersion):  # it went, or changed, by itself: look again
            await self.store.delete(path, stat.version)
        return None

    def _is_ours(self, other: BrokerInfo, instance: str | None) -> bool:
        if instance is not None and self._instance is not None:
            return instance == self._instance
        return set(other.endpoints) == set(self.info.endpoints)

    async def update(self, info: BrokerInfo) -> None:
        """Publishes changed listeners or features; the epoch stays."""
        self.info = info
        await set_or_create(self.store, znodes.broker_path(info.broker_id), self._payload())
