"""Expands and shrinks the ISR of the partitions that this broker leads.

Mirrors `maybeExpandIsr` and `maybeShrinkIsr` of Kafka's `Partition` (AlterPartition, KIP-497): the
leader proposes an ISR, the controller commits it. While a request is in flight the high watermark
waits for the maximal ISR: a follower that is being added counts already, one that is being removed
still counts.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Iterable
from itertools import islice
from typing import TYPE_CHECKING, Any, NamedTuple

from ottla.broker.cluster.broker_epoch import UNKNOWN_BROKER_EPOCH
from ottla.broker.replication.partition import NEVER, FollowerReplica, Partition
from ottla.broker.runtime.tasks import spawn
from ottla.protocol.errors import ErrorCode, error_name
from ottla.protocol.listed import listed
from ottla.protocol.messages.alter_partition import (
    AlterPartitionRequest,
    AlterPartitionRequestPartitionData,
    AlterPartitionRequestTopicData,
    AlterPartitionResponse,
    BrokerState,
)
from ottla.protocol.topics import TopicPartition
from ottla.protocol.uuids import ZERO_UUID

if TYPE_CHECKING:
    from ottla.broker.runtime.timer import DelayQueue
    from ottla.protocol.steps import Steps


logger = logging.getLogger("ottla.replication")

# The controller has a newer state than this leader: the change stays pending until its LeaderAndIsr
# request arrives.
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
# The controller refused the change, and the committed ISR holds.
_REFUSED = frozenset((ErrorCode.OPERATION_NOT_ATTEMPTED, ErrorCode.INELIGIBLE_REPLICA))

# There is a higher leader epoch, or the topic is gone. The LeaderAndIsr or StopReplica that says
# so is usually on its way, and may keep this leader: only without it the leader steps down.
_FENCED = frozenset((ErrorCode.FENCED_LEADER_EPOCH, ErrorCode.UNKNOWN_TOPIC_ID))
_FENCED_WAIT_MS = 5_000

# The delay of a retry after an error of the partition; it doubles.
_MIN_RETRY_MS = 50
_MAX_RETRY_MS = 1_000
# A refused follower continues to fetch, and each fetch would propose it again.
_REFUSED_WAIT_MS = 200


class IsrProposal(NamedTuple):
    """The ISR for an AlterPartition request, with the epochs that fence it.

    `broker_epochs` are those of the last fetches of the followers, as they were when the change was
    proposed: a follower that has restarted since is refused by the controller (KIP-903).
    """

    partition: Partition
    new_isr: list[int]
    leader_epoch: int
    partition_epoch: int
    broker_epochs: dict[int, int]


class IsrDecision(NamedTuple):
    """A partition in the response to AlterPartition: an error, or the committed state."""

    error_code: int
    isr: list[int]
    leader_epoch: int
    partition_epoch: int


class _Change(NamedTuple):
    """An ISR before and after, for a line of the log that lists many."""

    key: TopicPartition
    before: frozenset[int]
    after: frozenset[int]

    def __str__(self) -> str:
        return f"{self.key} from {_ids(self.before)} to {_ids(self.after)}"


class IsrManager:
    """Expands and shrinks the ISR of partitions. Loop only."""

    def __init__(
        self,
        submitter: AlterPartitionManager,
        on_isr: Callable[[Partition], None],
        on_fenced: Callable[[Partition], None],
        timer: DelayQueue,
    ) -> None:
        """`on_isr` is called when a committed ISR may have advanced a high watermark.

        `on_fenced` is called when the controller has a higher leader epoch, or not this topic, and
        no LeaderAndIsr or StopReplica has followed.
        """
        self._submitter = submitter
        self._on_fenced = on_fenced
        self._timer = timer
        self._on_isr = on_isr
        self.expands_total = 0
        self.shrinks_total = 0
        self.failed_updates_total = 0

    def maybe_expand(self, partition: Partition, follower: FollowerReplica) -> None:
        """Adds `follower` if it has caught up with the high watermark in this leader epoch."""
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
            or partition.context.now_ms() < follower.refused_until_ms
        ):
            return
        new_isr = partition.isr | {broker_id}
        if logger.isEnabledFor(logging.DEBUG):
            logger.debug(
                "[Partition %s] Expanding ISR from %s to %s",
                partition.key,
                _ids(partition.isr),
                _ids(new_isr),
                extra=partition.key._asdict(),
            )
        partition.maximal_isr = new_isr
        self._propose(partition, new_isr)

    def maybe_shrink(self, partitions: Iterable[Partition]) -> Steps[None]:
        """Remove the followers that lag for more than `replica.lag.time.max.ms`.

        May pause between two partitions: each is checked and changed in one step.
        Records that waited for such a follower that has not joined are committed.
        """
        shrinking: list[_Change] = []
        lag_ms = 0
        for partition in partitions:
            yield
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
                lag_ms = context.lag_time_max_ms
                shrinking.append(_Change(partition.key, partition.isr, partition.isr - slow))
                # The high watermark waits for them until the controller has committed the change.
                self._propose(partition, partition.isr - slow)
            elif (
                # It may wait for a follower that had caught up and has died before it joined; then
                # nothing else happens here until the next append.
                log.high_watermark < log.log_end_offset
                and partition.maybe_increment_high_watermark()
            ):
                self._on_isr(partition)
        if shrinking:
            logger.info(
                "Shrinking the ISRs of %d partitions, replicas out of sync for more than %d ms: %s",
                len(shrinking),
                lag_ms,
                listed(shrinking),
            )

    def _propose(self, partition: Partition, new_isr: frozenset[int]) -> None:
        partition.pending_isr = new_isr
        # In the order of the assignment, so that the preferred leader stays first.
        ordered = [broker_id for broker_id in partition.replicas if broker_id in new_isr]
        followers = partition.followers
        proposal = IsrProposal(
            partition,
            ordered,
            partition.leader_epoch,
            partition.partition_epoch,
            {each: followers[each].broker_epoch for each in ordered if each in followers},
        )
        self._submit(proposal, new_isr, 0)

    def _submit(self, proposal: IsrProposal, proposed: frozenset[int], failures: int) -> None:
        """Nothing happens when the proposal was superseded while a retry was delayed."""
        if _is_pending(proposal, proposed):
            self._submitter.submit(
                proposal, lambda decision: self._decided(proposal, proposed, decision, failures)
            )

    def _decided(
        self,
        proposal: IsrProposal,
        proposed: frozenset[int],
        decision: IsrDecision,
        failures: int,
    ) -> None:
        partition = proposal.partition
        if not _is_pending(proposal, proposed):
            return  # A LeaderAndIsr request has set the ISR meanwhile.
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
            if logger.isEnabledFor(logging.DEBUG):
                logger.debug(
                    "[Partition %s] ISR updated to %s and version updated to %d",
                    partition.key,
                    _ids(decision.isr),
                    decision.partition_epoch,
                    extra=partition.key._asdict(),
                )
            partition.maybe_increment_high_watermark()
            self._on_isr(partition)
            return
        self.failed_updates_total += 1
        if error_code in _REFUSED:
            for broker_id in proposed - partition.isr:
                # Such as a broker that is shutting down: the high watermark does not wait for it,
                # unless it fetches again.
                follower = partition.followers.get(broker_id)
                if follower is not None:
                    follower.last_caught_up_ms = NEVER
                    follower.refused_until_ms = partition.context.now_ms() + _REFUSED_WAIT_MS
            partition.set_isr(partition.isr)
            # Nothing else may happen in the partition soon: the follower may be gone, and no
            # record may follow the one that waited for it.
            if partition.maybe_increment_high_watermark():
                self._on_isr(partition)
        elif error_code in _FENCED:
            self._timer.schedule(_FENCED_WAIT_MS, lambda: self._step_down(proposal, proposed))
        elif error_code not in _WAIT_FOR_CONTROLLER:
            logger.warning(
                "[Partition %s] Failed to update ISR to %s due to %s, retrying",
                partition.key,
                _ids(proposal.new_isr),
                error_name(error_code),
                extra=partition.key._asdict(),
            )
            delay_ms = min(_MIN_RETRY_MS << min(failures, 10), _MAX_RETRY_MS)
            self._timer.schedule(delay_ms, lambda: self._submit(proposal, proposed, failures + 1))

    def _step_down(self, proposal: IsrProposal, proposed: frozenset[int]) -> None:
        if _is_pending(proposal, proposed) and proposal.partition.is_leader:
            self._on_fenced(proposal.partition)


def _is_pending(proposal: IsrProposal, proposed: frozenset[int]) -> bool:
    partition = proposal.partition
    return partition.pending_isr is proposed and partition.leader_epoch == proposal.leader_epoch


def _ids(brokers: Iterable[int]) -> str:
    return ",".join(str(broker_id) for broker_id in sorted(brokers))


_RETRY_SECONDS = 0.05

# Changes in one request: a broker that restarts joins the ISR of thousands of partitions at once.
# A controller writes this number in some tens of milliseconds; the others wait for the response.
MAX_CHANGES = 800

Decided = Callable[[IsrDecision], None]
# Builds the request in a version.
Build = Callable[[int], AlterPartitionRequest]
# Called with the newest version that can be built; sends the newest that the controller has, too.
Send = Callable[[int, Build], Coroutine[Any, Any, AlterPartitionResponse]]

# Versions before 2 have topic names, and since then topic ids; version 3 has broker epochs.
_NEWEST_VERSION = 3
_NEWEST_VERSION_WITH_NAMES = 1


class AlterPartitionManager:
    """Sends ISR changes to the controller, many in one request. Loop only."""

    def __init__(self, send: Send) -> None:
        self._send = send
        # One entry a partition: bounded by what this broker hosts.
        self._waiting: dict[TopicPartition, tuple[IsrProposal, Decided]] = {}
        self._task: asyncio.Task[None] | None = None

    def submit(self, proposal: IsrProposal, on_decision: Decided) -> None:
        """Queues a change; it replaces one for the same partition that was not sent yet."""
        self._waiting[proposal.partition.key] = (proposal, on_decision)
        if self._task is None or self._task.done():
            self._task = spawn(self._run(), name="alter-partition")

    async def _run(self) -> None:
        is_failing = False
        while self._waiting:
            batch = dict(islice(self._waiting.items(), MAX_CHANGES))
            for key in batch:
                del self._waiting[key]
            problem: object = None
            try:
                response = await self._send(_newest_version(batch), _builder(batch))
                if response.error_code != ErrorCode.NONE:
                    problem = error_name(response.error_code)
            except Exception as error:
                problem = error or type(error).__name__
            if problem is None:
                is_failing = False
                changed = _decide(batch, response)
                if changed:
                    logger.info(
                        "The ISRs of %d partitions changed: %s", len(changed), listed(changed)
                    )
                continue
            if not is_failing:
                is_failing = True
                logger.warning(
                    "Failed to send AlterPartition to the controller, retrying: %s", problem
                )
            # A change that was submitted meanwhile is newer.
            self._waiting = {**batch, **self._waiting}
            await asyncio.sleep(_RETRY_SECONDS)


def _newest_version(batch: dict[TopicPartition, tuple[IsrProposal, Decided]]) -> int:
    ids = all(proposal.partition.topic_id != ZERO_UUID for proposal, _ in batch.values())
    return _NEWEST_VERSION if ids else _NEWEST_VERSION_WITH_NAMES


def _builder(batch: dict[TopicPartition, tuple[IsrProposal, Decided]]) -> Build:
    return lambda version: _request(batch, version)


def _request(
    batch: dict[TopicPartition, tuple[IsrProposal, Decided]], version: int
) -> AlterPartitionRequest:
    """The request for a batch; each version has fields that others do not have."""
    topics: dict[str, AlterPartitionRequestTopicData] = {}
    for key, (proposal, _) in batch.items():
        topic = topics.get(key.topic)
        if topic is None:
            topic = topics[key.topic] = AlterPartitionRequestTopicData()
            if version > _NEWEST_VERSION_WITH_NAMES:
                topic.topic_id = proposal.partition.topic_id
            else:
                topic.topic_name = key.topic
        row = AlterPartitionRequestPartitionData(
            partition_index=key.partition,
            leader_epoch=proposal.leader_epoch,
            partition_epoch=proposal.partition_epoch,
        )
        if version >= _NEWEST_VERSION:
            # The leader itself is fenced by the broker epoch of the request.
            row.new_isr_with_epochs = [
                BrokerState(broker_id, proposal.broker_epochs.get(broker_id, UNKNOWN_BROKER_EPOCH))
                for broker_id in proposal.new_isr
            ]
        else:
            row.new_isr = proposal.new_isr
        topic.partitions.append(row)
    return AlterPartitionRequest(topics=list(topics.values()))


def _decide(
    batch: dict[TopicPartition, tuple[IsrProposal, Decided]], response: AlterPartitionResponse
) -> list[_Change]:
    """Apply the rows of a response; return the ISRs that changed."""
    changed: list[_Change] = []
    by_id = {proposal.partition.topic_id: key.topic for key, (proposal, _) in batch.items()}
    for topic in response.topics:
        name = topic.topic_name or by_id.get(topic.topic_id, "")
        for row in topic.partitions:
            entry = batch.pop(TopicPartition(name, row.partition_index), None)
            if entry is None:
                continue
            partition = entry[0].partition
            before = partition.isr
            entry[1](IsrDecision(row.error_code, row.isr, row.leader_epoch, row.partition_epoch))
            if partition.isr != before:
                changed.append(_Change(partition.key, before, partition.isr))
    for proposal, decided in batch.values():
        # Missing in the response: nothing was changed.
        decided(IsrDecision(ErrorCode.OPERATION_NOT_ATTEMPTED, [], proposal.leader_epoch, -1))
    return changed
