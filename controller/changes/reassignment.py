"""Partition reassignment (KIP-455); mirrors `onPartitionReassignment` of `KafkaController`.

During a reassignment the znode of the topic has all replicas, the target replicas first, and which
of them are being added and removed. The phases:

U   Update: znode, then context. Replicas that an earlier reassignment was adding and that are not
    in the new one are stopped and deleted. Until then the znode has them as both added and removed,
    so that a new controller stops them; Kafka's forgets them, and their logs stay.
A   While a target replica is not in the ISR: the leader epoch is incremented, LeaderAndIsr is sent
    to all replicas, the added ones become New. Then the controller waits for an ISR change.
B   When all target replicas are in the ISR: added replicas Online; assignment = targets in the
    context; leader among the targets (or only the next leader epoch, so that the leader gets the
    new assignment); removed replicas Offline, deleted, NonExistent; assignment = targets in the
    znode. The znode is last, since a new controller starts from it.

Each phase is written and sent for up to PARTITIONS_PER_BATCH partitions together: the znode of a
topic is read and written once for all of them, and a broker gets one request. A partition that
fails takes no part in the later phases of its batch. Larger requests are divided into batches,
between which the event queue handles other events.

Cancelling a reassignment is a reassignment to the original replicas. Requests come by
AlterPartitionReassignments or by `/admin/reassign_partitions`; the last one wins. Quotas are
settings of topics and brokers, and not known to the controller.
"""

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TypeVar

from ottla.controller.admin.topic_limits import MAX_TOPIC_BYTES
from ottla.controller.changes.topic_deletion import TopicDeletionManager
from ottla.controller.errors import OK, ApiError, StateChangeFailed
from ottla.controller.events.zk_watches import ZkWatches
from ottla.controller.model import (
    LeaderAndIsr,
    PartitionReplica,
    ReplicaAssignment,
    TopicState,
)
from ottla.controller.requests.request_batch import RequestBatch
from ottla.controller.state.context import ControllerContext, PartitionState, ReplicaState
from ottla.controller.state.fenced_writes import FencedWriter
from ottla.controller.state.leader_selection import ElectionStrategy
from ottla.controller.state_machines.partitions import MAX_WRITE_ATTEMPTS, PartitionStateMachine
from ottla.controller.state_machines.replicas import ReplicaStateMachine
from ottla.controller.tree import znodes
from ottla.controller.tree.store import BadVersion, NoNode, SetOp, StoreError
from ottla.controller.tree.znode_json import MalformedZnode
from ottla.controller.tree.znodes_admin import decode_reassignment, encode_reassignment
from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.protocol.listed import listed
from ottla.protocol.steps import over
from ottla.protocol.topics import TopicPartition

logger = logging.getLogger("ottla.controller")

T = TypeVar("T")

Targets = Mapping[TopicPartition, tuple[int, ...] | None]
"""Target replicas by partition; None cancels."""


Moves = dict[TopicPartition, ReplicaAssignment]
Failures = dict[TopicPartition, KafkaError | StateChangeFailed]

PARTITIONS_PER_BATCH = 50
"""A batch of these takes the controller some tens of milliseconds, which is how long an ISR change
or a failed broker waits for it. A batch of more would save little."""


def batches_of(targets: Mapping[TopicPartition, T]) -> Iterator[dict[TopicPartition, T]]:
    """Divide what is to be done by partition; without partitions there is one empty batch."""
    items = list(targets.items())
    for start in range(0, max(len(items), 1), PARTITIONS_PER_BATCH):
        yield dict(items[start : start + PARTITIONS_PER_BATCH])


