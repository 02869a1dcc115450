"""The registration of a broker: cluster id, generated broker ids, ephemeral `/brokers/ids/N`.

The czxid of that znode is the broker epoch (KIP-380); it increases with each registration.
"""

import logging
from collections.abc import Awaitable, Callable
from contextlib import suppress

from ottla.controller.model import BrokerInfo
from ottla.controller.settings import control_versions
from ottla.controller.tree import znodes
from ottla.controller.tree.store import (
    BadVersion,
    CreateOp,
    NodeExists,
    NoNode,
    SetOp,
    Stat,
    ZnodeStore,
    make_paths,
)
from ottla.controller.tree.znode_json import MalformedZnode
from ottla.protocol.uuids import random_uuid, uuid_to_string

logger = logging.getLogger("ottla.controller")


class InconsistentClusterId(Exception):
    """The cluster id in meta.properties differs from that in the znode tree."""


class BrokerIdTaken(Exception):
    """Another live broker is registered with the same broker id."""


class AdvertisedAddressTaken(Exception):
    """Another live broker advertises an address of this one."""


async def create_persistent_paths(store: ZnodeStore) -> None:
    """Create the persistent znodes that all brokers expect."""
    await make_paths(store, znodes.PERSISTENT_PATHS)


async def find_cluster_id(store: ZnodeStore) -> str | None:
    """The cluster id, None in a tree without a cluster."""
    try:
        data, _ = await store.get(znodes.CLUSTER_ID)
    except NoNode:
        return None
    return znodes.decode_cluster_id(data)


async def get_or_create_cluster_id(store: ZnodeStore) -> str:
    """The cluster id (22 characters); the first broker of a cluster generates it."""
    while True:
        found = await find_cluster_id(store)
        if found is not None:
            return found
        cluster_id = uuid_to_string(random_uuid())
        try:
            await store.create(
                znodes.CLUSTER_ID, znodes.encode_cluster_id(cluster_id), make_parents=True
            )
            return cluster_id
        except NodeExists:  # two brokers start a new cluster at once
            continue


def check_cluster_id(cluster_id: str, stored: str | None, directories: str, store: str) -> None:
    """Raise InconsistentClusterId if `stored`, the id in meta.properties, differs.

    `stored` is None when there is none yet.
    """
    if stored is not None and stored != cluster_id:
        raise InconsistentClusterId(
            f"The data in {directories} belongs to the cluster {stored}, but {store} is the "
            f"cluster {cluster_id}. Point zookeeper.connect (host, port and path after the slash) "
            f"at the cluster of this data, or start with an empty log.dirs; only if you are sure "
            f"that the data belongs to the cluster {cluster_id}, change cluster.id in "
            f"meta.properties."
        )


async def check_advertised_addresses(store: ZnodeStore, info: BrokerInfo) -> None:
    """Raise AdvertisedAddressTaken if another registered broker has a host and port of `info`.

    Clients would reach one of the two brokers under both ids. The check of
    `KafkaServer.createBrokerInfo`; two brokers that start at once can both pass it.
    """
    ours = {(each.host, each.port) for each in info.endpoints}
    ids = znodes.broker_ids(await store.children(znodes.BROKER_IDS))
    nodes = await store.get_many([znodes.broker_path(broker_id) for broker_id in ids])
    for broker_id, node in zip(ids, nodes, strict=True):
        if node is None or broker_id == info.broker_id:
            continue
        try:
            other = znodes.decode_broker(broker_id, node[0], node[1].czxid)
        except MalformedZnode:  # the controller ignores this broker, and logs it
            continue
        taken = [each for each in other.endpoints if (each.host, each.port) in ours]
        if taken:
            addresses = ", ".join(znodes.format_endpoint(each) for each in taken)
            raise AdvertisedAddressTaken(
                f"Broker {broker_id} is registered at {addresses}, an address of "
                f"advertised.listeners of this broker ({info.broker_id}). Give this broker other "
                f"advertised.listeners, or stop the other one; if it was this broker with another "
                f"broker.id, wait until its session has expired (zookeeper.session.timeout.ms) "
                f"and start again."
            )


async def generate_broker_id(store: ZnodeStore, reserved_broker_max_id: int = 1000) -> int:
    """A broker id that was never used, above reserved.broker.max.id."""
    while True:
        try:
            stat = await store.set(znodes.BROKER_SEQUENCE_ID, b"")
            return stat.version + reserved_broker_max_id
        except NoNode:
            pass
        await make_paths(store, [znodes.BROKER_SEQUENCE_ID])


