"""Repairs leader epochs after ZooKeeper was restored from an older copy.

The states in the tree are older than what brokers have: they refuse them with FENCED_LEADER_EPOCH.
The leader in the tree may not have the newest records, and a follower that has them would truncate
them. So the controller asks the brokers of all replicas; when all have responded to the current
state, the replica with the newest leader epoch and the most records of it has every record that was
committed. It becomes the leader, in an epoch far above those of all replicas (`REPAIR_STEP`), and
the others join the ISR when they have caught up.

While a broker with a replica is away nothing is decided: it may have the newest records. Nor is it
if a minority of the replicas is ahead, unless one of their brokers knows that the tree is older: a
broker that was connected to a wrong ZooKeeper may have got higher leader epochs from there.
"""

import logging
from collections.abc import Mapping
from typing import TYPE_CHECKING, NamedTuple

from ottla.controller.model import RECOVERED, REPAIR_STEP, LeaderAndIsr
from ottla.controller.requests.request_batch import RequestBatch, rows_by_topic
from ottla.controller.state.context import ControllerContext, PartitionState
from ottla.controller.state.fenced_writes import FencedWriter
from ottla.controller.tree import znodes
from ottla.controller.tree.znode_json import MalformedZnode
from ottla.controller.tree.znodes_admin import ReplicaEpoch, decode_replica_epochs
from ottla.protocol.errors import ErrorCode
from ottla.protocol.topics import TopicPartition

if TYPE_CHECKING:
    from ottla.protocol.messages.leader_and_isr import LeaderAndIsrRequest, LeaderAndIsrResponse

logger = logging.getLogger("ottla.controller")

# Of a broker that has the state, or could have it.
_ANSWERS = (ErrorCode.NONE, ErrorCode.STALE_CONTROLLER_EPOCH, ErrorCode.FENCED_LEADER_EPOCH)


class _Answer(NamedTuple):
    broker_epoch: int
    is_ahead: bool


class _Stored(NamedTuple):
    """By a broker, since its registration."""

    is_older: bool
    rows: Mapping[TopicPartition, ReplicaEpoch]


class _Inquiry:
    """The brokers' reports on the state with this leader epoch."""

    def __init__(self, leader_epoch: int) -> None:
        self.leader_epoch = leader_epoch
        self.answers: dict[int, _Answer] = {}