class Reassignment:
    """Each phase is durable in the znode tree, so that a new controller resumes it."""

    def __init__(
        self,
        context: ControllerContext,
        writer: FencedWriter,
        partitions: PartitionStateMachine,
        replicas: ReplicaStateMachine,
        batch: RequestBatch,
        deletion: TopicDeletionManager,
        watches: ZkWatches,
    ) -> None:
        self.context = context
        self.writer = writer
        self.partitions = partitions
        self.replicas = replicas
        self.batch = batch
        self.deletion = deletion
        self.watches = watches

    # Events and requests

    async def load(self) -> None:
        """For a new controller: start those of the znode, then resume those in progress."""
        started: set[TopicPartition] = set()
        while rows := await self.on_znode():
            # Of one that failed, what was in progress before is resumed.
            started.update(partition for partition, row in rows.items() if not row.code)
        await self._resume(lambda partition, _: partition not in started)

    async def on_znode(self) -> dict[TopicPartition, ApiError]:
        """Start the next batch of `/admin/reassign_partitions`; return its rows, none at the end.

        Those in progress are left alone: the znode also changes whenever one of them is complete,
        and each start takes a leader epoch.
        """
        waiting = {
            partition: replicas
            for partition, replicas in (await self._znode_targets() or {}).items()
            if not self._is_moving_to(partition, replicas)
        }
        if not waiting:
            return {}
        targets = next(batches_of(waiting))
        outcome = await self._start(targets)
        failed = {partition: error for partition, error in outcome.items() if error.code}
        if failed:
            logger.warning(
                "Failed reassignments of /admin/reassign_partitions: %s",
                listed(f"{partition}: {error.message}" for partition, error in failed.items()),
            )
            await self._remove_from_znode(lambda partition, _: partition in failed)
        return outcome

    def _is_moving_to(self, partition: TopicPartition, targets: tuple[int, ...]) -> bool:
        # Also one whose assignment has its targets only, and waits for one that can lead.
        return (
            partition in self.context.partitions_being_reassigned
            and self.context.assignment(partition).target_replicas == targets
        )

    async def alter(
        self, targets: Targets, *, may_change_count: bool = True
    ) -> dict[TopicPartition, ApiError]:
        """AlterPartitionReassignments: a row for each partition of a batch."""
        response: dict[TopicPartition, ApiError] = {}
        accepted: dict[TopicPartition, tuple[int, ...]] = {}
        async for partition, replicas in over(targets.items()):
            assignment = self.context.assignment(partition)
            if replicas is None:
                if assignment.is_being_reassigned:
                    accepted[partition] = assignment.origin_replicas
                else:
                    response[partition] = ApiError(ErrorCode.NO_REASSIGNMENT_IN_PROGRESS)
                continue
            problem = self._validate(partition, replicas)
            if problem is None and not may_change_count:
                problem = _changed_count(assignment, replicas)
            if problem is None:
                accepted[partition] = replicas
            else:
                response[partition] = problem
        await self._remove_from_znode(lambda partition, _: partition in accepted)
        response.update(await self._start(accepted))
        return {partition: response[partition] for partition in targets}

    async def active_reassignments(
        self, partitions: Iterable[TopicPartition] | None
    ) -> dict[TopicPartition, ReplicaAssignment]:
        """The reassignments in progress, of the given partitions or of all."""
        wanted = self.context.partitions_being_reassigned if partitions is None else partitions
        found = {}
        async for partition in over(wanted):
            assignment = self.context.assignment(partition)
            if assignment.is_being_reassigned:
                found[partition] = assignment
        return found

    async def on_isr_change(self, partitions: Iterable[TopicPartition]) -> None:
        """The ISRs of partitions changed: complete the reassignments that can be completed."""
        moves = {
            partition: self.context.assignment(partition)
            for partition in partitions
            if partition in self.context.partitions_being_reassigned
        }
        for batch in batches_of(await self._completed(moves)):
            for partition, error in (await self._on_partition_reassignments(batch)).items():
                logger.error(
                    "Failed to complete reassignment of partition %s: %s", partition, error
                )

    async def resume_for_brokers(self, broker_ids: Iterable[int]) -> None:
        started = set(broker_ids)
        await self._resume(lambda _, assignment: not started.isdisjoint(assignment.target_replicas))

    async def _resume(self, wanted: Callable[[TopicPartition, ReplicaAssignment], bool]) -> None:
        moves = {
            partition: assignment
            for partition in self.context.partitions_being_reassigned
            if wanted(partition, assignment := self.context.assignment(partition))
        }
        for batch in batches_of(moves):
            for partition, error in (await self._on_partition_reassignments(batch)).items():
                logger.error("Failed to resume reassignment of partition %s: %s", partition, error)

    # Checks

    def _validate(self, partition: TopicPartition, replicas: tuple[int, ...]) -> ApiError | None:
        if not self.context.has_partition(partition):
            return ApiError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, "The partition does not exist.")
        invalid = ErrorCode.INVALID_REPLICA_ASSIGNMENT
        if not replicas:
            return ApiError(invalid, "Empty replica list specified in partition reassignment.")
        if len(set(replicas)) != len(replicas):
            return ApiError(
                invalid,
                f"Duplicate replica ids in partition reassignment replica list: {list(replicas)}",
            )
        if any(replica < 0 for replica in replicas):
            return ApiError(invalid, f"Invalid broker id in replica list: {list(replicas)}")
        adding = self.context.assignment(partition).reassign_to(replicas).adding
        if not all(self.context.is_live(replica) for replica in adding):
            return ApiError(
                invalid,
                f"Replica assignment has brokers that are not alive. Replica list: "
                f"{list(adding)}, live broker list: {self.context.live_broker_ids()}",
            )
        return None

    async def _start(
        self, targets: Mapping[TopicPartition, tuple[int, ...]]
    ) -> dict[TopicPartition, ApiError]:
        context = self.context
        rows: dict[TopicPartition, ApiError] = {}
        moves: Moves = {}
        for partition, replicas in targets.items():
            if partition[0] in context.topics_to_delete or not context.has_partition(partition):
                rows[partition] = ApiError(
                    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, "The partition does not exist."
                )
            else:
                moves[partition] = context.assignment(partition).reassign_to(replicas)
                rows[partition] = OK
        for partition, error in (await self._on_partition_reassignments(moves)).items():
            if isinstance(error, KafkaError):
                rows[partition] = ApiError(error.code, error.message)
                continue
            logger.error("Failed to complete reassignment of partition %s: %s", partition, error)
            rows[partition] = ApiError(ErrorCode.UNKNOWN_SERVER_ERROR, str(error))
        return rows

    async def _completed(self, moves: Moves) -> Moves:
        """Return the moves whose targets are all in the ISR."""
        states = await self._read_states(each for each in moves if moves[each].is_being_reassigned)
        return {
            partition: assignment
            for partition, assignment in moves.items()
            if not assignment.is_being_reassigned
            or (
                partition in states
                and set(assignment.target_replicas) <= set(states[partition].isr)
            )
        }

    async def _read_states(
        self, partitions: Iterable[TopicPartition]
    ) -> dict[TopicPartition, LeaderAndIsr]:
        """The states that can be read; the others are logged."""
        wanted = list(partitions)
        found: dict[TopicPartition, LeaderAndIsr] = {}
        nodes = await self.writer.store.get_many([znodes.state_path(each) for each in wanted])
        async for partition, node in over(zip(wanted, nodes, strict=True)):
            if node is None:
                logger.error("Failed to read the state of partition %s: no znode", partition)
                continue
            try:
                found[partition] = znodes.decode_state(partition, node[0], node[1].version)
            except MalformedZnode as error:
                logger.error("Failed to read the state of partition %s: %s", partition, error)
        return found

    # Phases

    async def _reassign_without_leader(
        self, partition: TopicPartition, targets: tuple[int, ...]
    ) -> None:
        """A partition that never had a leader has no data: it is created on the targets."""
        if await self.writer.store.exists(znodes.state_path(partition)) is not None:
            raise StateChangeFailed(f"The state of {partition} cannot be read: repair its znode")
        context = self.context
        before = context.assignment(partition)
        placed = ReplicaAssignment(targets)
        failures: Failures = {}
        await self._write({partition: placed}, failures)
        if failures:
            raise failures[partition]
        context.set_assignment(partition, placed)
        context.end_reassignment(partition)
        for replica in before.replicas:
            context.replica_states.pop(PartitionReplica(partition, replica), None)
        replicas = self._replicas(partition, targets)
        await self.replicas.handle_state_changes(replicas, ReplicaState.NEW)
        await self.partitions.handle_state_changes((partition,), PartitionState.ONLINE)
        await self.replicas.handle_state_changes(replicas, ReplicaState.ONLINE)
        await self._remove_from_znode(lambda each, _: each == partition)

    async def _on_partition_reassignments(self, moves: Moves) -> Failures:
        """Run the phases of a batch; return the errors of those that failed."""
        context = self.context
        failures: Failures = {}
        started: Moves = {}
        for partition, assignment in moves.items():
            if partition in context.leadership:
                # That of a new controller may have replaced replicas.
                started[partition] = assignment.without_replaced()
                continue
            try:
                await self._reassign_without_leader(partition, assignment.target_replicas)
            except StateChangeFailed as error:
                failures[partition] = error
        self.deletion.mark_ineligible_for_deletion(
            dict.fromkeys(partition[0] for partition in started), "topic reassignment in progress"
        )
        await self._update(started, failures)
        started = _without(started, failures)
        completed = await self._completed(started)
        await self._complete(completed, failures)
        waiting = {each: started[each] for each in started if each not in completed}
        await self._bump_leader_epochs(waiting, failures)  # A
        await self.replicas.handle_state_changes(
            [
                each
                for partition, assignment in _without(waiting, failures).items()
                for each in self._replicas(partition, assignment.adding)
                if context.replica_states.get(each, ReplicaState.NON_EXISTENT)
                is ReplicaState.NON_EXISTENT
            ],
            ReplicaState.NEW,
        )
        return failures

    @staticmethod
    def _replicas(partition: TopicPartition, ids: Iterable[int]) -> list[PartitionReplica]:
        return [PartitionReplica(partition, replica) for replica in ids]

    async def _update(self, moves: Moves, failures: Failures) -> None:
        context = self.context
        unneeded: dict[TopicPartition, tuple[int, ...]] = {}
        changed: Moves = {}
        for partition, assignment in moves.items():
            before = context.assignment(partition)
            if before != assignment:
                changed[partition] = assignment
                unneeded[partition] = tuple(
                    each for each in before.replicas if each not in assignment.replicas
                )
        await self._check_in_sync_replica_remains(changed, unneeded, failures)
        changed = _without(changed, failures)
        await self._write(
            {each: changed[each].with_replaced(unneeded[each]) for each in changed}, failures
        )
        changed = _without(changed, failures)
        for partition, assignment in changed.items():
            context.set_assignment(partition, assignment)
            context.begin_reassignment(partition)
        replaced = {each: unneeded[each] for each in changed if unneeded[each]}
        if replaced:
            await self._stop_replaced_replicas(changed, replaced, failures)
        for partition in _without(moves, failures):
            if not self.batch.versions.alter_partition:
                await self.watches.watch_state(partition)
            context.begin_reassignment(partition)

    async def _stop_replaced_replicas(
        self, moves: Moves, replaced: dict[TopicPartition, tuple[int, ...]], failures: Failures
    ) -> None:
        leaderless = [
            partition
            for partition, ids in replaced.items()
            if self.context.leadership[partition].leader in ids
        ]
        if leaderless:
            await self.partitions.handle_state_changes(
                leaderless, PartitionState.ONLINE, ElectionStrategy.OFFLINE
            )
        remaining = await self._stop_removed_replicas(replaced)
        stopped: Moves = {}
        for partition in replaced:
            assignment = moves[partition]
            if partition in remaining:
                self.context.set_assignment(
                    partition, assignment.with_replaced(remaining[partition])
                )
            else:
                stopped[partition] = assignment
        await self._write(stopped, failures)

    async def _check_in_sync_replica_remains(
        self, moves: Moves, unneeded: dict[TopicPartition, tuple[int, ...]], failures: Failures
    ) -> None:
        """Refuse a reassignment if no replica in the ISR would remain in the assignment."""
        states = await self._read_states(each for each in moves if unneeded[each])
        for partition, state in states.items():
            removed = unneeded[partition]
            survivors = [each for each in moves[partition].replicas if each in state.isr]
            if state.leader in removed:  # then another one has to be elected at once
                survivors = [each for each in survivors if self.context.is_online(each, partition)]
            if not survivors:
                failures[partition] = KafkaError(
                    ErrorCode.INVALID_REPLICA_ASSIGNMENT,
                    f"The reassignment would remove {removed} from {partition}, and no remaining "
                    f"replica is in the ISR {list(state.isr)}.",
                )

    async def _write(self, assignments: Moves, failures: Failures) -> None:
        """Write assignments into the znodes of their topics, once for all those of a topic."""
        left: dict[str, Moves] = {}
        for partition, assignment in assignments.items():
            left.setdefault(partition[0], {})[partition] = assignment
        for _attempt in range(MAX_WRITE_ATTEMPTS):
            if not left:
                return
            changes = await self._topic_changes(left, failures)
            outcomes = await self.writer.multi_many([[change] for change in changes.values()])
            for topic, outcome in zip(changes, outcomes, strict=True):
                if isinstance(outcome, BadVersion):
                    continue  # something else has changed it meanwhile: once more
                moves = left.pop(topic)
                if isinstance(outcome, NoNode):
                    _fail(moves, failures, f"Failed to write the assignment: {outcome}")
                elif isinstance(outcome, StoreError):
                    raise outcome
        for topic, moves in left.items():
            _fail(moves, failures, f"{znodes.topic_path(topic)} keeps changing")

    async def _topic_changes(self, left: dict[str, Moves], failures: Failures) -> dict[str, SetOp]:
        """The next data of these topics; those that cannot be written are removed from `left`."""
        changes: dict[str, SetOp] = {}
        paths = [znodes.topic_path(topic) for topic in left]
        nodes = await self.writer.store.get_many(paths)
        async for topic, node in over(list(zip(left, nodes, strict=True))):
            if node is None:
                _fail(left.pop(topic), failures, f"{znodes.topic_path(topic)} is gone")
                continue
            data, stat = node
            try:
                state = znodes.decode_topic(topic, data)
            except MalformedZnode as error:
                _fail(left.pop(topic), failures, f"Failed to write the assignment: {error}")
                continue
            after = self._encoded(topic, state, left[topic], len(data), failures)
            if left[topic]:
                changes[topic] = SetOp(znodes.topic_path(topic), after, stat.version)
            else:
                del left[topic]
        return changes

    def _encoded(
        self, topic: str, state: TopicState, moves: Moves, size: int, failures: Failures
    ) -> bytes:
        """A topic with the assignments of `moves`; those that do not fit are removed there."""
        known_id = self.context.topic_ids.get(topic, state.topic_id)
        while True:
            changed = {partition[1]: assignment for partition, assignment in moves.items()}
            after = znodes.encode_topic(TopicState(known_id, {**state.assignments, **changed}))
            if not moves or len(after) <= max(MAX_TOPIC_BYTES, size):
                return after
            last = next(reversed(moves))
            _fail(
                {last: moves.pop(last)},
                failures,
                f"{znodes.topic_path(topic)} would be too large: reassign fewer partitions of it "
                "at a time",
            )

    async def _stop_removed_replicas(
        self, removed: Mapping[TopicPartition, tuple[int, ...]]
    ) -> dict[TopicPartition, tuple[int, ...]]:
        """Remove replicas from the ISRs, and stop and delete them; return those that remain because
        the ISR could not be written.

        A broker that is down renames its log as a stray when it starts.
        """
        replicas = [
            each for partition, ids in removed.items() for each in self._replicas(partition, ids)
        ]
        for replica in replicas:  # one that is only in the ISR has no state yet
            self.context.replica_states.setdefault(replica, ReplicaState.ONLINE)
        for state in (
            ReplicaState.OFFLINE,
            ReplicaState.DELETION_STARTED,
            ReplicaState.DELETION_SUCCESSFUL,
            ReplicaState.NON_EXISTENT,
        ):
            await self.replicas.handle_state_changes(replicas, state)
        remaining: dict[TopicPartition, tuple[int, ...]] = {}
        for partition, ids in removed.items():
            left = tuple(each for each in ids if self._is_replica(partition, each))
            if left:
                remaining[partition] = left
        return remaining

    async def _complete(self, moves: Moves, failures: Failures) -> None:
        if not moves:
            return
        context = self.context
        await self.replicas.handle_state_changes(
            [
                each
                for partition, assignment in moves.items()
                for each in self._replicas(partition, assignment.adding)
            ],
            ReplicaState.ONLINE,
        )
        done = {each: ReplicaAssignment(moves[each].target_replicas) for each in moves}
        for partition, assignment in done.items():
            context.set_assignment(partition, assignment)
        await self._move_leaders_if_required(done, failures)
        removed: dict[TopicPartition, tuple[int, ...]] = {}
        for partition, assignment in done.items():
            if partition in failures:
                # What is resumed later, or replaced, must know of the replicas to be removed.
                context.set_assignment(partition, moves[partition])
            elif context.leadership[partition].leader not in assignment.replicas:
                # The targets are in the ISR but none can be elected now (shutting down, offline log
                # directory): the old replicas stay until one can.
                logger.warning(
                    "Reassignment of partition %s is delayed: no target replica can become leader",
                    partition,
                    extra=partition._asdict(),
                )
                context.set_assignment(partition, moves[partition])
            else:
                removed[partition] = (
                    *moves[partition].removing,
                    *self._unassigned(partition, moves[partition]),
                )
        remaining = await self._stop_removed_replicas(removed)
        for partition, ids in remaining.items():
            context.set_assignment(partition, moves[partition])
            _fail(
                {partition: moves[partition]},
                failures,
                f"Failed to remove the replicas {ids} of {partition}",
            )
        finished = {each: done[each] for each in removed if each not in remaining}
        for partition, assignment in finished.items():
            # That removed the stopped replicas from the assignment in the context as well.
            context.set_assignment(partition, assignment)
        await self._write(finished, failures)
        await self._finish(_without(finished, failures))

    def _unassigned(self, partition: TopicPartition, assignment: ReplicaAssignment) -> list[int]:
        """Replicas of an earlier target, which could not be removed when it was replaced."""
        context = self.context
        return [
            each
            for each in dict.fromkeys((*context.leadership[partition].isr, *context.brokers))
            if each not in assignment.target_replicas
            and each not in assignment.removing
            and self._is_replica(partition, each)
        ]

    async def _finish(self, done: Moves) -> None:
        if not done:
            return
        context = self.context
        for partition in done:
            self.watches.unwatch_state(partition)
        await self._remove_from_znode(
            lambda each, replicas: each in done and replicas == done[each].replicas
        )
        for partition, assignment in done.items():
            context.end_reassignment(partition)
            logger.debug(
                "Completed reassignment of partition %s to %s", partition, assignment.replicas
            )
        logger.info(
            "Completed reassignment of %d partitions, %d are left: %s",
            len(done),
            len(context.partitions_being_reassigned),
            listed(f"{each} to {list(done[each].replicas)}" for each in done),
        )
        self.batch.add_update_metadata_to_all(done)
        await self.batch.send(context.epoch)
        await self.deletion.resume_deletion_for_topics(dict.fromkeys(each[0] for each in done))

    def _is_replica(self, partition: TopicPartition, broker_id: int) -> bool:
        """Whether the broker has a replica, also one that is not in the assignment any more."""
        replica = PartitionReplica(partition, broker_id)
        return (
            broker_id in self.context.leadership[partition].isr
            or self.context.replica_states.get(replica, ReplicaState.NON_EXISTENT)
            is not ReplicaState.NON_EXISTENT
        )

    async def _move_leaders_if_required(self, done: Moves, failures: Failures) -> None:
        staying: Moves = {}
        moving: list[TopicPartition] = []
        for partition, assignment in done.items():
            state = self.context.leadership.get(partition)
            if (
                state is not None
                and state.leader in assignment.replicas
                and self.context.is_online(state.leader, partition)
            ):
                staying[partition] = assignment
            else:
                moving.append(partition)
        await self._bump_leader_epochs(staying, failures)
        await self.partitions.handle_state_changes(
            moving, PartitionState.ONLINE, ElectionStrategy.REASSIGN
        )

    async def _bump_leader_epochs(self, moves: Moves, failures: Failures) -> None:
        """Increment leader epochs, so that brokers apply the new assignments."""
        context = self.context
        left = dict(moves)
        for _attempt in range(MAX_WRITE_ATTEMPTS):
            if not left:
                break
            states = await self._read_states(left)
            for partition in [each for each in left if each not in states]:
                _fail(
                    {partition: left.pop(partition)},
                    failures,
                    f"Partition {partition} has no state znode",
                )
            newer = [each for each in left if states[each].controller_epoch > context.epoch]
            for partition in newer:
                _fail(
                    {partition: left.pop(partition)},
                    failures,
                    f"The state of {partition} was written with a higher controller epoch",
                )
            finished, _ = await self.writer.update_states(
                {each: states[each].with_next_epoch() for each in left}
            )
            for partition, result in finished.items():
                assignment = left.pop(partition)
                if isinstance(result, StoreError):
                    _fail(
                        {partition: assignment},
                        failures,
                        f"Failed to write the state of {partition}: {result}",
                    )
                    continue
                context.leadership[partition] = result
                # Added replicas are created in any log directory; an old one without a log is
                # offline, not new.
                for ids, is_new in ((assignment.origin_replicas, False), (assignment.adding, True)):
                    self.batch.add_leader_and_isr(ids, partition, result, assignment, is_new=is_new)
        for partition in left:
            failures[partition] = StateChangeFailed(f"The state of {partition} keeps changing")
        await self.batch.send(context.epoch)

    # The znode

    async def _znode_targets(self) -> dict[TopicPartition, tuple[int, ...]] | None:
        try:
            data, _ = await self.writer.store.get(znodes.REASSIGN_PARTITIONS)
            return decode_reassignment(data)
        except NoNode:
            return None
        except MalformedZnode as error:
            logger.error("Deleting malformed partition reassignment: %s", error)
            await self.writer.delete_many([znodes.REASSIGN_PARTITIONS])
            return None

    async def _remove_from_znode(
        self, done: Callable[[TopicPartition, tuple[int, ...]], bool]
    ) -> None:
        """Remove completed, failed or replaced partitions from it; delete it when empty."""
        targets = await self._znode_targets()
        if targets is None:
            return
        remaining = {each: to for each, to in targets.items() if not done(each, to)}
        if not remaining:
            await self.writer.delete_many([znodes.REASSIGN_PARTITIONS])
        elif len(remaining) != len(targets):
            await self.writer.set(znodes.REASSIGN_PARTITIONS, encode_reassignment(remaining))


def _without(moves: Moves, failures: Failures) -> Moves:
    return {each: moves[each] for each in moves if each not in failures}


def _fail(moves: Moves, failures: Failures, reason: str) -> None:
    failures.update(dict.fromkeys(moves, StateChangeFailed(reason)))


def _changed_count(assignment: ReplicaAssignment, replicas: tuple[int, ...]) -> ApiError | None:
    before = len(assignment.target_replicas)  # of a reassignment in progress: where it is heading
    if len(replicas) == before:
        return None
    text = f"The replication factor is changed from {before} to {len(replicas)}"
    return ApiError(ErrorCode.INVALID_REPLICATION_FACTOR, text)