class BrokerRegistration:
    """Registers this broker, and registers it again after the session has expired.

    `info.epoch` is ignored; the epoch of the last registration is `broker_epoch`. `instance`
    identifies the data directory of the broker. `unclean_shutdown` is set before the first
    registration and holds for the life of the process: the controller compares the broker epoch
    with the age of each ISR.
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
        on_taken: Callable[[str], None] = lambda _problem: None,
        check_replicas: Callable[[int], Awaitable[None]] | None = None,
    ) -> None:
        """`on_registered` and then `check_replicas` are called with the broker epoch after each
        registration; `on_taken` with the problem when another broker has the id."""
        self.store = store
        self.info = info
        self.broker_epoch = -1
        self.unclean_shutdown = False
        #: Why this broker is not registered, as another one has its id; empty otherwise.
        self.taken = ""
        #: Whether the znode has `info`, if there is one; not after an update that failed.
        self.is_written = True
        self._now_ms = now_ms
        self._jmx_port = jmx_port
        self._version = control_versions(inter_broker_protocol_version).broker_znode_version
        self._instance = instance
        self._on_registered = on_registered
        self._on_taken = on_taken
        self._check_replicas = check_replicas

    def _payload(self) -> bytes:
        return znodes.encode_broker(
            self.info._replace(unclean_shutdown=self.unclean_shutdown),
            self._now_ms(),
            jmx_port=self._jmx_port,
            version=self._version,
            instance=self._instance,
        )

    async def register(self) -> int:
        """Create the znode of the broker and return the broker epoch.

        The same multi changes the version of `znodes.REGISTRATIONS`.
        A znode of an earlier session of this broker is replaced: the broker was restarted before
        that session expired. A failure of `check_replicas` is raised; a further call repeats it,
        and keeps the znode. The znode belongs to this broker if it has the same `instance`, or,
        if it has none, the same listeners. Otherwise BrokerIdTaken is raised.
        """
        path = znodes.broker_path(self.info.broker_id)
        while True:
            try:
                # Made for each attempt: the listeners may have changed during the one before.
                epoch = await self._create(path, self._payload())
                break
            except NoNode:  # removed by hand, or the cluster is new
                await make_paths(self.store, (znodes.BROKER_IDS, znodes.REGISTRATIONS))
                continue
            except NodeExists:
                pass
            owned = await self._resolve_existing_registration(path)
            if owned is not None:
                epoch = owned.czxid
                break
        self.broker_epoch = epoch
        self.taken = ""
        logger.info("Registered broker %d with broker epoch %d", self.info.broker_id, epoch)
        self._on_registered(epoch)
        if self._check_replicas is not None:
            await self._check_replicas(epoch)
        return epoch

    async def _create(self, path: str, payload: bytes) -> int:
        """The zxid of the multi that created the znode."""
        results = await self.store.multi(
            [CreateOp(path, payload, ephemeral=True), SetOp(znodes.REGISTRATIONS, b"")]
        )
        stat = results[1]
        assert isinstance(stat, Stat)
        return stat.mzxid

    async def _resolve_existing_registration(self, path: str) -> Stat | None:
        """The Stat of an existing znode of our session; None when it was removed, to retry."""
        try:
            data, stat = await self.store.get(path)
        except NoNode:
            return None
        if stat.ephemeral_owner == self.store.session_id:
            return stat  # created by a request whose response was lost
        own = self.info.broker_id
        try:
            other = znodes.decode_broker(own, data, stat.czxid)
            listeners = ", ".join(znodes.format_endpoint(each) for each in other.endpoints)
            is_ours = self._is_ours(other, znodes.decode_broker_instance(own, data))
        except MalformedZnode as error:  # it goes with its session
            listeners, is_ours = f"addresses that cannot be read ({error})", False
        if not is_ours:
            self.taken = f"Broker id {own} is already registered by a broker at {listeners}"
            self._on_taken(self.taken)
            if not stat.ephemeral_owner:
                raise BrokerIdTaken(f"{self.taken}. No session holds it: delete {path}.")
            raise BrokerIdTaken(
                f"{self.taken}. Give this broker another broker.id, or stop the other one; if it "
                f"was this broker with other listeners, wait until its session has expired "
                f"(zookeeper.session.timeout.ms) and start again."
            )
        logger.warning(
            "Replacing the registration of broker %d by an earlier session of the same broker",
            own,
        )
        with suppress(NoNode, BadVersion):  # removed or changed meanwhile: retry
            await self.store.delete(path, stat.version)
        return None

    def _is_ours(self, other: BrokerInfo, instance: str | None) -> bool:
        if instance is not None and self._instance is not None:
            return instance == self._instance
        return set(other.endpoints) == set(self.info.endpoints)

    async def unregister(self) -> None:
        """Delete the znode of this session, if there is one. Raises StoreError."""
        path = znodes.broker_path(self.info.broker_id)
        stat = await self.store.exists(path)
        if stat is not None and stat.ephemeral_owner == self.store.session_id:
            with suppress(NoNode, BadVersion):
                await self.store.delete(path, stat.version)

    async def update(self, info: BrokerInfo) -> None:
        """Update the znode with changed listeners or features; the broker epoch stays the same.

        Without a znode, since the session has expired, the next `register` writes them. After
        any other error the call has to be repeated: `is_written` is False.
        """
        self.info = info
        self.is_written = False
        with suppress(NoNode):
            await self.store.set(znodes.broker_path(info.broker_id), self._payload())
        # Writes are applied in the order of the calls, so a later one has not been overwritten.
        self.is_written = self.is_written or self.info == info
