"""The preferred read replica of a consumer (KIP-392).

With `replica.selector.class` set to Kafka's `RackAwareReplicaSelector`, a consumer with a
`client.rack` reads from an in-sync replica in that rack that has the fetch offset: from the leader
if it is in the rack, otherwise from the replica with the highest log end offset. A consumer goes
back to the leader when a fetch from that replica fails.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ottla.broker.cluster.metadata_cache import MetadataCache
    from ottla.broker.replication.partition import FollowerReplica, Partition

RACK_AWARE = "org.apache.kafka.common.replica.RackAwareReplicaSelector"

NO_PREFERENCE = -1


class RackAwareReplicaSelector:
    """Mirrors Kafka's class of this name; the racks are those in the metadata cache."""

    def __init__(self, metadata: MetadataCache) -> None:
        self._metadata = metadata

    def choose(self, partition: Partition, client_rack: str, fetch_offset: int) -> int:
        """The broker id of the preferred read replica, or NO_PREFERENCE for the leader."""
        brokers = self._metadata.snapshot.brokers
        own = brokers.get(partition.context.broker_id)
        if not client_rack or own is None or own.rack == client_rack:
            return NO_PREFERENCE
        best: FollowerReplica | None = None
        for follower in partition.followers.values():
            if follower.broker_id not in partition.isr:
                # It may stay behind for ever, and the consumer with it.
                continue
            broker = brokers.get(follower.broker_id)
            if broker is None or broker.rack != client_rack:
                continue
            if not follower.log_start_offset <= fetch_offset <= follower.log_end_offset:
                continue
            if best is None or _progress(follower) > _progress(best):
                best = follower
        return NO_PREFERENCE if best is None else best.broker_id


def _progress(follower: FollowerReplica) -> tuple[int, int]:
    return follower.log_end_offset, follower.last_caught_up_ms
