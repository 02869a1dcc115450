"""Which replica of a partition a reader fetches from: the leader, or the one that the leader names.

A leader with a replica selector returns `preferred_read_replica` instead of records to a reader
with `client.rack` (KIP-392). As in Kafka's consumer, the reader then fetches from that replica, and
from the leader again after an error or when the lease ends.
"""

from __future__ import annotations

from collections.abc import Callable

# As Kafka's consumer, which requests it again with the metadata (metadata.max.age.ms).
LEASE_SECONDS = 300.0


class ReadReplica:
    """The choice for one partition."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._node_id: int | None = None
        self._lease_ends = 0.0
        self._leader_until: float | None = None

    @property
    def node_id(self) -> int | None:
        """The replica to fetch from; None for the leader."""
        if self._node_id is not None and self._clock() >= self._lease_ends:
            self._node_id = None
        return self._node_id

    @property
    def follows(self) -> bool:
        """Whether a fetch from the leader names the rack, so that the leader may name a replica."""
        if self._leader_until is not None and self._clock() >= self._leader_until:
            self._leader_until = None
        return self._leader_until is None

    def prefer(self, node_id: int) -> None:
        """The leader named this replica."""
        self._node_id = node_id
        self._lease_ends = self._clock() + LEASE_SECONDS

    def use_leader(self) -> None:
        """The replica cannot serve the fetch: the leader serves the partition for a while."""
        self._node_id = None
        self._leader_until = self._clock() + LEASE_SECONDS
