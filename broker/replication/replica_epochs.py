"""Tells the controller which replicas of this broker are ahead of ZooKeeper.

A leader epoch is written to ZooKeeper before a broker gets it, so a replica with a higher one means
that ZooKeeper was restored from an older copy. Kafka ignores the states that it sends for such a
replica, on both sides and without a word, so that the replica never works again. Here the broker
refuses them with FENCED_LEADER_EPOCH and stores what its logs have in a znode, from which the
controller elects (`controller/changes/epoch_repair.py`).
"""

from __future__ import annotations

import logging
from itertools import islice
from typing import TYPE_CHECKING

from ottla.controller.tree import znodes
from ottla.controller.tree.store import StoreError, set_or_create
from ottla.controller.tree.znodes_admin import ReplicaEpoch, encode_replica_epochs

if TYPE_CHECKING:
    from ottla.broker.cluster.broker_epoch import BrokerEpoch
    from ottla.controller.tree.store import ZnodeStore
    from ottla.protocol.topics import TopicPartition

logger = logging.getLogger("ottla.replication")

# A row has about 50 bytes beside the name of its topic, and a znode may have 1 MiB. When these are
# repaired the next ones are stored.
_ROWS_MAX = 3000


class ReplicaEpochs:
    """The replicas that are ahead, by partition. Loop only."""

    def __init__(self, store: ZnodeStore, broker_id: int, broker_epoch: BrokerEpoch) -> None:
        self._store = store
        self._broker_id = broker_id
        self._broker_epoch = broker_epoch
        self.ahead: dict[TopicPartition, ReplicaEpoch] = {}
        #: The leader epoch of the state that was refused, which is that of the tree.
        self.refused: dict[TopicPartition, int] = {}

    def add(self, key: TopicPartition, epochs: ReplicaEpoch, refused: int) -> None:
        """A state with the lower leader epoch `refused` was refused."""
        if key not in self.ahead:
            logger.error(
                "Refusing to become leader or follower of %s in leader epoch %d, below %d of this "
                "replica: ZooKeeper was restored from an older copy",
                *(key, refused, epochs.highest),
                extra=key._asdict(),
            )
        self.ahead[key] = epochs
        self.refused[key] = refused

    def discard(self, key: TopicPartition) -> None:
        """The tree is not behind any more, or the replica is gone."""
        self.ahead.pop(key, None)
        self.refused.pop(key, None)

    async def publish(self) -> None:
        """Stores them, before the response that refuses a state. Raises nothing: without ZooKeeper
        the controller repairs nothing either."""
        path = znodes.replica_epochs_path(self._broker_id)
        rows = dict(islice(self.ahead.items(), _ROWS_MAX))
        data = encode_replica_epochs(self._broker_epoch.value, rows)
        try:
            await set_or_create(self._store, path, data)
        except StoreError as error:
            logger.warning("Failed to store the leader epochs of replicas: %s", error)
