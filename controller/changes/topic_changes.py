"""New and removed topics, and new partitions.

Handlers for ``/brokers/topics`` (TopicChange) and for the znode of a topic (PartitionModification);
they mirror ``processTopicChange`` and ``processPartitionModifications`` of Kafka's
``KafkaController``.
"""

import logging
from collections.abc import Iterable

from ottla.controller.events.zk_watches import ZkWatches
from ottla.controller.model import TopicState
from ottla.controller.slices import Slices
from ottla.controller.state.context import ControllerContext, PartitionState, ReplicaState
from ottla.controller.state.fenced_writes import FencedWriter
from ottla.controller.state.leader_selection import ElectionStrategy
from ottla.controller.state_machines.partitions import PartitionStateMachine
from ottla.controller.state_machines.replicas import ReplicaStateMachine
from ottla.controller.tree import znodes
from ottla.controller.tree.store import BadVersion, NoNode, SetOp, Stat, StoreError
from ottla.controller.tree.znode_json import MalformedZnode
from ottla.protocol.listed import listed
from ottla.protocol.topics import TopicPartition
from ottla.protocol.uuids import random_uuid

logger = logging.getLogger("ottla.controller")


class TopicChanges:
    """``topic_ids``: whether topics without an id get one (protocol version 2.8 and up)."""

    def __init__(
        self,
        context: ControllerContext,
        writer: FencedWriter,
        partitions: PartitionStateMachine,
        replicas: ReplicaStateMachine,
        watches: ZkWatches,
        *,
        topic_ids: bool,
    ) -> None:
        self.context = context
        self.writer = writer
        self.partitions = partitions
        self.replicas = replicas
        self.watches = watches
        self.topic_ids = topic_ids

    async def load_topics(self, topics: Iterable[str]) -> list[TopicPartition]:
        """Watches the topics, and reads their assignments and ids into the context."""
        names = list(topics)
        await self.watches.watch_topics(names)
        found = await self.read_topics(names)
        if self.topic_ids:
            await self._assign_topic_ids(found)
        added: list[TopicPartition] = []
        slices = Slices()
        for topic, (state, _) in found.items():
            self.context.add_topic(topic, state.topic_id)
            for index, assignment in sorted(state.assignments.items()):
                partition = TopicPartition(topic, index)
                self.context.set_assignment(partition, assignment)
                added.append(partition)
                await slices.add(1)
            await slices.add(1)
        return added

    async def read_topics(self, topics: list[str]) -> dict[str, tuple[TopicState, Stat]]:
        """The topics that exist; malformed ones are logged and left out."""
        found: dict[str, tuple[TopicState, Stat]] = {}
        nodes = await self.writer.store.get_many([znodes.topic_path(topic) for topic in topics])
        slices = Slices()
        for topic, node in zip(topics, nodes, strict=True):
            await slices.add(1)
            if node is None:
                continue
            try:
                state = znodes.decode_topic(topic, node[0])
            except MalformedZnode as error:
                logger.error("Ignoring topic %s: %s", topic, error)
                continue
            found[topic] = state, node[1]
            await slices.add(len(state.assignments))
        return found

    async def _assign_topic_ids(self, found: dict[str, tuple[TopicState, Stat]]) -> None:
        """Writes ids for topics without one, which were created by old tools (KIP-516)."""
        without_id = [topic for topic, (state, _) in found.items() if state.topic_id is None]
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
        """Adds new topics, removes deleted ones; returns the new ones."""
        context = self.context
        present = await self.writer.store.children(znodes.TOPICS)
        new = [topic for topic in present if topic not in context.assignments]
        present_names = set(present)
        deleted = [topic for topic in context.assignments if topic not in present_names]
        for topic in deleted:
            self.watches.unwatch_topic(topic)
            context.remove_topic(topic)
        added = await self.load_topics(new)
        if new or deleted:
            logger.info("New topics: [%s], deleted topics: [%s]", listed(new), listed(deleted))
        await self.on_new_partition_creation(added)
        return new

    async def on_new_partition_creation(self, partitions: list[TopicPartition]) -> None:
        """Brings new partitions and their replicas online."""
        if not partitions:
            return
        replicas = self.context.replicas_of_partitions(partitions)
        await self.partitions.handle_state_changes(partitions, PartitionState.NEW)
        await self.replicas.handle_state_changes(replicas, ReplicaState.NEW)
        await self.partitions.handle_state_changes(
            partitions, PartitionState.ONLINE, ElectionStrategy.OFFLINE
        )
        await self.replicas.handle_state_changes(replicas, ReplicaState.ONLINE)

    async def on_partition_modification(self, topic: str) -> None:
        """Brings added partitions online; removes them again if the topic is being deleted."""
        context = self.context
        if topic not in context.assignments:
            return
        found = (await self.read_topics([topic])).get(topic)
        if found is None:
            return
        state, stat = found
        added = {
            TopicPartition(topic, index): assignment
            for index, assignment in sorted(state.assignments.items())
            if index not in context.assignments[topic]
        }
        if not added:
            return
        if topic in context.topics_to_delete:
            await self._restore_assignment(topic, state, stat)
            return
        logger.info("New partitions to be added: %s", listed(added))
        for partition, assignment in added.items():
            context.set_assignment(partition, assignment)
        await self.on_new_partition_creation(list(added))

    async def _restore_assignment(self, topic: str, state: TopicState, stat: Stat) -> None:
        logger.warning("Removing partitions added to topic %s: it is being deleted", topic)
        known = state._replace(assignments=dict(self.context.assignments[topic]))
        try:
            await self.writer.set(
                znodes.topic_path(topic), znodes.encode_topic(known), stat.version
            )
        except (BadVersion, NoNode) as error:
            logger.info("Topic %s was changed meanwhile: %s", topic, error)
