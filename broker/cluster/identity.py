"""The identity of this broker: its id, its cluster, its place in the znode tree.

The id comes from `broker.id`, else from `meta.properties` of an earlier life, else from the tree,
above `reserved.broker.max.id`. The cluster id comes from the tree and must be that of the data.
"""

from __future__ import annotations

import socket
from typing import TYPE_CHECKING

from ottla.broker.config.broker_config import Endpoint
from ottla.broker.config.errors import ConfigError
from ottla.controller.admin.own_features import own_features
from ottla.controller.election import check_not_migrated
from ottla.controller.model import BrokerInfo
from ottla.controller.model import Endpoint as RegisteredEndpoint
from ottla.controller.registration import (
    InconsistentClusterId,
    check_cluster_id,
    create_persistent_paths,
    find_cluster_id,
    generate_broker_id,
    get_or_create_cluster_id,
)
from ottla.controller.tree.znode_json import MalformedZnode
from ottla.controller.tree.znodes import encode_cluster_id
from ottla.storage.directories.log_directories import MetaProperties
from ottla.storage.errors import CorruptFile

if TYPE_CHECKING:
    from ottla.broker.cluster.container_network import AttachedNetworks, ContainerNetwork
    from ottla.broker.config.broker_config import BrokerConfig
    from ottla.controller.tree.store import ZnodeStore
    from ottla.storage.directories.log_manager import LogManager

# The znode tree of a broker without ZooKeeper, in its first log directory.
EMBEDDED_STORE_FILE = "ottla-znodes.db"


class StartError(Exception):
    """The broker cannot start; the message is for the person who started it."""


async def establish(
    config: BrokerConfig, store: ZnodeStore, log_manager: LogManager
) -> tuple[int, str]:
    """(broker id, cluster id), agreed between settings, tree and data; written to the data."""
    known_id = await check_identity(config, store, log_manager)
    await check_not_migrated(store)
    await create_persistent_paths(store)
    cluster_id = await get_or_create_cluster_id(store)
    broker_id = known_id
    if broker_id < 0:
        broker_id = await generate_broker_id(store, config.reserved_broker_max_id)
    log_manager.write_meta_properties(broker_id, cluster_id)
    return broker_id, cluster_id


async def check_identity(config: BrokerConfig, store: ZnodeStore, log_manager: LogManager) -> int:
    """The broker id of settings or data, -1 when one is to be generated. Writes nothing.

    Raises InconsistentClusterId or ConfigError when data, settings and tree do not fit: also for
    a tree without a cluster, which is that of another one than the data."""
    directories = ", ".join(config.log_directories())
    try:
        meta = log_manager.read_meta_properties()
    except CorruptFile as error:
        raise StartError(f"{error}. {await _how_to_write_meta(store)}") from None
    if meta == MetaProperties(None, None) and config.broker_id < 0 and log_manager.has_logs():
        # A new id would set all of them aside: the tree assigns them to another broker.
        raise StartError(
            f"There are logs in {directories} and no meta.properties, so that the id of this "
            f"broker is not known. {await _how_to_write_meta(store)}"
        )
    if meta.cluster_id is not None:
        try:
            cluster_id = await find_cluster_id(store) or "(none: the tree is empty)"
        except MalformedZnode as error:
            written = encode_cluster_id(meta.cluster_id).decode()
            raise MalformedZnode(
                f"{error}. Repair it: the data in {directories} belongs to the cluster "
                f"{meta.cluster_id}, whose znode is {written}"
            ) from None
        if config.embedded and cluster_id.startswith("("):
            raise InconsistentClusterId(
                f"The data in {directories} belongs to the cluster {meta.cluster_id}, and its "
                f"znode tree ({EMBEDDED_STORE_FILE}) is empty: restore that file from a backup, or "
                f"move the data away to begin a new cluster."
            )
        where = f"the znode tree at {config.zookeeper_connect or 'the data directory'}"
        check_cluster_id(cluster_id, meta.cluster_id, directories, where)
    broker_id = config.broker_id
    if broker_id < 0:
        return -1 if meta.broker_id is None else meta.broker_id
    if meta.broker_id is not None and meta.broker_id not in (-1, broker_id):
        raise ConfigError(
            f"Stored node id {meta.broker_id} doesn't match previous node id {broker_id}: "
            f"broker.id is {broker_id}, but the data in {directories} belongs to broker "
            f"{meta.broker_id}. Give the id of the data, or another log.dirs."
        )
    return broker_id


async def _how_to_write_meta(store: ZnodeStore) -> str:
    try:
        cluster_id = await find_cluster_id(store)
    except MalformedZnode:
        cluster_id = None
    return (
        f"Copy meta.properties from another directory of log.dirs, or write its three lines: "
        f"version=0, broker.id= with the id of this broker, cluster.id="
        f"{cluster_id or 'with the id in /cluster/id'}."
    )


def broker_info(config: BrokerConfig, broker_id: int, ports: dict[str, int]) -> BrokerInfo:
    """What is registered: every advertised listener that is open, with the port that was really
    bound."""
    endpoints = []
    for endpoint in config.advertised_endpoints():
        if endpoint.listener_name not in ports:
            continue
        port = endpoint.port or ports[endpoint.listener_name]
        host = endpoint.host or machine_name()
        endpoints.append(
            RegisteredEndpoint(endpoint.listener_name, endpoint.security_protocol, host, port)
        )
    features = own_features(config.inter_broker_protocol_version)
    return BrokerInfo(broker_id, tuple(endpoints), config.broker_rack, features=features)


def machine_name() -> str:
    """The full name of this machine, which a listener without a host registers, as in Kafka."""
    return socket.getfqdn()


def registers_machine_name(
    config: BrokerConfig, container: AttachedNetworks | ContainerNetwork | None
) -> bool:
    """Whether clients get the name of the machine for a listener without a host (`NAME://:port`).

    So it is in Kafka, and every broker of a cluster must say the same about the others: a broker
    with ZooKeeper does it. In a container the name is one that no client of the host knows.
    """
    return not config.embedded and container is None


def wildcard_listeners(
    config: BrokerConfig, container: AttachedNetworks | ContainerNetwork | None = None
) -> frozenset[str]:
    """The listeners that advertise the address that the client connected to.

    A broker with ZooKeeper does so for 0.0.0.0 and :: only, with which Kafka does not start.
    """
    found = {each.listener_name for each in config.advertised_endpoints() if not each.host}
    if found and registers_machine_name(config, container):
        written = (each for each in config.listener_endpoints() if each.host)
        found &= {each.listener_name for each in written}
        if config.advertised_listeners is not None:
            found.clear()
    return frozenset(found)


def reach(endpoint: Endpoint) -> str:
    """Text that names who can connect to a listener."""
    if endpoint.host in ("", "0.0.0.0", "::"):
        return "from every network of this machine"
    if endpoint.host == "localhost" or endpoint.host.startswith("127.") or endpoint.host == "::1":
        return "from this machine only"
    return f"wherever {endpoint.host} is reachable"
