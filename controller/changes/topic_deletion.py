"""Topic deletion, which can be interrupted and resumed; mirrors Kafka's `TopicDeletionManager`.

1. A znode under `/admin/delete_topics` queues the topic. Brokers stop serving it.
2. Replicas on live brokers go Offline, then DeletionStarted (StopReplica with delete); those on
   dead brokers become DeletionIneligible, and the topic is ineligible until a broker starts.
3. Each response moves replicas to DeletionSuccessful, or on an error to DeletionIneligible.
4. When all are DeletionSuccessful the znodes of the topic are deleted, in one multi that stores its
   highest leader epoch (deleted_topics.py), or after that if there are too many for one; and the
   topic is removed from the context.

A topic is also ineligible while one of its partitions is being reassigned. Its deletion is resumed
when a broker starts, the reassignment completes, or some time after a broker refused to delete a
replica: Kafka waits for the next start of a broker then. All state is in the znode tree, so a new
controller resumes the deletions of the last one.
"""

import logging
from collections.abc import Callable, Iterable
from contextlib import suppress

from ottla.controller.events.zk_watches import ZkWatches
from ottla.controller.model import PartitionReplica
from ottla.controller.requests.request_batch import RequestBatch
from ottla.controller.state.context import ControllerContext, PartitionState, ReplicaState
from ottla.controller.state.fenced_writes import MAX_OPS_PER_MULTI, FencedWriter
from ottla.controller.state.own_znodes import DeletedTopics
from ottla.controller.state_machines.partitions import PartitionStateMachine
from ottla.controller.state_machines.replicas import ReplicaStateMachine
from ottla.controller.tree import znodes
from ottla.controller.tree.store import DeleteOp, NoNode, NotEmpty, Op
from ottla.protocol.errors import ErrorCode
from ottla.protocol.listed import listed
from ottla.protocol.steps import Turn, over
from ottla.protocol.topics import TopicPartition

logger = logging.getLogger("ottla.controller")


