"""The state machine of replicas; mirrors Kafka's `ReplicaStateMachine`.

| to                 | from                                                                      |
|--------------------|---------------------------------------------------------------------------|
| New                | NonExistent                                                               |
| Online             | New, Online, Offline, DeletionIneligible                                  |
| Offline            | New, Online, Offline, DeletionIneligible                                  |
| DeletionStarted    | Offline                                                                   |
| DeletionSuccessful | DeletionStarted                                                           |
| DeletionIneligible | Offline, DeletionStarted                                                  |
| NonExistent        | DeletionSuccessful                                                        |

A replica that goes offline is removed from the ISR (unless it is the last one in it); if it was the
leader, the partition has no leader. Its broker gets StopReplica, the others LeaderAndIsr with the
new state. A transition from another state is logged as an error and has no effect.
"""

import logging
from collections.abc import Iterable

from ottla.controller.model import NO_LEADER, LeaderAndIsr, PartitionReplica
from ottla.controller.requests.request_batch import RequestBatch
from ottla.controller.state.context import ControllerContext, ReplicaState
from ottla.controller.state.fenced_writes import FencedWriter
from ottla.controller.state_machines.partitions import MAX_WRITE_ATTEMPTS
from ottla.controller.tree import znodes
from ottla.controller.tree.store import StoreError
from ottla.controller.tree.znode_json import MalformedZnode
from ottla.protocol.steps import Turn, over
from ottla.protocol.topics import TopicPartition

logger = logging.getLogger("ottla.controller")

VALID_PREVIOUS = {
    ReplicaState.NEW: {ReplicaState.NON_EXISTENT},
    ReplicaState.ONLINE: {
        ReplicaState.NEW,
        ReplicaState.ONLINE,
        ReplicaState.OFFLINE,
        ReplicaState.DELETION_INELIGIBLE,
    },
    ReplicaState.OFFLINE: {
        ReplicaState.NEW,
        ReplicaState.ONLINE,
        ReplicaState.OFFLINE,
        ReplicaState.DELETION_INELIGIBLE,
    },
    ReplicaState.DELETION_STARTED: {ReplicaState.OFFLINE},
    ReplicaState.DELETION_SUCCESSFUL: {ReplicaState.DELETION_STARTED},
    ReplicaState.DELETION_INELIGIBLE: {ReplicaState.OFFLINE, ReplicaState.DELETION_STARTED},
    ReplicaState.NON_EXISTENT: {ReplicaState.DELETION_SUCCESSFUL},
}


