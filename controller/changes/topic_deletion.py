"""Topic deletion: a machine that can stop anywhere and go on later.

1. A name under ``/admin/delete_topics`` queues the topic. Brokers stop serving it.
2. Replicas on live brokers go Offline, then DeletionStarted (StopReplica with delete); those on
   dead brokers become DeletionIneligible, and the topic is halted until a broker comes back.
3. Each answer moves replicas to DeletionSuccessful, or on an error to DeletionIneligible.
4. When all are DeletionSuccessful the nodes of the topic go, in one multi with a note of its
   highest leader epoch (deleted_topics.py), and the context forgets it.

A topic is also halted while one of its partitions is being reassigned. A halted topic is taken
up again when a broker starts or the reassignment ends. All of it is in the tree, so a new
controller goes on where the last one stopped.
"""

import logging
from collections.abc import Callable, Iterable

from ottla.controller.events.zk_watches import ZkWatches
from ottla.controller.model import PartitionReplica
from ottla.controller.requests.request_batch import RequestBatch
from ottla.controller.state.context import ControllerContext, PartitionState, ReplicaState
from ottla.controller.state.deleted_topics import DeletedTopics
from ottla.controller.state.fenced_writes import MAX_OPS_A_MULTI, FencedWriter
from ottla.controller.state_machines.partitions import PartitionStateMachine
from ottla.controller.state_machines.replicas import ReplicaStateMachine
from ottla.controller.tree import znodes
from ottla.controller.tree.store import DeleteOp, NoNode, NotEmpty, Op
from ottla.protocol.topics import TopicPartition

logger = logging.getLogger("ottla.controller")


