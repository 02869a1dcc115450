"""New and removed topics, and new partitions.

Handlers for `/brokers/topics` (TopicChange) and for the znode of a topic (PartitionModification);
they mirror `processTopicChange` and `processPartitionModifications` of Kafka's
`KafkaController`.

Tools other than brokers write the znodes of topics, too: those from before Kafka 2.8 drop the topic
id (KAFKA-14190), and each of them may write an assignment that it has read some time ago. So the
controller takes from a changed znode what may be added to a topic, which is partitions, and writes
the rest back as it knows it. Replicas change by a reassignment.
"""

import logging
from collections.abc import Iterable

from ottla.controller.changes.isr_changes import refresh_leadership
from ottla.controller.events.zk_watches import ZkWatches
from ottla.controller.model import PartitionReplica, ReplicaAssignment, TopicState
from ottla.controller.state.context import ControllerContext, PartitionState, ReplicaState
from ottla.controller.state.fenced_writes import FencedWriter
from ottla.controller.state.leader_selection import ElectionStrategy
from ottla.controller.state.own_znodes import DeletedTopics
from ottla.controller.state_machines.partitions import PartitionStateMachine
from ottla.controller.state_machines.replicas import ReplicaStateMachine
from ottla.controller.tree import znodes
from ottla.controller.tree.store import BadVersion, NoNode, Op, SetOp, Stat, StoreError
from ottla.controller.tree.znode_json import MalformedZnode
from ottla.protocol.listed import listed
from ottla.protocol.steps import Turn
from ottla.protocol.topics import TopicPartition
from ottla.protocol.uuids import random_uuid

logger = logging.getLogger("ottla.controller")


