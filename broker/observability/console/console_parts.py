"""The parts of a broker that the console reads."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from ottla.broker.cluster.metadata_cache import MetadataCache
    from ottla.broker.groups.coordinator import GroupCoordinator
    from ottla.broker.handlers.admin.describe_configs import ConfigDescriber
    from ottla.broker.net.server import NetworkServer
    from ottla.broker.replication.replica_manager import ReplicaManager
    from ottla.broker.requests.request_channel import RequestChannel
    from ottla.broker.requests.request_context import Principal
    from ottla.broker.runtime.tasks import WorkerPool
    from ottla.broker.security.authorization.access_control import Allows
    from ottla.controller.controller import Controller


class ConsoleParts(NamedTuple):
    """What the console shows, and who this broker is. The console changes none of it."""

    broker_id: int
    cluster_id: str
    metadata: MetadataCache
    replica_manager: ReplicaManager
    groups: GroupCoordinator
    controller: Controller
    config_describer: ConfigDescriber
    network: NetworkServer
    request_channel: RequestChannel
    workers: WorkerPool
    now_ms: Callable[[], int]
    state: Callable[[], dict[str, Any]]  # as /statusz serves it
    allows: Allows  # `allow_all` without an authorizer
    principal: Principal  # in whose name the console shows anything
