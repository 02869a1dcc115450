"""Leader elections by request (ElectLeaders), by znode, and by the auto leader rebalance.

Mirrors `processReplicaLeaderElection` and `processAutoPreferredReplicaLeaderElection` of
Kafka's `KafkaController`.
"""

import logging
from collections.abc import Iterable

from ottla.controller.errors import OK, ApiError, StateChangeFailed
from ottla.controller.model import NO_LEADER, LeaderAndIsr
from ottla.controller.settings import ControllerSettings
from ottla.controller.state.context import ControllerContext, PartitionState
from ottla.controller.state.fenced_writes import FencedWriter
from ottla.controller.state.leader_selection import ElectionStrategy, preferred_leader
from ottla.controller.state_machines.partitions import Outcomes, PartitionStateMachine
from ottla.controller.tree import znodes
from ottla.controller.tree.store import NoNode
from ottla.controller.tree.znode_json import MalformedZnode
from ottla.controller.tree.znodes_admin import decode_preferred_election
from ottla.protocol.errors import ErrorCode, error_name
from ottla.protocol.steps import over
from ottla.protocol.topics import TopicPartition

logger = logging.getLogger("ottla.controller")

PREFERRED = 0
UNCLEAN = 1
"""Election types of the ElectLeaders request (KIP-460)."""


class LeaderElections:
    """Preferred and unclean leader elections."""

    def __init__(
        self,
        context: ControllerContext,
        writer: FencedWriter,
        partitions: PartitionStateMachine,
    ) -> None:
        self.context = context
        self.writer = writer
        self.partitions = partitions

    async def elect(
        self, partitions: Iterable[TopicPartition] | None, election_type: int
    ) -> dict[TopicPartition, ApiError]:
        """ElectLeaders; with None for all partitions, those that need no election are left out."""
        everywhere = partitions is None
        wanted = list(self.context.partitions() if partitions is None else partitions)
        response: dict[TopicPartition, ApiError] = {}
        electable: list[TopicPartition] = []
        async for partition in over(wanted):
            error = self._validate(partition, election_type)
            if error is None:
                electable.append(partition)
            else:
                response[partition] = error
        strategy = (
            ElectionStrategy.UNCLEAN if election_type == UNCLEAN else ElectionStrategy.PREFERRED
        )
        outcomes = await self.partitions.handle_state_changes(
            electable, PartitionState.ONLINE, strategy
        )
        async for partition in over(electable):
            response[partition] = self._row(outcomes, partition, election_type)
        if everywhere:
            response = {
                partition: row
                for partition, row in response.items()
                if row.code != ErrorCode.ELECTION_NOT_NEEDED
            }
        return {partition: response[partition] for partition in wanted if partition in response}

    def _validate(self, partition: TopicPartition, election_type: int) -> ApiError | None:
        context = self.context
        if election_type not in (PREFERRED, UNCLEAN):
            return ApiError(ErrorCode.INVALID_REQUEST, f"Unknown election type {election_type}.")
        if not context.has_partition(partition):
            return ApiError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, "The partition does not exist.")
        if partition[0] in context.topics_to_delete:
            return ApiError(ErrorCode.INVALID_TOPIC_EXCEPTION, "The topic is being deleted")
        if not self._is_needed(partition, election_type):
            return ApiError(ErrorCode.ELECTION_NOT_NEEDED)
        return None

    def _is_needed(self, partition: TopicPartition, election_type: int) -> bool:
        state = self.context.leadership.get(partition)
        if state is None:
            return True
        if election_type == PREFERRED:
            # Without replicas, which only a tool can write, no replica can be elected.
            return state.leader not in self.context.assignment(partition).replicas[:1]
        return state.leader == NO_LEADER or not self.context.is_live(state.leader)

    @staticmethod
    def _row(outcomes: Outcomes, partition: TopicPartition, election_type: int) -> ApiError:
        outcome = outcomes.get(partition)
        if isinstance(outcome, LeaderAndIsr):
            return OK
        if outcome is None or isinstance(outcome, StateChangeFailed):
            code, strategy = ErrorCode.ELIGIBLE_LEADERS_NOT_AVAILABLE, ElectionStrategy.UNCLEAN
            if election_type == PREFERRED:
                code, strategy = (
                    ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE,
                    ElectionStrategy.PREFERRED,
                )
            # Kafka's words, and then the reason.
            return ApiError(
                code,
                f"Failed to elect leader for partition {partition} under strategy "
                f"{strategy.value}: {outcome or 'it has no leader.'}",
            )
        return ApiError(ErrorCode.UNKNOWN_SERVER_ERROR, str(outcome))

    async def on_znode(self) -> None:
        """Process `/admin/preferred_replica_election`, and delete it."""
        try:
            data, _ = await self.writer.store.get(znodes.PREFERRED_REPLICA_ELECTION)
        except NoNode:
            return
        try:
            partitions = decode_preferred_election(data)
        except MalformedZnode as error:
            logger.error("Deleting malformed preferred replica election: %s", error)
            partitions = []
        try:
            for partition, row in (await self.elect(partitions, PREFERRED)).items():
                if row.code:
                    logger.info(
                        "Preferred replica leader election for %s failed with error %s: %s",
                        partition,
                        error_name(row.code),
                        row.message,
                    )
        finally:
            await self.writer.delete_many([znodes.PREFERRED_REPLICA_ELECTION])

    async def auto_leader_rebalance(self, settings: ControllerSettings) -> None:
        """Elect preferred leaders for the brokers with a leader imbalance above the limit."""
        logger.debug("Processing automatic preferred replica leader election")
        context = self.context
        by_preferred: dict[int, list[TopicPartition]] = {}
        async for partition in over(context.partitions()):
            replicas = context.assignment(partition).replicas
            if replicas and partition[0] not in context.topics_to_delete:
                by_preferred.setdefault(replicas[0], []).append(partition)
        for broker_id, partitions in by_preferred.items():
            elsewhere = [
                partition
                async for partition in over(partitions)
                if partition in context.leadership
                and context.leadership[partition].leader != broker_id
            ]
            ratio = len(elsewhere) / len(partitions)
            if ratio * 100 <= settings.leader_imbalance_per_broker_percentage:
                continue
            candidates = [each async for each in over(elsewhere) if self._preferred_can_lead(each)]
            if candidates:
                logger.info(
                    "Processing automatic preferred replica leader election: leader imbalance "
                    "ratio for broker %d is %.2f, electing preferred leaders of %d partitions",
                    broker_id,
                    ratio,
                    len(candidates),
                )
                await self.partitions.handle_state_changes(
                    candidates, PartitionState.ONLINE, ElectionStrategy.PREFERRED
                )

    def _preferred_can_lead(self, partition: TopicPartition) -> bool:
        context = self.context
        replicas = context.assignment(partition).replicas
        live = [replica for replica in replicas if context.is_online(replica, partition)]
        return preferred_leader(replicas, context.leadership[partition].isr, live) is not None