class TopicDeletionManager:
    """`on_deleted` is called with each topic whose znodes are deleted."""

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

    # Events

    async def load(self) -> None:
        """Read the queued topics for a new controller, and which of them are ineligible."""
        queued = await self._queued_topics()
        if not queued:
            return
        if not self.enabled():
            await self._discard(queued)
            return
        context = self.context
        context.topics_to_delete.update(dict.fromkeys(queued))
        for topic in queued:
            waiting = (
                any(
                    not context.is_online(each.replica, each.partition)
                    for each in context.replicas_of(topic)
                )
                or topic in context.topics_being_reassigned
            )
            if waiting:
                context.topics_ineligible_for_deletion.add(topic)

    def waits_for(self, topic: str) -> str:
        """The reason why the deletion of a topic is not complete, as text."""
        context = self.context
        if topic in context.topics_being_reassigned:
            return "the end of its reassignment"
        away = {
            each.replica
            for each in context.replicas_of(topic)
            if not context.is_online(each.replica, each.partition)
        }
        if not away:
            return "the responses of brokers"
        names = ", ".join(map(str, sorted(away)))
        return f"broker {names}, where replicas are offline"

    async def on_deletion_requested(self) -> None:
        """Children of `/admin/delete_topics` changed."""
        queued = await self._queued_topics()
        if not queued:
            return
        if not self.enabled():
            await self._discard(queued)
            return
        context = self.context
        fresh = [topic for topic in queued if topic not in context.topics_to_delete]
        if fresh:
            logger.info("Starting topic deletion for topics %s", listed(fresh))
        context.topics_to_delete.update(dict.fromkeys(queued))
        self.mark_ineligible_for_deletion(
            (topic for topic in queued if topic in context.topics_being_reassigned),
            "topic reassignment in progress",
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
            logger.warning("Ignoring request to delete non-existing topics %s", listed(gone))
            await self.writer.delete_many([znodes.delete_topic_path(topic) for topic in gone])
        return [topic for topic in topics if topic in self.context.assignments]

    async def _discard(self, topics: list[str]) -> None:
        logger.info(
            "Removing /admin/delete_topics of %s: delete.topic.enable is false", listed(topics)
        )
        await self.writer.delete_many([znodes.delete_topic_path(topic) for topic in topics])

    def mark_ineligible_for_deletion(self, topics: Iterable[str], reason: str) -> None:
        """Interrupt the deletion of these until `resume_deletion_for_topics`."""
        ineligible = [topic for topic in topics if topic in self.context.topics_to_delete]
        if ineligible:
            self.context.topics_ineligible_for_deletion.update(ineligible)
            logger.info("Halted deletion of topics %s due to %s", listed(ineligible), reason)

    async def resume_deletion_for_topics(self, topics: Iterable[str]) -> None:
        """A broker with replicas of these has started, or their reassignment is complete."""
        waiting = [topic for topic in topics if topic in self.context.topics_to_delete]
        if waiting and self.enabled():
            self.context.topics_ineligible_for_deletion.difference_update(waiting)
            await self.resume_deletions(waiting)

    async def on_stop_replica_response(
        self, broker_id: int, outcome: Iterable[tuple[TopicPartition, int]]
    ) -> tuple[str, ...]:
        """Handle the response to a StopReplica with delete. Returns the topics to be resumed some
        time later: the broker refused to delete replicas of them, as it does while it cannot read
        in ZooKeeper whether they are being deleted.

        A replica that could not start for lack of space or descriptors, as its broker has responded
        to an earlier LeaderAndIsr meanwhile, went offline, and its topic ineligible. Nothing would
        bring it online: there is no such replica on its broker any more. So its deletion is started
        again, which the broker confirms. So is that of a log whose directory somebody has removed.

        A replica whose log is offline, which no LeaderAndIsr has told as the topic is being
        deleted, waits for the next start of its broker.
        """
        failed: list[PartitionReplica] = []
        done: list[PartitionReplica] = []
        offline = self.context.offline_directories.setdefault(broker_id, set())
        gone: dict[str, None] = {}
        async for partition, code in over(outcome):
            replica = PartitionReplica(partition, broker_id)
            # The broker of the replica may have failed meanwhile.
            if self.context.replica_states.get(replica) is ReplicaState.DELETION_STARTED:
                (failed if code else done).append(replica)
                if code == ErrorCode.KAFKA_STORAGE_ERROR:
                    offline.add(partition)
            elif not code and partition in offline:
                offline.discard(partition)
                gone[partition.topic] = None
        if failed:
            await self.fail_replica_deletion(failed)
        if done:
            await self.replicas.handle_state_changes(done, ReplicaState.DELETION_SUCCESSFUL)
            await self.resume_deletions(dict.fromkeys(each.partition[0] for each in done))
        await self.resume_deletion_for_topics(gone)
        refused = (each.partition for each in failed if each.partition not in offline)
        return tuple(dict.fromkeys(partition.topic for partition in refused))

    async def fail_replica_deletion(self, replicas: Iterable[PartitionReplica]) -> None:
        """The deletion of replicas failed: an error, or their broker or log directory failed."""
        to_delete = [
            each for each in replicas if each.partition[0] in self.context.topics_to_delete
        ]
        if not to_delete:
            return
        await self.replicas.handle_state_changes(
            [each for each in to_delete if self._may_become_ineligible(each)],
            ReplicaState.DELETION_INELIGIBLE,
        )
        topics = dict.fromkeys(each.partition[0] for each in to_delete)
        self.mark_ineligible_for_deletion(topics, "replica deletion failure")
        await self.resume_deletions(topics)

    def _may_become_ineligible(self, replica: PartitionReplica) -> bool:
        state = self.context.replica_states.get(replica)
        return state in (ReplicaState.OFFLINE, ReplicaState.DELETION_STARTED)

    # State changes

    async def resume_deletions(self, topics: Iterable[str] | None = None) -> None:
        """Start, retry or complete the deletion of queued topics: of all, or of some that changed.

        Nothing else changes what the others wait for.
        """
        context = self.context
        if not self.enabled():
            return
        retry: list[PartitionReplica] = []
        start: list[str] = []
        turn = Turn()
        for topic in list(context.topics_to_delete if topics is None else topics):
            if topic not in context.topics_to_delete:
                continue
            replicas = context.replicas_of(topic)
            states = {context.replica_states.get(each) for each in replicas}
            await turn.share()
            if states <= {ReplicaState.DELETION_SUCCESSFUL}:
                await self._complete(topic)
                continue
            if ReplicaState.DELETION_STARTED in states:
                continue
            if ReplicaState.DELETION_INELIGIBLE in states:
                retry.extend(context.replicas_in_state(topic, ReplicaState.DELETION_INELIGIBLE))
            if (
                topic not in context.topics_ineligible_for_deletion
                and topic not in context.topics_being_reassigned
            ):
                start.append(topic)
        if retry:
            await self.replicas.handle_state_changes(retry, ReplicaState.OFFLINE)
        if start:
            await self._start(start)

    async def _start(self, topics: list[str]) -> None:
        context = self.context
        logger.info("Deletion of topics %s (re)started", listed(topics))
        unseen = [each for each in topics if each not in context.topics_with_deletion_started]
        partitions = [partition for topic in unseen for partition in context.partitions_of(topic)]
        await self.partitions.handle_state_changes(partitions, PartitionState.OFFLINE)
        await self.partitions.handle_state_changes(partitions, PartitionState.NON_EXISTENT)
        context.topics_with_deletion_started.update(unseen)
        # Brokers remove the topics from their metadata, so that clients stop using them.
        self.batch.add_update_metadata_to_all(())
        async for partition in over(
            partition for topic in topics for partition in context.partitions_of(topic)
        ):
            self.batch.add_update_metadata((), (partition,))
        await self.batch.send(context.epoch)
        dead: list[PartitionReplica] = []
        alive: list[PartitionReplica] = []
        async for each in over(
            replica for topic in topics for replica in context.replicas_of(topic)
        ):
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
            dict.fromkeys(each.partition[0] for each in dead), "offline replicas"
        )
        # A log that is gone, or could not start, can be deleted while its broker runs; one on a
        # failed disk cannot, as the response says. See `on_stop_replica_response`.
        for partition, broker_id in dead:
            if context.is_live(broker_id):
                self.batch.add_stop_replica((broker_id,), partition, delete=True)
        await self.batch.send(context.epoch)

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
        logger.info("Topic %s deletion completed", topic)
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
        record = self.deleted.record(topic, highest_epoch, self.context.topic_ids.get(topic))
        expected: list[Op] = []
        async for partition in over(partitions):
            if partition in self.context.leadership:
                expected.append(DeleteOp(znodes.state_path(partition)))
                expected.append(DeleteOp(znodes.partition_path(partition)))
        path = znodes.topic_path(topic)
        whole = [*expected, DeleteOp(znodes.partitions_path(topic)), DeleteOp(path), *last, *record]
        if expected and len(whole) <= MAX_OPS_PER_MULTI:
            try:
                await self.writer.multi(whole)
            except (NoNode, NotEmpty):  # other znodes than in the context: read them
                pass
            else:
                self.deleted.recorded()
                return
        # Before, as the deletion may take several multis: a controller that resumes it does not see
        # the leader epochs of partitions that are gone.
        await self.writer.multi(record)
        self.deleted.recorded()
        # Without reading each of them first: no event is handled meanwhile.
        with suppress(NoNode, NotEmpty):
            for start in range(0, len(expected), MAX_OPS_PER_MULTI):
                await self.writer.multi(expected[start : start + MAX_OPS_PER_MULTI])
        await self.writer.delete_tree(path, last)