class EpochRepair:
    """Begins with the first replica that is ahead of the tree."""

    def __init__(
        self, context: ControllerContext, writer: FencedWriter, batch: RequestBatch
    ) -> None:
        self.context = context
        self.writer = writer
        self.batch = batch
        self._inquiries: dict[TopicPartition, _Inquiry] = {}

    def clear(self) -> None:
        """For a controller that resigns."""
        self._inquiries.clear()

    def asks(self, request: "LeaderAndIsrRequest") -> bool:
        """Whether the response to a request counts, also one without errors."""
        return bool(self._inquiries) and any(
            (topic.topic_name, state.partition_index) in self._inquiries
            for topic in request.topic_states
            for state in topic.partition_states
        )

    async def on_leader_and_isr_response(
        self, broker_id: int, response: "LeaderAndIsrResponse", request: "LeaderAndIsrRequest"
    ) -> None:
        """Repair the partitions of which all replicas have responded now."""
        context = self.context
        sent = {
            TopicPartition(topic.topic_name, state.partition_index): state.leader_epoch
            for topic in request.topic_states
            for state in topic.partition_states
        }
        begun: list[TopicPartition] = []
        answered: list[TopicPartition] = []
        for topic, _, rows in rows_by_topic(request, response, context.topic_names):
            for row in rows:
                partition = TopicPartition(topic, row.partition_index)
                state = context.leadership.get(partition)
                if state is None or state.leader_epoch != sent.get(partition):
                    continue
                if row.error_code not in _ANSWERS or topic in context.topics_to_delete:
                    continue
                is_ahead = row.error_code == ErrorCode.FENCED_LEADER_EPOCH
                inquiry = self._inquiries.get(partition)
                if inquiry is None or inquiry.leader_epoch != state.leader_epoch:
                    if not is_ahead:
                        self._inquiries.pop(partition, None)
                        continue
                    inquiry = self._inquiries[partition] = _Inquiry(state.leader_epoch)
                    begun.append(partition)
                epoch = context.brokers[broker_id].epoch
                inquiry.answers[broker_id] = _Answer(epoch, is_ahead)
                answered.append(partition)
        await self._ask(begun, broker_id)
        await self._repair([each for each in answered if self._is_complete(each)])

    async def _ask(self, partitions: list[TopicPartition], answered: int) -> None:
        """Send the state again to the other replicas."""
        context = self.context
        for partition in partitions:
            assignment = context.assignment(partition)
            others = [
                each
                for each in assignment.replicas
                if each != answered and context.is_online(each, partition)
            ]
            self.batch.add_leader_and_isr(
                others, partition, context.leadership[partition], assignment, is_new=False
            )
        if partitions:
            await self.batch.send(context.epoch)

    def _is_complete(self, partition: TopicPartition) -> bool:
        answers = self._inquiries[partition].answers
        brokers = self.context.brokers
        return all(
            replica in answers
            and replica in brokers
            and answers[replica].broker_epoch == brokers[replica].epoch
            for replica in self.context.assignment(partition).replicas
        )

    async def _repair(self, partitions: list[TopicPartition]) -> None:
        if not partitions:
            return
        context = self.context
        known = await self._read_replica_epochs()
        wanted: dict[TopicPartition, LeaderAndIsr] = {}
        for partition in partitions:
            state = self._elect(partition, known)
            if state is not None:
                wanted[partition] = state
        finished, _ = await self.writer.update_states(wanted)
        for partition, result in finished.items():
            if not isinstance(result, LeaderAndIsr):
                logger.error("Failed to raise the leader epoch of %s: %s", partition, result)
                continue
            logger.warning(
                "Partition %s: brokers are ahead of ZooKeeper, which was restored or written "
                "again. Replica %d has the newest records and leads in leader epoch %d",
                partition,
                result.leader,
                result.leader_epoch,
                extra=partition._asdict(),
            )
            del self._inquiries[partition]
            context.leadership[partition] = result
            context.partition_states[partition] = PartitionState.ONLINE
            assignment = context.assignment(partition)
            online = [each for each in assignment.replicas if context.is_online(each, partition)]
            self.batch.add_leader_and_isr(online, partition, result, assignment, is_new=False)
        await self.batch.send(context.epoch)

    async def _read_replica_epochs(self) -> dict[int, _Stored]:
        """Read what each registered broker has stored since its registration."""
        ids = list(self.context.brokers)
        nodes = await self.writer.store.get_many([znodes.replica_epochs_path(each) for each in ids])
        found: dict[int, _Stored] = {}
        for broker_id, node in zip(ids, nodes, strict=True):
            if node is None:
                continue
            try:
                broker_epoch, is_older, rows = decode_replica_epochs(broker_id, node[0])
            except MalformedZnode as error:
                logger.error("Ignoring the leader epochs of replicas: %s", error)
                continue
            if broker_epoch == self.context.brokers[broker_id].epoch:
                found[broker_id] = _Stored(is_older, rows)
        return found

    def _elect(
        self, partition: TopicPartition, known: Mapping[int, _Stored]
    ) -> LeaderAndIsr | None:
        answers = self._inquiries[partition].answers
        replicas = self.context.assignment(partition).replicas
        ahead = [each for each in replicas if answers[each].is_ahead]
        epochs = {
            each: known[each].rows[partition]
            for each in ahead
            if each in known and partition in known[each].rows
        }
        if not epochs or len(epochs) < len(ahead):
            return None  # stored later: another response follows
        is_older = any(known[each].is_older for each in ahead)
        if not is_older and len(ahead) * 2 <= len(replicas):
            logger.error(
                "Leaving partition %s as it is: the replicas %s are ahead of ZooKeeper, the others "
                "are not",
                partition,
                ahead,
                extra=partition._asdict(),
            )
            return None
        leader = max(
            epochs,
            key=lambda each: (
                epochs[each].log_epoch,
                epochs[each].log_end_offset,
                epochs[each].is_leader,
            ),
        )
        if not self.context.is_online(leader, partition):
            return None
        state = self.context.leadership[partition]
        highest = max(state.leader_epoch, *(each.highest for each in epochs.values()))
        return state._replace(
            leader=leader,
            isr=(leader,),
            leader_epoch=highest + REPAIR_STEP,
            recovery_state=RECOVERED,
        )
