"""The parts of a broker that the console reads."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from ottla.broker.net.server import NetworkServer
    from ottla.broker.observability.console.cluster_client import ClusterClient
    from ottla.broker.requests.request_channel import RequestChannel
    from ottla.broker.requests.request_context import Principal
    from ottla.broker.runtime.tasks import WorkerPool
    from ottla.broker.security.authorization.access_control import Allows


class ConsoleParts(NamedTuple):
    """What the console asks, and in whose name."""

    cluster_id: str
    client: ClusterClient
    network: NetworkServer
    request_channel: RequestChannel
    workers: WorkerPool
    now_ms: Callable[[], int]
    state: Callable[[], dict[str, Any]]  # as /statusz serves it
    allows: Allows  # `allow_all` without an authorizer
    principal: Principal  # in whose name the console shows and changes anything
    read_only: str  # why nothing can be changed, empty if it can
