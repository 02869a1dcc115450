"""The current leader of a partition, for responses with NOT_LEADER_OR_FOLLOWER (KIP-951)."""

from __future__ import annotations

from typing import NamedTuple

from ottla.broker.cluster.endpoints import Endpoints, Node
from ottla.broker.cluster.metadata_cache import MetadataCache
from ottla.broker.requests.request_channel import RequestContext


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
