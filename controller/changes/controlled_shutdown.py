"""Controlled shutdown: the leaders on a broker are moved before it stops (KIP-49, KIP-380)."""

import logging

from ottla.controller.model import PartitionReplica
from ottla.controller.requests.request_batch import RequestBatch
from ottla.controller.state.context import ControllerContext, PartitionState, ReplicaState
from ottla.controller.state.leader_selection import ElectionStrategy
from ottla.controller.state_machines.partitions import PartitionStateMachine
from ottla.controller.state_machines.replicas import ReplicaStateMachine
from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.protocol.topics import TopicPartition

logger = logging.getLogger("ottla.controller")


class ControlledShutdown:
    """Mirrors ``doControlledShutdown`` of Kafka's ``KafkaController``."""

    def __init__(
        self,
        context: ControllerContext,
        partitions: PartitionStateMachine,
        replicas: ReplicaStateMachine,
        batch: RequestBatch,
    ) -> None:
        self.context = context
        self.partitions = partitions
        self.replicas = replicas
        self.batch = batch

    async def shut_down(self, broker_id: int, broker_epoch: int) -> list[TopicPartition]:
        """Moves the leaders; returns the partitions that the broker still leads.

        The broker is marked as shutting down until its znode is deleted: it is not elected as
        leader and does not join an ISR. Raises KafkaError STALE_BROKER_EPOCH or
        BROKER_NOT_AVAILABLE.
        """
        context = self.context
        broker = context.brokers.get(broker_id)
        if broker is None:
            raise KafkaError(
                ErrorCode.BROKER_NOT_AVAILABLE, f"Broker id {broker_id} does not exist."
            )
        if broker_epoch not in (-1, broker.epoch) and broker_epoch < broker.epoch:
            raise KafkaError(
                ErrorCode.STALE_BROKER_EPOCH,
                f"Received controlled shutdown request from an old broker epoch {broker_epoch} "
                f"for broker {broker_id}. Current broker epoch is {broker.epoch}.",
            )
        logger.info("Shutting down broker %d", broker_id)
        context.shutting_down.add(broker_id)
        leading: list[TopicPartition] = []
        following: list[TopicPartition] = []
        for partition in context.partitions_on(broker_id):
            state = context.leadership.get(partition)
            replicas = context.assignment(partition).replicas
            if state is None or len(replicas) < 2 or partition[0] in context.topics_to_delete:
                continue
            (leading if state.leader == broker_id else following).append(partition)
        await self.partitions.handle_state_changes(
            leading, PartitionState.ONLINE, ElectionStrategy.CONTROLLED_SHUTDOWN
        )
        for partition in following:  # it stops fetching before it is removed from the ISR
            self.batch.add_stop_replica((broker_id,), partition, delete=False)
        await self.batch.send(context.epoch)
        await self.replicas.handle_state_changes(
            [
                replica
                for replica in (PartitionReplica(partition, broker_id) for partition in following)
                if context.replica_states.get(replica)
                in (
                    ReplicaState.NEW,
                    ReplicaState.ONLINE,
                    ReplicaState.OFFLINE,
                    ReplicaState.DELETION_INELIGIBLE,
                )
            ],
            ReplicaState.OFFLINE,
        )
        return context.partitions_led_by(broker_id)
