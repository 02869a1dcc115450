"""The ids of topics that have none in the tree, learned from the logs of the brokers.

A tool from before Kafka 2.8 that changes a topic writes its znode without the topic id
(KAFKA-14190). A running controller writes the id back (topic_changes.py). A new controller does not
know it. Kafka's generates another id then, and its brokers refuse the topic, as their logs have the
first one. This controller sends the zero id, which is legal and which brokers accept, and a broker
of Ottla puts the topic id of its logs into the response; `NO_TOPIC_ID` if they have none. A
broker of Kafka responds with the zero id, which says nothing.

- If an id is that of a member of the ISR, or of all replicas that have one, it is written back.
- If the brokers of all replicas say that they have none, the topic is older than topic ids, and it
  gets a new one.
- If the brokers of all replicas refuse the id in the tree (INCONSISTENT_TOPIC_ID), as after a
  controller of Kafka has generated one, no log belongs to it. It is asked for as if there was none.
- If they have different ids, none is written: the topic stays in service without an id, and a
  fault names the ids. What is in the logs decides nothing then; an operator does.
"""

import logging
from typing import TYPE_CHECKING

from ottla.controller.requests.request_batch import RequestBatch, rows_by_topic
from ottla.controller.state.context import ControllerContext
from ottla.controller.state.fenced_writes import FencedWriter
from ottla.controller.tree import znodes
from ottla.controller.tree.store import BadVersion, NoNode
from ottla.controller.tree.znode_json import MalformedZnode
from ottla.protocol.errors import ErrorCode
from ottla.protocol.uuids import NO_TOPIC_ID, ZERO_UUID, random_uuid, uuid_to_string

if TYPE_CHECKING:
    from ottla.protocol.messages.leader_and_isr import LeaderAndIsrRequest, LeaderAndIsrResponse

logger = logging.getLogger("ottla.controller")


