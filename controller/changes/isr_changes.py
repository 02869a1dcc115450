"""ISR changes of leaders: by AlterPartition, or by a znode and a notification.

Mirrors `processAlterPartition` and `processIsrChangeNotification` of Kafka's
`KafkaController`. AlterPartition is KIP-497 (versions 0 and 1); since version 2 it has topic ids
and replicas that are not live are refused (KIP-841), since version 3 it has broker epochs
(KIP-903).
"""

import logging
from collections.abc import Callable, Iterable
from itertools import islice
from typing import TYPE_CHECKING

from ottla.controller.changes.reassignment import Reassignment
from ottla.controller.model import RECOVERED, RECOVERING, LeaderAndIsr
from ottla.controller.requests.request_batch import RequestBatch
from ottla.controller.state.context import ControllerContext, ReplicaState
from ottla.controller.state.fenced_writes import FencedWriter
from ottla.controller.state_machines.replicas import VALID_PREVIOUS, ReplicaStateMachine
from ottla.controller.tree import znodes
from ottla.controller.tree.store import BadVersion, StoreError
from ottla.controller.tree.znode_json import MalformedZnode
from ottla.controller.tree.znodes_admin import decode_isr_change, decode_log_dir_event
from ottla.protocol.errors import ErrorCode
from ottla.protocol.listed import listed
from ottla.protocol.steps import over
from ottla.protocol.topics import TopicPartition
from ottla.protocol.uuids import ZERO_UUID

if TYPE_CHECKING:
    from ottla.protocol.messages.alter_partition import (
        AlterPartitionRequest,
        AlterPartitionRequestPartitionData,
        AlterPartitionResponse,
    )

logger = logging.getLogger("ottla.controller")

Row = LeaderAndIsr | int
"""The committed state, or an error code."""

MAX_STATES_PER_READ = 5_000
"""State znodes that are read together. Their paths are made, and what was read is freed, in one
turn of the loop each: two milliseconds. A server has fifty multiReads to work on."""


async def refresh_leadership(
    context: ControllerContext, writer: FencedWriter, partitions: Iterable[TopicPartition]
) -> dict[TopicPartition, int]:
    """Read the state znodes into the context; return the zxids of their last changes."""
    changed: dict[TopicPartition, int] = {}
    unread = iter(partitions)
    while wanted := list(islice(unread, MAX_STATES_PER_READ)):
        nodes = await writer.store.get_many([znodes.state_path(each) for each in wanted])
        async for partition, node in over(zip(wanted, nodes, strict=True)):
            if node is None:
                continue
            try:
                state = znodes.decode_state(partition, node[0], node[1].version)
            except MalformedZnode as error:
                logger.error("Ignoring the state of partition %s: %s", partition, error)
                continue
            context.leadership[partition] = state
            changed[partition] = node[1].mzxid
    return changed


def _ineligible(version: int) -> int:
    """The error for a replica that may not join an ISR, in a version of AlterPartition."""
    return ErrorCode.INELIGIBLE_REPLICA if version > 1 else ErrorCode.OPERATION_NOT_ATTEMPTED