class TopicDeletion:
    """``on_deleted`` is told each topic that is gone from the tree and the context."""

    def __init__(
        self,
        context: ControllerContext,
        writer: FencedWriter,
        partitions: PartitionStateMachine,
        replicas: ReplicaStateMachine,
        batch: RequestBatch,
        watches: ZkWatches,
        deleted: DeletedTopics,
        *,
        enabled: Callable[[], bool],
        on_deleted: Callable[[str], None],
    ) -> None:
        self.context = context
        self.writer = writer
        self.partitions = partitions
        self.replicas = replicas
        self.batch = batch
        self.watches = watches
        self.deleted = deleted
        self.enabled = enabled
        self.on_deleted = on_deleted

    # Entrances

    async def load(self) -> None:
        """What a controller before us left: queued topics, and those that must wait."""
        queued = await self._queued_topics()
        if not queued:
            return
        if not self.enabled():
            await self._discard(queued)
            return
        context = self.context
        context.topics_to_delete.update(dict.fromkeys(queued))
        for topic in queued:
            waiting = any(
                not context.is_online(each.replica, each.partition)
                for each in context.replicas_of(topic)
            ) or self._being_reassigned(topic)
            if waiting:
                context.topics_ineligible_for_deletion.add(topic)

    async def on_deletion_requested(self) -> None:
        """Children of ``/admin/delete_topics`` changed."""
        queued = await self._queued_topics()
        if not queued:
            return
        if not self.enabled():
            await self._discard(queued)
            return
        context = self.context
        fresh = [topic for topic in queued if topic not in context.topics_to_delete]
        if fresh:
            logger.info("Topics to be deleted: %s", ", ".join(fresh))
        context.topics_to_delete.update(dict.fromkeys(queued))
        self.mark_ineligible_for_deletion(
            (topic for topic in queued if self._being_reassigned(topic)), "reassignment"
        )
        await self.resume_deletions()

    async def _queued_topics(self) -> list[str]:
        topics = await self.writer.store.children(znodes.DELETE_TOPICS)
        unknown = [topic for topic in topics if topic not in self.context.assignments]
        # One that was made but not yet noticed by us is not unknown: it stays queued.
        paths = [znodes.topic_path(topic) for topic in unknown]
        found = await self.writer.store.get_many(paths)
        gone = [topic for topic, node in zip(unknown, found, strict=True) if node is None]
        if gone:
            logger.warning("Ignoring the deletion of topics that do not exist: %s", gone)
            await self.writer.delete_many([znodes.delete_topic_path(topic) for topic in gone])
        return [topic for topic in topics if topic in self.context.assignments]

    async def _discard(self, topics: list[str]) -> None:
        logger.info("Not deleting %s: delete.topic.enable is false", ", ".join(topics))
        await self.writer.delete_many([znodes.delete_topic_path(topic) for topic in topics])

    def _being_reassigned(self, topic: str) -> bool:
        return any(partition[0] == topic for partition in self.context.partitions_being_reassigned)

    def mark_ineligible_for_deletion(self, topics: Iterable[str], reason: str) -> None:
        """Queued topics among these wait until ``resume_deletion_for_topics`` names them."""
        halted = [topic for topic in topics if topic in self.context.topics_to_delete]
        if halted:
            self.context.topics_ineligible_for_deletion.update(halted)
            logger.info("Halting the deletion of %s: %s", ", ".join(halted), reason)

    async def resume_deletion_for_topics(self, topics: Iterable[str]) -> None:
        """A broker with their replicas started, or their reassignment ended."""
        waiting = [topic for topic in topics if topic in self.context.topics_to_delete]
        if waiting and self.enabled():
            self.context.topics_ineligible_for_deletion.difference_update(waiting)
            await self.resume_deletions()

    async def on_response(
        self, broker_id: int, outcome: Iterable[tuple[TopicPartition, int]]
    ) -> None:
        """A broker answered a StopReplica with delete."""
        failed: list[PartitionReplica] = []
        done: list[PartitionReplica] = []
        for partition, code in outcome:
            replica = PartitionReplica(partition, broker_id)
            # An answer may be about a replica that has been declared dead meanwhile.
            if self.context.replica_states.get(replica) is not ReplicaState.DELETION_STARTED:
                continue
            (failed if code else done).append(replica)
        if failed:
            await self.fail_replica_deletion(failed)
        if done:
            await self.replicas.handle_state_changes(done, ReplicaState.DELETION_SUCCESSFUL)
            await self.resume_deletions()

    async def fail_replica_deletion(self, replicas: Iterable[PartitionReplica]) -> None:
        """Replicas that cannot be deleted now: an error, or their broker or directory died."""
        going = [each for each in replicas if each.partition[0] in self.context.topics_to_delete]
        if not going:
            return
        await self.replicas.handle_state_changes(
            [each for each in going if self._may_become_ineligible(each)],
            ReplicaState.DELETION_INELIGIBLE,
        )
        self.mark_ineligible_for_deletion(
            dict.fromkeys(each.partition[0] for each in going), "a replica failed"
        )
        await self.resume_deletions()

    def _may_become_ineligible(self, replica: PartitionReplica) -> bool:
        state = self.context.replica_states.get(replica)
        return state in (ReplicaState.OFFLINE, ReplicaState.DELETION_STARTED)

    # The machine

    async def resume_deletions(self) -> None:
        """Takes every queued topic as far as it goes."""
        context = self.context
        if not self.enabled():
            return
        retry: list[PartitionReplica] = []
        start: list[str] = []
        for topic in list(context.topics_to_delete):
            states = {context.replica_states.get(each) for each in context.replicas_of(topic)}
            if states <= {ReplicaState.DELETION_SUCCESSFUL}:
                await self._complete(topic)
                continue
            if ReplicaState.DELETION_STARTED in states:
                continue
            retry.extend(context.replicas_in_state(topic, ReplicaState.DELETION_INELIGIBLE))
            halted = topic in context.topics_ineligible_for_deletion
            if not halted and not self._being_reassigned(topic):
                start.append(topic)
        if retry:
            await self.replicas.handle_state_changes(retry, ReplicaState.OFFLINE)
        if start:
            await self._start(start)

    async def _start(self, topics: list[str]) -> None:
        context = self.context
        logger.info("Deleting topics %s", ", ".join(topics))
        unseen = [each for each in topics if each not in context.topics_with_deletion_started]
        partitions = [partition for topic in unseen for partition in context.partitions_of(topic)]
        await self.partitions.handle_state_changes(partitions, PartitionState.OFFLINE)
        await self.partitions.handle_state_changes(partitions, PartitionState.NON_EXISTENT)
        context.topics_with_deletion_started.update(unseen)
        # Brokers forget the topics, so that no client is sent to them any more.
        self.batch.add_update_metadata(
            context.brokers, [each for topic in topics for each in context.partitions_of(topic)]
        )
        self.batch.send(context.epoch)
        dead: list[PartitionReplica] = []
        alive: list[PartitionReplica] = []
        for topic in topics:
            for each in context.replicas_of(topic):
                if not context.is_online(each.replica, each.partition):
                    dead.append(each)
                elif context.replica_states.get(each) is not ReplicaState.DELETION_SUCCESSFUL:
                    alive.append(each)
        await self.replicas.handle_state_changes(
            [each for each in dead if self._may_become_ineligible(each)],
            ReplicaState.DELETION_INELIGIBLE,
        )
        await self.replicas.handle_state_changes(alive, ReplicaState.OFFLINE)
        await self.replicas.handle_state_changes(alive, ReplicaState.DELETION_STARTED)
        self.mark_ineligible_for_deletion(
            dict.fromkeys(each.partition[0] for each in dead), "replicas are offline"
        )

    async def _complete(self, topic: str) -> None:
        context = self.context
        self.watches.unwatch_topic(topic)
        replicas = context.replicas_of(topic)
        partitions = context.partitions_of(topic)
        highest = max(
            (context.leadership[p].leader_epoch for p in partitions if p in context.leadership),
            default=-1,
        )
        await self._delete_nodes(topic, partitions, highest)
        for each in replicas:
            context.replica_states[each] = ReplicaState.DELETION_SUCCESSFUL
        await self.replicas.handle_state_changes(replicas, ReplicaState.NON_EXISTENT)
        context.remove_topic(topic)
        logger.info("Topic %s is deleted", topic)
        self.on_deleted(topic)

    async def _delete_nodes(
        self, topic: str, partitions: list[TopicPartition], highest_epoch: int
    ) -> None:
        await self.deleted.prepare(self.writer.store)
        last: list[Op] = []
        config = znodes.config_path(f"{znodes.ENTITY_TOPICS}/{topic}")
        request = znodes.delete_topic_path(topic)
        last.extend(
            DeleteOp(path)
            for path, found in zip(
                (config, request),
                await self.writer.store.get_many((config, request)),
                strict=True,
            )
            if found is not None
        )
        last.extend(self.deleted.record(topic, highest_epoch))
        expected: list[Op] = []
        for partition in partitions:
            if partition in self.context.leadership:
                expected.append(DeleteOp(znodes.state_path(partition)))
                expected.append(DeleteOp(znodes.partition_path(partition)))
        path = znodes.topic_path(topic)
        whole = [*expected, DeleteOp(znodes.partitions_path(topic)), DeleteOp(path), *last]
        try:
            if expected and len(whole) <= MAX_OPS_A_MULTI:
                await self.writer.multi(whole)
            else:
                await self.writer.delete_tree(path, last)
        except (NoNode, NotEmpty):  # not what we remember: look what is there
            await self.writer.delete_tree(path, last)
        self.deleted.recorded()