class TopicChanges:
    """`topic_ids`: whether topics without an id get one (protocol version 2.8 and up)."""

    def __init__(
        self,
        context: ControllerContext,
        writer: FencedWriter,
        partitions: PartitionStateMachine,
        replicas: ReplicaStateMachine,
        watches: ZkWatches,
        deleted: DeletedTopics,
        *,
        topic_ids: bool,
    ) -> None:
        self.context = context
        self.writer = writer
        self.partitions = partitions
        self.replicas = replicas
        self.watches = watches
        self.deleted = deleted
        self.topic_ids = topic_ids
        #: The topics whose znodes cannot be read and are not known, and why.
        self.unreadable: dict[str, str] = {}

    async def load_topics(self, topics: Iterable[str]) -> list[TopicPartition]:
        """Watch the topics, and read their assignments and ids into the context."""
        names = list(topics)
        await self.watches.watch_topics(names)
        found = await self.read_topics(names)
        if self.topic_ids:
            await self._assign_topic_ids(found)
        added: list[TopicPartition] = []
        turn = Turn()
        for topic, (state, stat) in found.items():
            self.context.add_topic(topic, state.topic_id, stat.czxid)
            if state.topic_id is None and self.topic_ids:
                self.context.topics_without_id[topic] = None
            for index, assignment in sorted(state.assignments.items()):
                partition = TopicPartition(topic, index)
                self.context.set_assignment(partition, assignment)
                added.append(partition)
                await turn.share()
            await turn.share()
        return added

    async def read_topics(self, topics: list[str]) -> dict[str, tuple[TopicState, Stat]]:
        """The topics that exist; malformed ones are logged and left out."""
        found: dict[str, tuple[TopicState, Stat]] = {}
        nodes = await self.writer.store.get_many([znodes.topic_path(topic) for topic in topics])
        turn = Turn()
        for topic, node in zip(topics, nodes, strict=True):
            await turn.share()
            self.unreadable.pop(topic, None)
            if node is None:
                continue
            try:
                state = znodes.decode_topic(topic, node[0])
            except MalformedZnode as error:
                logger.error("Ignoring topic %s: %s", topic, error)
                if topic not in self.context.assignments:
                    self.unreadable[topic] = str(error)
                continue
            found[topic] = state, node[1]
            await turn.share()
        return found

    async def _assign_topic_ids(self, found: dict[str, tuple[TopicState, Stat]]) -> None:
        """Write ids for new topics without one, which were created by old tools (KIP-516).

        A topic whose partitions have had leaders may have lost its id: brokers have it (TopicIds).
        """
        without_id = [topic for topic, (state, _) in found.items() if state.topic_id is None]
        children = await self.writer.store.get_many([znodes.partitions_path(t) for t in without_id])
        without_id = [
            topic for topic, node in zip(without_id, children, strict=True) if node is None
        ]
        wanted = {topic: found[topic][0]._replace(topic_id=random_uuid()) for topic in without_id}
        responses = await self.writer.multi_many(
            [
                [
                    SetOp(
                        znodes.topic_path(topic),
                        znodes.encode_topic(state),
                        found[topic][1].version,
                    )
                ]
                for topic, state in wanted.items()
            ]
        )
        for (topic, state), response in zip(wanted.items(), responses, strict=True):
            if isinstance(response, (BadVersion, NoNode)):
                # Changed or deleted meanwhile; the event of that reads it again.
                logger.info("Topic %s was changed while its topic id was written", topic)
                del found[topic]
            elif isinstance(response, StoreError):
                raise response
            else:
                found[topic] = state, found[topic][1]

    async def on_topic_change(self) -> list[str]:
        """Add new topics, remove deleted ones; return the new ones."""
        context = self.context
        present = await self.writer.store.children(znodes.TOPICS)
        new = [topic for topic in present if topic not in context.assignments]
        present_names = set(present)
        deleted = [topic for topic in context.assignments if topic not in present_names]
        for topic in [each for each in self.unreadable if each not in present_names]:
            del self.unreadable[topic]
        await self._forget_removed(deleted)
        added = await self.load_topics(new)
        if new or deleted:
            logger.info("New topics: [%s], deleted topics: [%s]", listed(new), listed(deleted))
        await self._bring_online(added)
        return new

    async def _forget_removed(self, topics: list[str]) -> None:
        """The znodes of these were removed, and not by a deletion, which forgets its topic itself.

        Their leader epochs and ids are stored as those of deleted topics are: a topic of the same
        name that is created again starts above, and brokers can tell their logs from its own.
        """
        if not topics:
            return
        context = self.context
        logger.warning(
            "The znodes of topics [%s] were removed by something that is not the controller: the "
            "brokers keep their logs",
            listed(topics),
        )
        await self.deleted.prepare(self.writer.store)
        record: list[Op] = []
        for topic in topics:
            epochs = [
                context.leadership[each].leader_epoch
                for each in context.partitions_of(topic)
                if each in context.leadership
            ]
            known_id = context.topic_ids.get(topic)
            highest = max(epochs, default=-1)
            record = self.deleted.record(topic, highest, known_id, by_controller=False)
        await self.writer.multi(record)
        self.deleted.recorded()
        for topic in topics:
            self.watches.unwatch_topic(topic)
            context.remove_topic(topic)

    async def _bring_online(self, partitions: list[TopicPartition]) -> None:
        """New partitions, and those of topics whose znodes could not be read before: these have a
        leader and ISR."""
        await refresh_leadership(self.context, self.writer, partitions)
        known = [each for each in partitions if each in self.context.leadership]
        if known:
            context = self.context
            for partition in known:
                context.partition_states[partition] = PartitionState.OFFLINE
                if context.is_online(context.leadership[partition].leader, partition):
                    context.partition_states[partition] = PartitionState.ONLINE
            replicas = context.replicas_of_partitions(known)
            online: list[PartitionReplica] = []
            for each in replicas:
                is_online = context.is_online(each.replica, each.partition)
                context.replica_states[each] = ReplicaState.OFFLINE
                if is_online:
                    online.append(each)
            await self.replicas.handle_state_changes(online, ReplicaState.ONLINE)
            await self.partitions.trigger_online_partitions()
        await self.on_new_partition_creation([p for p in partitions if p not in known])

    async def on_new_partition_creation(self, partitions: list[TopicPartition]) -> None:
        """Bring new partitions and their replicas online."""
        if not partitions:
            return
        replicas = self.context.replicas_of_partitions(partitions)
        await self.partitions.handle_state_changes(partitions, PartitionState.NEW)
        await self.replicas.handle_state_changes(replicas, ReplicaState.NEW)
        await self.partitions.handle_state_changes(
            partitions, PartitionState.ONLINE, ElectionStrategy.OFFLINE
        )
        await self.replicas.handle_state_changes(replicas, ReplicaState.ONLINE)

    async def on_partition_modification(self, topic: str) -> bytes | None:
        """Bring added partitions online, and restore what else was changed. Returns the topic id
        if one was written that the topic is to have: it had none, or brokers refused it.

        Removes added partitions again if the topic is being deleted.
        """
        context = self.context
        if topic not in context.assignments:
            return None
        node = (await self.writer.store.get_many([znodes.topic_path(topic)]))[0]
        if node is None:
            return None
        data, stat = node
        if stat.czxid != context.topic_czxids.get(topic, stat.czxid):
            # Removed and created again before this controller has looked.
            await self._forget_removed([topic])
            await self.on_topic_change()
            return None
        try:
            state = znodes.decode_topic(topic, data)
        except MalformedZnode as error:
            await self._restore(topic, f"it cannot be read: {error}", TopicState(None, {}), stat)
            return None
        written_id = state.topic_id
        if topic not in context.topics_to_delete:
            problem = self._lost(topic, state)
            if problem:
                state = await self._restore(topic, problem, state, stat)
        added = {
            TopicPartition(topic, index): assignment
            for index, assignment in sorted(state.assignments.items())
            if index not in context.assignments[topic]
        }
        if not added:
            return self._new_id(topic, written_id)
        if topic in context.topics_to_delete:
            reason = "partitions were added, and the topic is being deleted"
            await self._restore(topic, reason, TopicState(None, {}), stat)
            return None
        logger.info("New partitions to be added: %s", listed(added))
        for partition, assignment in added.items():
            context.set_assignment(partition, assignment)
        await self.on_new_partition_creation(list(added))
        return self._new_id(topic, written_id)

    def _new_id(self, topic: str, written_id: bytes | None) -> bytes | None:
        known_id = self.context.topic_ids.get(topic)
        is_open = known_id is None or topic in self.context.topics_with_refused_id
        return written_id if is_open and written_id != known_id else None

    def _lost(self, topic: str, state: TopicState) -> str:
        """Describe what a tool removed from or changed in the topic's znode; "" if nothing."""
        context = self.context
        known_id = context.topic_ids.get(topic)
        if known_id is not None and state.topic_id is None:
            return "its topic id was lost"
        # An id that brokers refuse is repaired by an operator, with the one of their logs.
        if known_id not in (None, state.topic_id) and topic not in context.topics_with_refused_id:
            return "its topic id was changed"
        known = context.assignments[topic]
        lost = [index for index in known if index not in state.assignments]
        if lost:
            return f"it lost the partitions {listed(lost)}"
        changed = [
            index
            for index, assignment in known.items()
            if assignment != state.assignments[index]
            and self._is_foreign(TopicPartition(topic, index), state.assignments[index])
        ]
        return f"the replicas of the partitions {listed(changed)} were changed" if changed else ""

    def _is_foreign(self, partition: TopicPartition, assignment: ReplicaAssignment) -> bool:
        """Whether an assignment in the tree that differs is not one of our own reassignment."""
        return (
            partition not in self.context.partitions_being_reassigned
            or not assignment.is_being_reassigned
        )

    async def _restore(self, topic: str, reason: str, state: TopicState, stat: Stat) -> TopicState:
        """Write what this controller knows of a topic into its znode; the partitions that only
        `state` has stay. Returns what is written, or `state` if the znode changed meanwhile,
        which is another event."""
        known_id = self.context.topic_ids.get(topic, state.topic_id)
        if topic in self.context.topics_with_refused_id and state.topic_id is not None:
            known_id = state.topic_id
        restored = TopicState(known_id, {**state.assignments, **self.context.assignments[topic]})
        logger.warning(
            "Restoring the znode of topic %s, which something that is not the controller has "
            "changed: %s. Add partitions and change replicas with a tool that asks a broker "
            "(--bootstrap-server), not ZooKeeper",
            topic,
            reason,
        )
        try:
            await self.writer.set(
                znodes.topic_path(topic), znodes.encode_topic(restored), stat.version
            )
        except (BadVersion, NoNode) as error:
            logger.info("Topic %s was changed meanwhile: %s", topic, error)
            return state
        return restored
