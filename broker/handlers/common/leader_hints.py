"""Where the leader is, for clients that asked the wrong broker (KIP-951)."""

from __future__ import annotations

from typing import NamedTuple

from ottla.broker.cluster.endpoints import Endpoints, Node
from ottla.broker.cluster.metadata_cache import MetadataCache
from ottla.broker.requests.request_channel import RequestContext


class LeaderHint(NamedTuple):
    """The leader as this broker knows it; `node` is None when it is not reachable."""

    leader_id: int
    leader_epoch: int
    node: Node | None


class LeaderHints:
    """Looks leaders up in the metadata cache."""

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
