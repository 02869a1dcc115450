"""Who joins and who leaves the in-sync replicas of the partitions led here.

The leader proposes, the controller decides (AlterPartition, KIP-497). While a proposal is on its
way the high watermark waits for the larger of the two sets: a follower that is about to join counts
at once, one that is about to leave still counts. Mirrors the ISR half of Kafka's `Partition`.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from typing import NamedTuple, Protocol

from ottla.broker.replication.partition import Partition
from ottla.broker.replication.replica import FollowerReplica
from ottla.protocol.errors import ErrorCode, error_name

logger = logging.getLogger("ottla.replication")

# Responses after which the controller will tell us the truth by itself: the proposal stays
# pending until its LeaderAndIsr request comes.
_WAIT_FOR_CONTROLLER = frozenset(
    (
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.UNKNOWN_TOPIC_ID,
        ErrorCode.FENCED_LEADER_EPOCH,
        ErrorCode.INVALID_UPDATE_VERSION,
        ErrorCode.INVALID_REQUEST,
        ErrorCode.NEW_LEADER_ELECTED,
    )
)
# Responses that say: not done, and what you had is right.
_REFUSED = frozenset((ErrorCode.OPERATION_NOT_ATTEMPTED, ErrorCode.INELIGIBLE_REPLICA))


class IsrProposal(NamedTuple):
    """What the controller is asked for, with the epochs that fence it."""

    partition: Partition
    new_isr: list[int]
    leader_epoch: int
    partition_epoch: int


class IsrDecision(NamedTuple):
    """What the controller answered: an error, or the state that holds now."""

    error_code: int
    isr: list[int]
    leader_epoch: int
    partition_epoch: int


class IsrSubmitter(Protocol):
    """Carries proposals to the controller; see `alter_partition.AlterPartitionManager`."""

    def submit(self, proposal: IsrProposal, on_decision: Callable[[IsrDecision], None]) -> None: ...


class IsrManager:
    """Proposes changes of in-sync replicas. Loop only."""

    def __init__(
        self, submitter: IsrSubmitter, on_high_watermark: Callable[[Partition], None]
    ) -> None:
        """`on_high_watermark` is told when a decision moved a high watermark."""
        self._submitter = submitter
        self._on_high_watermark = on_high_watermark
        self.expands_total = 0
        self.shrinks_total = 0
        self.failed_updates_total = 0

    def maybe_expand(self, partition: Partition, follower: FollowerReplica) -> None:
        """Proposes `follower` when it has caught up with the high watermark in this epoch."""
        broker_id = follower.broker_id
        if partition.pending_isr is not None or broker_id in partition.isr:
            return
        log = partition.log
        if (
            log is None
            or not partition.is_leader
            or follower.log_end_offset < log.high_watermark
            or follower.log_end_offset < partition.leader_epoch_start_offset
            or not partition.context.is_alive(broker_id)
        ):
            return
        new_isr = partition.isr | {broker_id}
        partition.maximal_isr = new_isr
        self._propose(partition, new_isr)

    def maybe_shrink(self, partitions: Iterable[Partition]) -> None:
        """Proposes to drop the followers that lag for too long, for every partition led here."""
        for partition in partitions:
            log = partition.log
            if log is None or not partition.is_leader or partition.pending_isr is not None:
                continue
            context = partition.context
            now_ms = context.now_ms()
            slow = set()
            for broker_id in partition.isr:
                if broker_id == context.broker_id:
                    continue
                follower = partition.followers.get(broker_id)
                if follower is None or not follower.is_caught_up(
                    log.log_end_offset, now_ms, context.lag_time_max_ms
                ):
                    slow.add(broker_id)
            if slow:
                logger.info(
                    "%s: brokers %s lag for more than %d ms and leave the in-sync replicas %s",
                    partition.key,
                    sorted(slow),
                    context.lag_time_max_ms,
                    sorted(partition.isr),
                    extra=partition.key._asdict(),
                )
                # The high watermark goes on waiting for them until the controller agrees.
                self._propose(partition, partition.isr - slow)

    def _propose(self, partition: Partition, new_isr: frozenset[int]) -> None:
        partition.pending_isr = new_isr
        # The order of the assignment, so that the preferred leader stays first.
        ordered = [broker_id for broker_id in partition.replicas if broker_id in new_isr]
        proposal = IsrProposal(
            partition, ordered, partition.leader_epoch, partition.partition_epoch
        )
        self._submitter.submit(
            proposal, lambda decision: self._decided(proposal, new_isr, decision)
        )

    def _decided(
        self, proposal: IsrProposal, proposed: frozenset[int], decision: IsrDecision
    ) -> None:
        partition = proposal.partition
        if partition.pending_isr is not proposed or partition.leader_epoch != proposal.leader_epoch:
            return  # A LeaderAndIsr request has settled it meanwhile.
        error_code = decision.error_code
        if error_code == ErrorCode.NONE:
            if decision.leader_epoch != partition.leader_epoch:
                return
            if decision.partition_epoch < partition.partition_epoch:
                return
            if len(decision.isr) > len(partition.isr):
                self.expands_total += 1
            else:
                self.shrinks_total += 1
            partition.set_isr(frozenset(decision.isr))
            partition.partition_epoch = decision.partition_epoch
            logger.info(
                "%s: in-sync replicas are %s now",
                partition.key,
                decision.isr,
                extra=partition.key._asdict(),
            )
            if partition.maybe_increment_high_watermark():
                self._on_high_watermark(partition)
            return
        self.failed_updates_total += 1
        if error_code in _REFUSED:
            partition.set_isr(partition.isr)
        elif error_code not in _WAIT_FOR_CONTROLLER:
            logger.warning(
                "%s: the controller did not change the in-sync replicas (%s), asking again",
                partition.key,
                error_name(error_code),
                extra=partition.key._asdict(),
            )
            self._submitter.submit(proposal, lambda again: self._decided(proposal, proposed, again))
