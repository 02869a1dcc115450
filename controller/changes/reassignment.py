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

Cancelling a reassignment is a reassignment to the original replicas. Requests come by
AlterPartitionReassignments or by `/admin/reassign_partitions`; the last one wins. Quotas are
settings of topics and brokers, and not known to the controller.
"""

import logging
from collections.abc import Callable, Iterable, Mapping

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
from ottla.controller.tree.store import BadVersion, NoNode, StoreError
from ottla.controller.tree.znode_json import MalformedZnode
from ottla.controller.tree.znodes_admin import decode_reassignment, encode_reassignment
from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.protocol.listed import listed
from ottla.protocol.steps import over
from ottla.protocol.topics import TopicPartition

logger = logging.getLogger("ottla.controller")

Targets = Mapping[TopicPartition, tuple[int, ...] | None]
"""Target replicas by partition; None cancels."""


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
        """For a new controller: starts those of the znode, then resumes those in progress."""
        from_znode = await self.on_znode()
        await self._resume(lambda partition, _: partition not in from_znode)

    async def on_znode(self) -> set[TopicPartition]:
        """Starts those of `/admin/reassign_partitions`; returns the valid ones.

        Those in progress are left alone: the znode also changes whenever one of them is complete,
        and each start takes a leader epoch.
        """
        targets = await self._znode_targets()
        if targets is None:
            return set()
        outcome = {
            partition: await self._start(partition, replicas)
            for partition, replicas in targets.items()
            if not self._is_moving_to(partition, replicas)
        }
        failed = {partition: error for partition, error in outcome.items() if error.code}
        if failed:
            logger.warning(
                "Failed reassignments of /admin/reassign_partitions: %s",
                listed(f"{partition}: {error.message}" for partition, error in failed.items()),
            )
            await self._remove_from_znode(lambda partition, _: partition in failed)
        return {partition for partition, error in outcome.items() if not error.code}

    def _is_moving_to(self, partition: TopicPartition, targets: tuple[int, ...]) -> bool:
        assignment = self.context.assignment(partition)
        return assignment.is_being_reassigned and assignment.target_replicas == targets

    async def alter(self, targets: Targets) -> dict[TopicPartition, ApiError]:
        """AlterPartitionReassignments: a row for each partition."""
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
            if problem is None:
                accepted[partition] = replicas
            else:
                response[partition] = problem
        await self._remove_from_znode(lambda partition, _: partition in accepted)
        for partition, replicas in accepted.items():
            response[partition] = await self._start(partition, replicas)
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

    async def on_isr_change(self, partition: TopicPartition) -> None:
        """The ISR of a partition changed: completes its reassignment if it can."""
        if partition not in self.context.partitions_being_reassigned:
            return
        assignment = self.context.assignment(partition)
        if await self._is_complete(partition, assignment):
            await self._on_partition_reassignment(partition, assignment)

    async def resume_for_brokers(self, broker_ids: Iterable[int]) -> None:
        started = set(broker_ids)
        await self._resume(lambda _, assignment: not started.isdisjoint(assignment.target_replicas))

    async def _resume(self, wanted: Callable[[TopicPartition, ReplicaAssignment], bool]) -> None:
        for partition in list(self.context.partitions_being_reassigned):
            assignment = self.context.assignment(partition)
            if not wanted(partition, assignment):
                continue
            try:
                await self._on_partition_reassignment(partition, assignment)
            except (KafkaError, StateChangeFailed) as error:  # the others are resumed
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

    async def _start(self, partition: TopicPartition, targets: tuple[int, ...]) -> ApiError:
        context = self.context
        if partition[0] in context.topics_to_delete or not context.has_partition(partition):
            return ApiError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, "The partition does not exist.")
        try:
            await self._on_partition_reassignment(
                partition, context.assignment(partition).reassign_to(targets)
            )
        except KafkaError as error:
            return ApiError(error.code, error.message)
        except StateChangeFailed as error:
            logger.error("Failed to complete reassignment of partition %s: %s", partition, error)
            return ApiError(ErrorCode.UNKNOWN_SERVER_ERROR, str(error))
        return OK

    async def _is_complete(self, partition: TopicPartition, assignment: ReplicaAssignment) -> bool:
        if not assignment.is_being_reassigned:
            return True
        state = await self._read_state(partition)
        return state is not None and set(assignment.target_replicas) <= set(state.isr)

    async def _read_state(self, partition: TopicPartition) -> LeaderAndIsr | None:
        try:
            data, stat = await self.writer.store.get(znodes.state_path(partition))
            return znodes.decode_state(partition, data, stat.version)
        except (NoNode, MalformedZnode) as error:
            logger.error("Failed to read the state of partition %s: %s", partition, error)
            return None

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
        await self._write(partition, placed)
        context.set_assignment(partition, placed)
        context.end_reassignment(partition)
        for replica in before.replicas:
            context.replica_states.pop(PartitionReplica(partition, replica), None)
        replicas = self._replicas(partition, targets)
        await self.replicas.handle_state_changes(replicas, ReplicaState.NEW)
        await self.partitions.handle_state_changes((partition,), PartitionState.ONLINE)
        await self.replicas.handle_state_changes(replicas, ReplicaState.ONLINE)
        await self._remove_from_znode(lambda each, _: each == partition)

    async def _on_partition_reassignment(
        self, partition: TopicPartition, assignment: ReplicaAssignment
    ) -> None:
        if partition not in self.context.leadership:
            await self._reassign_without_leader(partition, assignment.target_replicas)
            return
        assignment = assignment.without_replaced()  # that of a new controller may have some
        self.deletion.mark_ineligible_for_deletion(
            (partition[0],), "topic reassignment in progress"
        )
        await self._update(partition, assignment)
        if await self._is_complete(partition, assignment):
            await self._complete(partition, assignment)
        else:
            await self._bump_leader_epoch(partition, assignment)  # A
            await self.replicas.handle_state_changes(
                [
                    each
                    for each in self._replicas(partition, assignment.adding)
                    if self.context.replica_states.get(each, ReplicaState.NON_EXISTENT)
                    is ReplicaState.NON_EXISTENT
                ],
                ReplicaState.NEW,
            )

    @staticmethod
    def _replicas(partition: TopicPartition, ids: Iterable[int]) -> list[PartitionReplica]:
        return [PartitionReplica(partition, replica) for replica in ids]

    async def _update(self, partition: TopicPartition, assignment: ReplicaAssignment) -> None:
        context = self.context
        before = context.assignment(partition)
        if before != assignment:
            unneeded = tuple(each for each in before.replicas if each not in assignment.replicas)
            await self._check_in_sync_replica_remains(partition, assignment, unneeded)
            await self._write(partition, assignment.with_replaced(unneeded))
            context.set_assignment(partition, assignment)
            context.begin_reassignment(partition)
            if unneeded:
                await self._stop_replaced_replicas(partition, assignment, unneeded)
        if not self.batch.versions.alter_partition:
            await self.watches.watch_state(partition)
        context.begin_reassignment(partition)

    async def _stop_replaced_replicas(
        self, partition: TopicPartition, assignment: ReplicaAssignment, replaced: tuple[int, ...]
    ) -> None:
        if self.context.leadership[partition].leader in replaced:
            await self.partitions.handle_state_changes(
                (partition,), PartitionState.ONLINE, ElectionStrategy.OFFLINE
            )
        remaining = await self._stop_removed_replicas(partition, replaced)
        if remaining:
            self.context.set_assignment(partition, assignment.with_replaced(remaining))
        else:
            await self._write(partition, assignment)

    async def _check_in_sync_replica_remains(
        self, partition: TopicPartition, assignment: ReplicaAssignment, unneeded: tuple[int, ...]
    ) -> None:
        """Raises KafkaError if no replica in the ISR would remain in the assignment."""
        if not unneeded:
            return
        state = await self._read_state(partition)
        if state is None:
            return
        survivors = [each for each in assignment.replicas if each in state.isr]
        if state.leader in unneeded:  # then another one has to be elected at once
            survivors = [each for each in survivors if self.context.is_online(each, partition)]
        if not survivors:
            raise KafkaError(
                ErrorCode.INVALID_REPLICA_ASSIGNMENT,
                f"The reassignment would remove {unneeded} from {partition}, and no remaining "
                f"replica is in the ISR {list(state.isr)}.",
            )

    async def _write(self, partition: TopicPartition, assignment: ReplicaAssignment) -> None:
        """Writes the assignment of this partition into the znode of the topic."""
        path = znodes.topic_path(partition[0])
        for _attempt in range(MAX_WRITE_ATTEMPTS):
            try:
                data, stat = await self.writer.store.get(path)
                state = znodes.decode_topic(partition[0], data)
                assignments = {**state.assignments, partition[1]: assignment}
                known_id = self.context.topic_ids.get(partition[0], state.topic_id)
                after = znodes.encode_topic(TopicState(known_id, assignments))
                if len(after) > max(MAX_TOPIC_BYTES, len(data)):
                    raise StateChangeFailed(
                        f"{path} would be too large: reassign fewer partitions of it at a time"
                    )
                await self.writer.set(path, after, stat.version)
            except BadVersion:
                continue
            except (NoNode, MalformedZnode) as error:
                raise StateChangeFailed(f"Failed to write the assignment: {error}") from None
            return
        raise StateChangeFailed(f"{path} keeps changing")

    async def _stop_removed_replicas(
        self, partition: TopicPartition, ids: tuple[int, ...]
    ) -> tuple[int, ...]:
        """Removes the replicas from the ISR, and stops and deletes them; returns those that remain
        because the ISR could not be written.

        A broker that is down renames its log as a stray when it starts.
        """
        replicas = self._replicas(partition, ids)
        for replica in replicas:  # one that is only in the ISR has no state yet
            self.context.replica_states.setdefault(replica, ReplicaState.ONLINE)
        for state in (
            ReplicaState.OFFLINE,
            ReplicaState.DELETION_STARTED,
            ReplicaState.DELETION_SUCCESSFUL,
            ReplicaState.NON_EXISTENT,
        ):
            await self.replicas.handle_state_changes(replicas, state)
        return tuple(each for each in ids if self._is_replica(partition, each))

    async def _complete(self, partition: TopicPartition, assignment: ReplicaAssignment) -> None:
        context = self.context
        await self.replicas.handle_state_changes(
            self._replicas(partition, assignment.adding), ReplicaState.ONLINE
        )
        done = ReplicaAssignment(assignment.target_replicas)
        context.set_assignment(partition, done)
        try:
            await self._move_leader_if_required(partition, done)
        except StateChangeFailed:
            # What is resumed later, or replaced, must know of the replicas that are to be removed.
            context.set_assignment(partition, assignment)
            raise
        if context.leadership[partition].leader not in done.replicas:
            # The targets are in the ISR but none can be elected now (shutting down, offline log
            # directory): the old replicas stay until one can.
            logger.warning(
                "Reassignment of partition %s is delayed: no target replica can become leader",
                partition,
                extra=partition._asdict(),
            )
            context.set_assignment(partition, assignment)
            return
        # Those that an earlier target had, and that could not be removed when it was replaced.
        unassigned = [
            each
            for each in dict.fromkeys((*context.leadership[partition].isr, *context.brokers))
            if each not in done.replicas
            and each not in assignment.removing
            and self._is_replica(partition, each)
        ]
        remaining = await self._stop_removed_replicas(
            partition, (*assignment.removing, *unassigned)
        )
        if remaining:
            context.set_assignment(partition, assignment)
            raise StateChangeFailed(f"Failed to remove the replicas {remaining} of {partition}")
        # That removed the stopped replicas from the assignment in the context as well.
        context.set_assignment(partition, done)
        await self._write(partition, done)
        self.watches.unwatch_state(partition)
        await self._remove_from_znode(
            lambda each, replicas: each == partition and replicas == done.replicas
        )
        context.end_reassignment(partition)
        logger.info(
            "Completed reassignment of partition %s to %s",
            partition,
            list(done.replicas),
            extra=partition._asdict(),
        )
        self.batch.add_update_metadata(context.brokers, (partition,))
        await self.batch.send(context.epoch)
        await self.deletion.resume_deletion_for_topics((partition[0],))

    def _is_replica(self, partition: TopicPartition, broker_id: int) -> bool:
        """Whether the broker has a replica, also one that is not in the assignment any more."""
        replica = PartitionReplica(partition, broker_id)
        return (
            broker_id in self.context.leadership[partition].isr
            or self.context.replica_states.get(replica, ReplicaState.NON_EXISTENT)
            is not ReplicaState.NON_EXISTENT
        )

    async def _move_leader_if_required(
        self, partition: TopicPartition, done: ReplicaAssignment
    ) -> None:
        state = self.context.leadership.get(partition)
        if (
            state is not None
            and state.leader in done.replicas
            and self.context.is_online(state.leader, partition)
        ):
            await self._bump_leader_epoch(partition, done)
        else:
            await self.partitions.handle_state_changes(
                (partition,), PartitionState.ONLINE, ElectionStrategy.REASSIGN
            )

    async def _bump_leader_epoch(
        self, partition: TopicPartition, assignment: ReplicaAssignment
    ) -> None:
        """Increments the leader epoch, so that brokers apply the new assignment."""
        context = self.context
        for _attempt in range(MAX_WRITE_ATTEMPTS):
            state = await self._read_state(partition)
            if state is None:
                raise StateChangeFailed(f"Partition {partition} has no state znode")
            if state.controller_epoch > context.epoch:
                raise StateChangeFailed(
                    f"The state of {partition} was written with a higher controller epoch"
                )
            finished, _ = await self.writer.update_states({partition: state.with_next_epoch()})
            result = finished.get(partition)
            if isinstance(result, StoreError):
                raise StateChangeFailed(f"Failed to write the state of {partition}: {result}")
            if result is not None:
                context.leadership[partition] = result
                # Added replicas are created in any log directory; an old one without a log is
                # offline, not new.
                for ids, is_new in ((assignment.origin_replicas, False), (assignment.adding, True)):
                    self.batch.add_leader_and_isr(ids, partition, result, assignment, is_new=is_new)
                await self.batch.send(context.epoch)
                return
        raise StateChangeFailed(f"The state of {partition} keeps changing")

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
        """Removes completed, failed or replaced partitions from it; deletes it when empty."""
        targets = await self._znode_targets()
        if targets is None:
            return
        remaining = {each: to for each, to in targets.items() if not done(each, to)}
        if not remaining:
            await self.writer.delete_many([znodes.REASSIGN_PARTITIONS])
        elif len(remaining) != len(targets):
            await self.writer.set(znodes.REASSIGN_PARTITIONS, encode_reassignment(remaining))