class IsrChanges:
    """An ISR is durable in the znode tree before the response and the UpdateMetadata request."""

    def __init__(
        self,
        context: ControllerContext,
        writer: FencedWriter,
        replicas: ReplicaStateMachine,
        batch: RequestBatch,
        reassignment: Reassignment,
        on_unsent: Callable[[], None],
    ) -> None:
        """`on_unsent` has `send_metadata` called some time later."""
        self.context = context
        self.writer = writer
        self.replicas = replicas
        self.batch = batch
        self.reassignment = reassignment
        self._on_unsent = on_unsent
        self._unsent: dict[TopicPartition, None] = {}

    # Notifications in the tree

    async def on_isr_notification(self) -> None:
        """Read the states of the listed partitions, send UpdateMetadata, delete the znodes."""
        paths = await self._notifications(znodes.ISR_CHANGE_NOTIFICATION)
        try:
            partitions: dict[TopicPartition, None] = {}
            for path, node in zip(paths, await self.writer.store.get_many(paths), strict=True):
                if node is None:
                    continue
                try:
                    announced = decode_isr_change(path, node[0])
                except MalformedZnode as error:
                    logger.error("Ignoring ISR change notification: %s", error)
                    continue
                partitions.update(
                    dict.fromkeys(each for each in announced if self.context.has_partition(each))
                )
            if partitions:
                await refresh_leadership(self.context, self.writer, partitions)
                self.batch.add_update_metadata_to_all(partitions)
                await self.batch.send(self.context.epoch)
                await self.reassignment.on_isr_change(partitions)
        finally:
            await self.writer.delete_many(paths)

    async def on_log_dir_notification(self) -> None:
        """A log directory failed: sends LeaderAndIsr for all replicas of those brokers; the
        response has KAFKA_STORAGE_ERROR for the replicas that were on it."""
        paths = await self._notifications(znodes.LOG_DIR_EVENT_NOTIFICATION)
        try:
            brokers: dict[int, None] = {}
            for path, node in zip(paths, await self.writer.store.get_many(paths), strict=True):
                if node is None:
                    continue
                try:
                    brokers[decode_log_dir_event(path, node[0])] = None
                except MalformedZnode as error:
                    logger.error("Ignoring log dir event notification: %s", error)
            if brokers:
                logger.info("Handling log directory failure for brokers %s", list(brokers))
                live = [broker_id for broker_id in brokers if broker_id in self.context.brokers]
                replicas = [
                    each
                    for each in self.context.replicas_on(live)
                    if self.context.replica_states.get(each) in VALID_PREVIOUS[ReplicaState.ONLINE]
                ]
                await self.replicas.handle_state_changes(replicas, ReplicaState.ONLINE)
        finally:
            await self.writer.delete_many(paths)

    async def _notifications(self, directory: str) -> list[str]:
        return [f"{directory}/{name}" for name in await self.writer.store.children(directory)]

    async def discard_notifications(self) -> None:
        """For a new controller, which reads all states."""
        for directory in (znodes.LOG_DIR_EVENT_NOTIFICATION, znodes.ISR_CHANGE_NOTIFICATION):
            await self.writer.delete_many(await self._notifications(directory))

    # AlterPartition

    async def alter_partition(
        self, request: "AlterPartitionRequest", version: int
    ) -> "AlterPartitionResponse":
        """Write the valid changes; return the response, with errors for the others.

        Fenced by broker epoch, leader epoch and partition epoch.
        """
        from ottla.protocol.messages.alter_partition import (
            AlterPartitionResponse,
            AlterPartitionResponsePartitionData,
            AlterPartitionResponseTopicData,
        )

        broker = self.context.brokers.get(request.broker_id)
        if broker is None or broker.epoch != request.broker_epoch:
            logger.info(
                "Ignoring AlterPartition request from broker %d: stale broker epoch %d, current %s",
                request.broker_id,
                request.broker_epoch,
                "none" if broker is None else broker.epoch,
            )
            return AlterPartitionResponse(error_code=ErrorCode.STALE_BROKER_EPOCH)
        rows: dict[TopicPartition, Row] = {}
        wanted: dict[TopicPartition, LeaderAndIsr] = {}
        unknown: list[AlterPartitionResponseTopicData] = []
        async for topic in over(request.topics):
            name = topic.topic_name if version < 2 else self.context.topic_names.get(topic.topic_id)
            if name is None:
                unknown.append(
                    AlterPartitionResponseTopicData(
                        topic_id=topic.topic_id,
                        partitions=[
                            AlterPartitionResponsePartitionData(
                                partition_index=each.partition_index,
                                error_code=ErrorCode.UNKNOWN_TOPIC_ID,
                            )
                            for each in topic.partitions
                        ],
                    )
                )
                continue
            async for each in over(topic.partitions):
                partition = TopicPartition(name, each.partition_index)
                decision = self._validate(request.broker_id, partition, each, version)
                if isinstance(decision, LeaderAndIsr) and decision != self.context.leadership.get(
                    partition
                ):
                    wanted[partition] = decision
                else:
                    rows[partition] = decision
        await self._apply(wanted, rows, version)
        by_topic: dict[str, AlterPartitionResponseTopicData] = {}
        async for partition, row in over(rows.items()):
            if partition[0] not in by_topic:
                by_topic[partition[0]] = AlterPartitionResponseTopicData(
                    topic_name=partition[0],
                    topic_id=self.context.topic_ids.get(partition[0], ZERO_UUID),
                    partitions=[],
                )
            if isinstance(row, LeaderAndIsr):
                response = AlterPartitionResponsePartitionData(
                    partition_index=partition[1],
                    leader_id=row.leader,
                    leader_epoch=row.leader_epoch,
                    isr=list(row.isr),
                    leader_recovery_state=row.recovery_state,
                    partition_epoch=row.partition_epoch,
                )
            else:
                response = AlterPartitionResponsePartitionData(
                    partition_index=partition[1], error_code=row
                )
            by_topic[partition[0]].partitions.append(response)
        return AlterPartitionResponse(topics=[*by_topic.values(), *unknown])

    def _validate(
        self,
        broker_id: int,
        partition: TopicPartition,
        requested: "AlterPartitionRequestPartitionData",
        version: int,
    ) -> Row:
        """The state to write, the current state if nothing changes, or an error code."""
        context = self.context
        current = context.leadership.get(partition)
        if current is None or partition[0] in context.topics_with_deletion_started:
            return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        epochs = {each.broker_id: each.broker_epoch for each in requested.new_isr_with_epochs}
        isr = tuple(epochs) if version >= 3 else tuple(requested.new_isr)
        if (
            requested.partition_epoch > current.partition_epoch
            or requested.leader_epoch > current.leader_epoch
        ):
            # The leader has a newer state, so there is a newer controller.
            return ErrorCode.NOT_CONTROLLER
        if requested.leader_epoch < current.leader_epoch:
            return ErrorCode.FENCED_LEADER_EPOCH
        same = set(isr) == set(current.isr) and broker_id == current.leader
        if same and requested.leader_recovery_state == current.recovery_state:
            return current  # retried after a lost response
        if requested.partition_epoch < current.partition_epoch:
            return ErrorCode.INVALID_UPDATE_VERSION
        if broker_id != current.leader or broker_id not in isr or len(set(isr)) != len(isr):
            return ErrorCode.INVALID_REQUEST
        if requested.leader_recovery_state == RECOVERING and (
            len(isr) > 1 or current.recovery_state == RECOVERED
        ):
            return ErrorCode.INVALID_REQUEST
        ineligible = [
            each
            for each in isr
            # A member stays one until it is removed: also one that was taken out of the assignment.
            if each not in current.isr
            and (
                each not in context.assignment(partition).replicas
                or not self._is_eligible_replica(each, epochs.get(each, -1))
            )
        ]
        if ineligible:
            logger.info(
                "Rejecting AlterPartition request for %s to ISR %s: ineligible replicas %s",
                partition,
                list(isr),
                ineligible,
            )
            return _ineligible(version)
        return current._replace(isr=isr, recovery_state=requested.leader_recovery_state)

    def _is_eligible_replica(self, broker_id: int, epoch: int) -> bool:
        """Whether a replica may join an ISR: its broker is live, not shutting down, and has the
        broker epoch of its fetch requests (-1: unknown)."""
        context = self.context
        return context.is_live(broker_id) and epoch in (-1, context.brokers[broker_id].epoch)

    async def _apply(
        self,
        wanted: dict[TopicPartition, LeaderAndIsr],
        rows: dict[TopicPartition, Row],
        version: int,
    ) -> None:
        leadership = self.context.leadership
        joined = {each for each, new in wanted.items() if set(new.isr) - set(leadership[each].isr)}
        finished, changed_meanwhile = await self.writer.update_states(wanted, joined)
        for partition in changed_meanwhile:
            rows[partition] = ErrorCode.INVALID_UPDATE_VERSION
        changed: list[TopicPartition] = []
        for partition, result in finished.items():
            if isinstance(result, BadVersion):
                # The broker that joins may be the one; the event of its registration follows.
                logger.info(
                    "Rejecting AlterPartition request for %s to ISR %s: a broker has registered",
                    partition,
                    list(wanted[partition].isr),
                )
                rows[partition] = _ineligible(version)
            elif isinstance(result, StoreError):
                logger.error("Failed to update ISR of partition %s: %s", partition, result)
                rows[partition] = ErrorCode.UNKNOWN_SERVER_ERROR
            else:
                rows[partition] = self.context.leadership[partition] = result
                logger.debug("New ISR of partition %s is %s", partition, result)
                changed.append(partition)
        if changed_meanwhile:  # for the next attempt of the leader
            await refresh_leadership(self.context, self.writer, changed_meanwhile)
        if changed:
            self._unsent.update(dict.fromkeys(changed))
            self._on_unsent()

    async def send_metadata(self) -> None:
        """Send the ISRs that AlterPartition changed to all brokers.

        A broker that returns is added to ISRs by every leader within a short time: with a request
        for each, the bytes sent would grow with the third power of the brokers.
        """
        changed = [each for each in self._unsent if each in self.context.leadership]
        self._unsent.clear()
        if changed:
            logger.info("The ISRs of %d partitions changed: %s", len(changed), listed(changed))
            self.batch.add_update_metadata_to_all(changed)
            await self.batch.send(self.context.epoch)

    def clear(self) -> None:
        """For a controller that resigns."""
        self._unsent.clear()