class ReplicaStateMachine:
    """A new state is durable in the znode tree before it is sent to brokers."""

    def __init__(
        self, context: ControllerContext, writer: FencedWriter, batch: RequestBatch
    ) -> None:
        self.context = context
        self.writer = writer
        self.batch = batch

    async def startup(self) -> None:
        """Set the initial states from the live brokers, and send the states to all replicas.

        A replica on a dead broker starts as DeletionIneligible: the previous controller may not
        have handled the failure, and from this state it can be deleted and can become online.
        """
        context = self.context
        online: list[PartitionReplica] = []
        offline: list[PartitionReplica] = []
        async for partition in over(context.partitions()):
            for replica in context.assignment(partition).replicas:
                each = PartitionReplica(partition, replica)
                if context.is_online(replica, partition):
                    context.replica_states[each] = ReplicaState.ONLINE
                    online.append(each)
                else:
                    context.replica_states[each] = ReplicaState.DELETION_INELIGIBLE
                    offline.append(each)
        await self.handle_state_changes(online, ReplicaState.ONLINE)
        await self.handle_state_changes(offline, ReplicaState.OFFLINE)

    async def handle_state_changes(
        self, replicas: Iterable[PartitionReplica], target: ReplicaState
    ) -> None:
        """Change the state of replicas, and send the requests that follow from it.

        Raises like `PartitionStateMachine.handle_state_changes`.
        """
        valid = [each async for each in over(replicas) if self._is_valid_transition(each, target)]
        if target is ReplicaState.NEW:
            await self._to_new(valid)
        elif target is ReplicaState.ONLINE:
            await self._to_online(valid)
        elif target is ReplicaState.OFFLINE:
            await self._to_offline(valid)
        elif target is ReplicaState.DELETION_STARTED:
            async for partition, replica in over(valid):
                self.batch.add_stop_replica((replica,), partition, delete=True)
                self._set(PartitionReplica(partition, replica), target)
        elif target is ReplicaState.NON_EXISTENT:
            async for each in over(valid):
                assignment = self.context.assignment(each.partition)
                self.context.set_assignment(each.partition, assignment.without(each.replica))
                self.context.replica_states.pop(each, None)
        else:
            async for each in over(valid):
                self._set(each, target)
        await self.batch.send(self.context.epoch)

    def _is_valid_transition(self, replica: PartitionReplica, target: ReplicaState) -> bool:
        current = self.context.replica_states.setdefault(replica, ReplicaState.NON_EXISTENT)
        if current in VALID_PREVIOUS[target]:
            return True
        logger.error(
            "Replica %d of partition %s failed to change state to %s: invalid transition from %s",
            replica.replica,
            replica.partition,
            target.value,
            current.value,
        )
        return False

    def _set(self, replica: PartitionReplica, state: ReplicaState) -> None:
        self.context.replica_states[replica] = state

    async def _to_new(self, replicas: list[PartitionReplica]) -> None:
        async for each in over(replicas):
            partition, replica = each
            state = self.context.leadership.get(partition)
            if state is not None:
                if state.leader == replica:
                    logger.error(
                        "Replica %d for partition %s cannot be moved to NewReplica state as it is "
                        "being requested to become leader",
                        replica,
                        partition,
                    )
                    continue
                self.batch.add_leader_and_isr(
                    (replica,), partition, state, self.context.assignment(partition), is_new=True
                )
            self._set(each, ReplicaState.NEW)

    async def _to_online(self, replicas: list[PartitionReplica]) -> None:
        async for each in over(replicas):
            partition, replica = each
            assignment = self.context.assignment(partition)
            if self.context.replica_states[each] is ReplicaState.NEW:
                # Its broker got the LeaderAndIsr when the replica became new.
                if replica not in assignment.replicas:
                    logger.error(
                        "Adding replica %d of partition %s to its assignment %s",
                        replica,
                        partition,
                        list(assignment.replicas),
                    )
                    grown = assignment._replace(replicas=(*assignment.replicas, replica))
                    self.context.set_assignment(partition, grown)
            else:
                state = self.context.leadership.get(partition)
                if state is not None:
                    self.batch.add_leader_and_isr(
                        (replica,), partition, state, assignment, is_new=False
                    )
            self._set(each, ReplicaState.ONLINE)

    async def _to_offline(self, replicas: list[PartitionReplica]) -> None:
        context = self.context
        by_broker: dict[int, list[TopicPartition]] = {}
        async for partition, replica in over(replicas):
            self.batch.add_stop_replica((replica,), partition, delete=False)
            by_broker.setdefault(replica, []).append(partition)
        turn = Turn()
        for replica, partitions in by_broker.items():
            partitions_with_leaders = [each for each in partitions if each in context.leadership]
            shrunk = await self._remove_from_isr(replica, partitions_with_leaders)
            for partition in partitions:
                await turn.share()
                each = PartitionReplica(partition, replica)
                if partition in shrunk:
                    if not context.is_exempt_from_election(partition[0]):
                        assignment = context.assignment(partition)
                        others = [other for other in assignment.replicas if other != replica]
                        self.batch.add_leader_and_isr(
                            others, partition, shrunk[partition], assignment, is_new=False
                        )
                    self._set(each, ReplicaState.OFFLINE)
                elif partition not in context.leadership or context.is_exempt_from_election(
                    partition[0]
                ):
                    self.batch.add_update_metadata_to_all((partition,))
                    self._set(each, ReplicaState.OFFLINE)

    async def _remove_from_isr(
        self, replica: int, partitions: list[TopicPartition]
    ) -> dict[TopicPartition, LeaderAndIsr]:
        """Write the ISRs without `replica`; return the state of each successful partition."""
        done: dict[TopicPartition, LeaderAndIsr] = {}
        remaining = partitions
        for _attempt in range(MAX_WRITE_ATTEMPTS):
            if not remaining:
                break
            remaining = await self._try_remove_from_isr(replica, remaining, done)
        for partition in remaining:
            logger.error(
                "Failed to remove replica %d from the ISR of partition %s: it keeps changing",
                replica,
                partition,
            )
        return done

    async def _try_remove_from_isr(
        self,
        replica: int,
        partitions: list[TopicPartition],
        done: dict[TopicPartition, LeaderAndIsr],
    ) -> list[TopicPartition]:
        context = self.context
        wanted: dict[TopicPartition, LeaderAndIsr] = {}
        paths = [znodes.state_path(partition) for partition in partitions]
        found = await self.writer.store.get_many(paths)
        async for partition, node in over(zip(partitions, found, strict=True)):
            state = self._decode(partition, None if node is None else (node[0], node[1].version))
            if state is None:
                continue
            if replica in state.isr:
                leader = NO_LEADER if state.leader == replica else state.leader
                isr = state.isr
                if len(isr) > 1:  # the last replica in the ISR stays in it
                    isr = tuple(each for each in isr if each != replica)
                wanted[partition] = state.with_leader_and_isr(leader, isr)
            else:
                done[partition] = context.leadership[partition] = state
        finished, changed_meanwhile = await self.writer.update_states(wanted)
        async for partition, result in over(finished.items()):
            if isinstance(result, StoreError):
                logger.error(
                    "Failed to remove replica %d from the ISR of partition %s: %s",
                    replica,
                    partition,
                    result,
                )
            else:
                done[partition] = context.leadership[partition] = result
        return changed_meanwhile

    def _decode(
        self, partition: TopicPartition, node: tuple[bytes, int] | None
    ) -> LeaderAndIsr | None:
        if node is None:
            if partition[0] not in self.context.topics_to_delete:
                logger.error(
                    "Partition %s has no state znode: its leader and ISR stay as they are",
                    partition,
                    extra=partition._asdict(),
                )
            return None
        try:
            state = znodes.decode_state(partition, *node)
        except MalformedZnode as error:
            logger.error(
                "Ignoring the state of partition %s: %s",
                partition,
                error,
                extra=partition._asdict(),
            )
            return None
        if state.controller_epoch > self.context.epoch:
            logger.error(
                "The state of partition %s was written with controller epoch %d, ours is %d",
                partition,
                state.controller_epoch,
                self.context.epoch,
            )
            return None
        return state