class TopicIds:
    """The brokers' reports on the topics in `topics_without_id`, until the id is decided."""

    def __init__(
        self, context: ControllerContext, writer: FencedWriter, batch: RequestBatch
    ) -> None:
        self.context = context
        self.writer = writer
        self.batch = batch
        #: (problem, fix) by topic: why it has no id, for an operator who has to decide.
        self.conflicts: dict[str, tuple[str, str]] = {}
        self._reported: dict[str, dict[int, bytes]] = {}
        self._refused_ids: dict[str, bytes] = {}

    def clear(self) -> None:
        """For a controller that resigns."""
        self.conflicts.clear()
        self._reported.clear()
        self._refused_ids.clear()

    async def on_leader_and_isr_response(
        self, broker_id: int, response: "LeaderAndIsrResponse", request: "LeaderAndIsrRequest"
    ) -> None:
        """Decide the topics for which the broker has responded with an id, or refused one."""
        waiting = self.context.topics_without_id
        reported: list[str] = []
        refused: list[str] = []
        for topic, topic_id, rows in rows_by_topic(request, response, self.context.topic_names):
            if topic in waiting:
                if self._report(topic, broker_id, topic_id):
                    reported.append(topic)
            elif any(row.error_code == ErrorCode.INCONSISTENT_TOPIC_ID for row in rows):
                if topic_id == self.context.topic_ids.get(topic):
                    refused.append(topic)
            elif topic in self.context.topics_with_refused_id:
                self.context.topics_with_refused_id[topic].discard(broker_id)
        for topic in reported:
            await self._decide(topic)
        for topic in refused:
            await self._on_refusal(topic, broker_id)

    async def _on_refusal(self, topic: str, broker_id: int) -> None:
        context = self.context
        refusing = context.topics_with_refused_id.setdefault(topic, set())
        refusing.add(broker_id)
        if not self._assigned(topic) <= refusing or topic in context.topics_to_delete:
            return
        topic_id = context.topic_ids[topic]
        logger.warning(
            "Every broker with a replica of topic %s refuses its topic id %s in ZooKeeper: asking "
            "them for the id of their logs",
            topic,
            uuid_to_string(topic_id),
        )
        self._refused_ids[topic] = topic_id
        context.forget_topic_id(topic)
        await self._send_states(topic)

    def _assigned(self, topic: str) -> set[int]:
        assignments = self.context.assignments[topic].values()
        return {replica for each in assignments for replica in each.replicas}

    def _report(self, topic: str, broker_id: int, topic_id: bytes) -> bool:
        if topic_id == ZERO_UUID:
            return False
        self._reported.setdefault(topic, {})[broker_id] = topic_id
        return True

    async def _decide(self, topic: str) -> None:
        reported = self._reported[topic]
        ids = {each for each in reported.values() if each != NO_TOPIC_ID}
        all_reported = self._assigned(topic) <= reported.keys()
        if len(ids) > 1:
            self._conflict(topic, reported)
        elif ids:
            (topic_id,) = ids
            holders = {broker for broker, each in reported.items() if each == topic_id}
            if all_reported or holders & self._members(topic):
                await self._assign(topic, topic_id, "as the logs of brokers")
        elif all_reported:
            await self._assign(topic, random_uuid(), "a new one, as no broker has one in its logs")

    def _members(self, topic: str) -> set[int]:
        """The members of the ISRs of its partitions."""
        leadership = self.context.leadership
        return {
            member
            for partition in self.context.partitions_of(topic)
            if partition in leadership
            for member in leadership[partition].isr
        }

    def _conflict(self, topic: str, reported: dict[int, bytes]) -> None:
        said = ", ".join(
            f"broker {broker} {uuid_to_string(each)}"
            for broker, each in sorted(reported.items())
            if each != NO_TOPIC_ID
        )
        text = f"topic {topic} has lost its topic id, and the logs of its replicas differ: {said}"
        fix = f'write the one that is right as "topic_id" into {znodes.topic_path(topic)}'
        self._note_conflict(topic, text, fix)

    def _note_conflict(self, topic: str, problem: str, fix: str) -> None:
        if self.conflicts.get(topic) != (problem, fix):
            logger.error("Writing no topic id into %s: %s", znodes.topic_path(topic), problem)
        self.conflicts[topic] = problem, fix

    async def _assign(self, topic: str, topic_id: bytes, source: str) -> None:
        """Write the id, then send it to all brokers."""
        path = znodes.topic_path(topic)
        context = self.context
        if topic_id in context.topic_names:
            other, text = context.topic_names[topic_id], uuid_to_string(topic_id)
            self._note_conflict(
                topic,
                f"the logs of topic {topic} have the id of topic {other}, {text}, and are served"
                " without an id",
                f"if their records are those of {topic}, stop the brokers, delete the file"
                f" partition.metadata, which was copied from {other}, in the directories of"
                f" {topic}, and start them; otherwise the directories were copied: move them away",
            )
            return
        try:
            data, stat = await self.writer.store.get(path)
            state = znodes.decode_topic(topic, data)
            if state.topic_id not in (None, topic_id, self._refused_ids.get(topic)):
                return  # written meanwhile; the event of that follows
            await self.writer.set(
                path, znodes.encode_topic(state._replace(topic_id=topic_id)), stat.version
            )
        except (BadVersion, NoNode, MalformedZnode) as error:
            logger.info("Topic %s was changed while its topic id was written: %s", topic, error)
            return
        logger.warning(
            "Wrote topic id %s of topic %s into ZooKeeper: %s",
            uuid_to_string(topic_id),
            topic,
            source,
        )
        await self.adopt(topic, topic_id)

    async def adopt(self, topic: str, topic_id: bytes) -> None:
        """The znode has an id now: the brokers get it."""
        context = self.context
        self.conflicts.pop(topic, None)
        self._reported.pop(topic, None)
        self._refused_ids.pop(topic, None)
        context.add_topic(topic, topic_id, context.topic_czxids.get(topic, -1))
        await self._send_states(topic)

    async def _send_states(self, topic: str) -> None:
        context = self.context
        for partition in context.partitions_of(topic):
            state = context.leadership.get(partition)
            if state is None:
                continue
            assignment = context.assignment(partition)
            online = [each for each in assignment.replicas if context.is_online(each, partition)]
            self.batch.add_leader_and_isr(online, partition, state, assignment, is_new=False)
        await self.batch.send(context.epoch)
