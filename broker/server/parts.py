"""The composition root: all parts of one broker, built and connected. Nothing here starts anything.

Each function builds one area and returns its parts as a small tuple; a part gets what it uses by
constructor arguments, from areas that were built before. In this order:

1. `foundation`: settings, clock, timer, worker threads, metadata, dynamic settings; storage and
   the znode tree come from `broker_server`, which opens them.
2. `replica_assembly.build_cluster`: clients for other brokers, the channel to the controller.
3. `replica_assembly.build_replicas`: the replica manager, the in-sync replicas, fetchers, the log
   cleaner and moves between log directories.
4. `coordinators`: the group and the transaction coordinator.
5. `control_assembly.build_control`: the controller, this broker's registration, and what applies
   the controller's requests to the replicas and notifies the coordinators of their partitions.
6. `control_assembly.build_upkeep`: failed log directories and the scheduler of background jobs.
7. `quota_assembly` and `security_assembly`: limits; authentication and authorization.
8. `network_assembly`: handlers (`handler_assembly`), request channel, network server; the
   listeners (`open_listeners`).

Some parts need each other. Two late bindings serve them, both made in `build_parts` and checked by
`BrokerParts.check_connected` when the broker starts: `ControllerChannel.connect` names the
controller of this process, and `events.BrokerEvents.connect` names who receives what lower parts
report (changed settings, truncated logs, failed directories). `http_assembly` gives metrics and
console what they read; nothing outside this package sees `BrokerParts`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

from ottla.broker.server.config_changes import ConfigChanges
from ottla.broker.server.control_assembly import (
    ControlParts,
    UpkeepParts,
    build_control,
    build_upkeep,
)
from ottla.broker.server.coordinators import Coordinators
from ottla.broker.server.events import EventReceivers
from ottla.broker.server.foundation import Foundation, build_foundation
from ottla.broker.server.network_assembly import NetworkParts, build_network
from ottla.broker.server.open_listeners import OpenListeners
from ottla.broker.server.quota_assembly import QuotaParts, build_quotas, cluster_watcher
from ottla.broker.server.replica_assembly import (
    ClusterParts,
    ReplicaParts,
    build_cluster,
    build_replicas,
)
from ottla.broker.server.security_assembly import SecurityParts, build_security

if TYPE_CHECKING:
    from ottla.broker.config.broker_config import BrokerConfig
    from ottla.controller.tree.store import ZnodeStore
    from ottla.storage.directories.log_manager import LogManager


class BrokerParts(NamedTuple):
    """The parts of a broker by area."""

    base: Foundation
    cluster: ClusterParts
    replicas: ReplicaParts
    coordinators: Coordinators
    control: ControlParts
    upkeep: UpkeepParts
    quotas: QuotaParts
    security: SecurityParts
    network: NetworkParts
    listeners: OpenListeners

    def check_connected(self) -> None:
        """RuntimeError when a late binding was not made."""
        self.base.events.check_connected()
        self.cluster.channel.check_connected()


def build_parts(
    config: BrokerConfig,
    identity: tuple[int, str],
    store: ZnodeStore,
    logs: LogManager,
    on_all_disks_failed: Callable[[], None],
) -> BrokerParts:
    """`identity` is the broker id and the cluster id."""
    base = build_foundation(config, identity, store, logs)
    cluster = build_cluster(base)
    replicas = build_replicas(base, cluster)
    coordinators = Coordinators(
        config,
        base.clock,
        base.timer,
        base.held,
        base.metadata,
        replicas.manager,
        cluster.channel,
        cluster.inter_broker_client,
        base.store,
        base.dynamic_config.group_configs,
    )
    quotas = build_quotas(config)
    quota_watcher = cluster_watcher(quotas, base.metadata, base.broker_id)
    control = build_control(base, cluster, replicas, coordinators, quota_watcher)
    upkeep = build_upkeep(base, cluster, replicas, coordinators, control, on_all_disks_failed)
    security = build_security(base, control.controller)
    network = build_network(base, cluster, replicas, coordinators, control, quotas, security)
    listeners = OpenListeners(base, cluster.tls, quotas, security, network, control.registration)
    base.events.connect(
        EventReceivers(
            config_changes=ConfigChanges(
                base, replicas, control, quotas, security, cluster.tls, listeners
            ),
            replica_manager=replicas.manager,
            compaction=replicas.compaction,
            mover=replicas.mover,
            failures=upkeep.failures,
            controller=control.controller,
            leader_and_isr=control.leader_and_isr,
        )
    )
    return BrokerParts(
        base, cluster, replicas, coordinators, control, upkeep, quotas, security, network, listeners
    )
