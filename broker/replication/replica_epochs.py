"""Tells the controller which replicas of this broker are ahead of ZooKeeper.

A leader epoch is written to ZooKeeper before a broker gets it, so a replica with a higher one means
that ZooKeeper was restored from an older copy. Kafka ignores the states that it sends for such a
replica, on both sides and without a word, so that the replica never works again. Here the broker
refuses them with FENCED_LEADER_EPOCH and stores what its logs have in a znode, from which the
controller elects (`controller/changes/epoch_repair.py`).

If the broker knows that the tree is an older copy (`stray_logs.StrayCheck`), it may be the wrong
ZooKeeper, where this broker is alone: elections there would have the same leader epochs as those of
the other brokers. So it refuses every state of a replica with records, except that of a repair.
"""

from __future__ import annotations

import logging
from itertools import islice
from typing import TYPE_CHECKING

from ottla.controller.model import REPAIR_STEP
from ottla.controller.tree import znodes
from ottla.controller.tree.store import StoreError, set_or_create
from ottla.controller.tree.znodes_admin import ReplicaEpoch, encode_replica_epochs

if TYPE_CHECKING:
    from collections.abc import Callable

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
        #: Called when the controller has repaired a replica in an older tree: it is the right one.
        self.on_repaired: Callable[[], None] = lambda: None
        self._is_older = False
        self._repaired: set[TopicPartition] = set()
        # Those that got a first state although they have records, until they are repaired.
        self._written_anew: set[TopicPartition] = set()

    def registered(self, *, is_older: bool) -> None:
        """The broker registered; `is_older`: in a tree that is older than what it has seen."""
        self._is_older = is_older
        self._repaired.clear()

    def is_behind(
        self, key: TopicPartition, leader_epoch: int, own: ReplicaEpoch, *, is_first: bool
    ) -> bool:
        """Whether a state with `leader_epoch` is to be refused; notes it. `is_first`: the tree has
        had none before, as after its znodes were removed by hand."""
        if is_first and own.log_end_offset > 0:
            self._written_anew.add(key)
        is_older = self._is_older and key not in self._repaired
        is_doubted = own.log_end_offset > 0 and (is_older or key in self._written_anew)
        if leader_epoch >= own.highest + (REPAIR_STEP if is_doubted else 0):
            self.discard(key)
            if is_doubted:
                self._repaired.add(key)
                self.on_repaired()
            return False
        if key not in self.ahead:
            logger.error(
                "Refusing to become leader or follower of %s in leader epoch %d, with %d in this "
                "replica: ZooKeeper is an older copy, was restored from one, or written again",
                key,
                leader_epoch,
                own.highest,
                extra=key._asdict(),
            )
        self.ahead[key] = own
        return True

    def discard(self, key: TopicPartition) -> None:
        """The tree is not behind any more, or the replica is gone."""
        self.ahead.pop(key, None)
        self._written_anew.discard(key)

    async def publish(self) -> None:
        """Stores them, before the response that refuses a state. Raises nothing: without ZooKeeper
        the controller repairs nothing either."""
        path = znodes.replica_epochs_path(self._broker_id)
        rows = dict(islice(self.ahead.items(), _ROWS_MAX))
        data = encode_replica_epochs(self._broker_epoch.value, rows, is_older=self._is_older)
        try:
            await set_or_create(self._store, path, data)
        except StoreError as error:
            logger.warning("Failed to store the leader epochs of replicas: %s", error)
