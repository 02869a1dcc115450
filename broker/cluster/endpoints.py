"""The address of a broker that a client gets.

Each client gets the addresses of the listener that it came in on. A broker that is bound to every
address of its machine and has no `advertised.listeners` responds with the address that the client
itself used, which is by construction one that it can reach. In a container this is so for other
containers only; clients that came in through a published port receive `localhost`.
"""

from __future__ import annotations

from collections.abc import Set
from typing import NamedTuple

from ottla.broker.cluster.container_network import HOST, AttachedNetworks, ContainerNetwork
from ottla.broker.cluster.metadata_cache import BrokerMetadata, MetadataCache
from ottla.broker.requests.request_channel import RequestContext


class Node(NamedTuple):
    """A broker as clients see it; the order is that of the wire's node structs."""

    node_id: int
    host: str
    port: int
    rack: str | None


class Endpoints:
    """Translates broker ids into nodes for one client."""

    def __init__(
        self,
        broker_id: int,
        metadata: MetadataCache,
        wildcard_listeners: Set[str],
        container: AttachedNetworks | ContainerNetwork | None = None,
        *,
        is_worker: bool = False,
    ) -> None:
        """`wildcard_listeners`: our listeners that have no advertised address of their own, which
        change with the listeners. `container`: the networks of the container in which this
        process runs. `is_worker`: whether other brokers run on this machine, which is so for those
        that are registered with its rack and its host name."""
        self._broker_id = broker_id
        self._metadata = metadata
        self.wildcard_listeners = wildcard_listeners
        self.container = container
        self._is_worker = is_worker

    def node(self, context: RequestContext, broker_id: int) -> Node | None:
        """A live broker on the client's listener; None when it is not live or not on it."""
        broker = self._metadata.snapshot.brokers.get(broker_id)
        return None if broker is None else self._node(context, broker)

    def nodes(self, context: RequestContext) -> list[Node]:
        """All live brokers that the client's listener reaches, by id."""
        brokers = self._metadata.snapshot.brokers
        found = (self._node(context, brokers[broker_id]) for broker_id in sorted(brokers))
        return [node for node in found if node is not None]

    def _node(self, context: RequestContext, broker: BrokerMetadata) -> Node | None:
        endpoint = broker.endpoints.get(context.listener_name)
        if endpoint is None:
            return None
        host = endpoint.host
        if context.listener_name in self.wildcard_listeners and self._is_here(broker, context):
            host = self._host_of_wildcard(context)
        return Node(broker.broker_id, host, endpoint.port, broker.rack)

    def _is_here(self, broker: BrokerMetadata, context: RequestContext) -> bool:
        if broker.broker_id == self._broker_id:
            return True
        own = self._metadata.snapshot.brokers.get(self._broker_id) if self._is_worker else None
        if own is None or own.rack != broker.rack:
            return False
        ours = own.endpoints.get(context.listener_name)
        return ours is not None and ours.host == broker.endpoints[context.listener_name].host

    def _host_of_wildcard(self, context: RequestContext) -> str:
        local = context.local_address[0]
        container = self.container
        if container is not None and container.is_from_outside(context.client_host, local):
            return HOST
        return local


class LeaderHint(NamedTuple):
    """The leader in the metadata cache; `node` is None when it has no endpoint for the client."""

    leader_id: int
    leader_epoch: int
    node: Node | None


class LeaderHints:
    """Finds leaders in the metadata cache."""

    def __init__(self, metadata: MetadataCache, endpoints: Endpoints) -> None:
        self._metadata = metadata
        self._endpoints = endpoints

    def find(self, context: RequestContext, topic: str, index: int) -> LeaderHint | None:
        """The leader of a partition for the client behind `context`, or None."""
        state = self._metadata.snapshot.partition(topic, index)
        if state is None:
            return None
        node = self._endpoints.node(context, state.leader)
        return LeaderHint(state.leader, state.leader_epoch, node)
