"""New, failed, restarted and modified brokers; failed log directories; controlled shutdown.

Mirrors `processBrokerChange`, `onBrokerStartup`, `onBrokerFailure` and `doControlledShutdown` of
Kafka's `KafkaController`.
"""

import logging
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING

from ottla.controller.changes.reassignment import Reassignment
from ottla.controller.changes.topic_deletion import TopicDeletionManager
from ottla.controller.events.zk_watches import ZkWatches
from ottla.controller.model import BrokerInfo, LeaderAndIsr, PartitionReplica
from ottla.controller.requests.broker_channels import BrokerChannels
from ottla.controller.requests.request_batch import RequestBatch, rows_by_topic
from ottla.controller.state.context import ControllerContext, PartitionState, ReplicaState
from ottla.controller.state.leader_selection import ElectionStrategy
from ottla.controller.state.own_znodes import ProcessedBrokers
from ottla.controller.state_machines.partitions import PartitionStateMachine
from ottla.controller.state_machines.replicas import ReplicaStateMachine
from ottla.controller.tree import znodes
from ottla.controller.tree.store import ZnodeStore
from ottla.controller.tree.znode_json import MalformedZnode
from ottla.protocol.errors import ErrorCode, KafkaError, error_name
from ottla.protocol.listed import listed
from ottla.protocol.steps import over
from ottla.protocol.topics import TopicPartition

if TYPE_CHECKING:
    from ottla.protocol.messages.leader_and_isr import LeaderAndIsrRequest, LeaderAndIsrResponse

logger = logging.getLogger("ottla.controller")

# Of a replica that works: its broker has just applied the leader epoch, or had it already.
_STARTED = (ErrorCode.NONE, ErrorCode.STALE_CONTROLLER_EPOCH)


async def registered_ids(store: ZnodeStore) -> list[int]:
    """The ids of all registered brokers."""
    return znodes.broker_ids(await store.children(znodes.BROKER_IDS))


async def read_brokers(store: ZnodeStore, ids: Sequence[int]) -> dict[int, BrokerInfo]:
    """Read the brokers that are registered, with their broker epochs, by id."""
    found: dict[int, BrokerInfo] = {}
    nodes = await store.get_many([znodes.broker_path(broker_id) for broker_id in ids])
    for broker_id, node in zip(ids, nodes, strict=True):
        if node is None:
            continue
        try:
            found[broker_id] = znodes.decode_broker(broker_id, node[0], node[1].czxid)
        except MalformedZnode as error:
            logger.error("Ignoring broker %d: %s", broker_id, error)
    return found


def _ids(broker_ids: Iterable[int]) -> str:
    return ",".join(str(broker_id) for broker_id in broker_ids)


class BrokerChanges:
    """Handlers for registrations, and for LeaderAndIsr responses with storage errors."""

    def __init__(
        self,
        context: ControllerContext,
        store: ZnodeStore,
        channels: BrokerChannels,
        partitions: PartitionStateMachine,
        replicas: ReplicaStateMachine,
        batch: RequestBatch,
        deletion: TopicDeletionManager,
        reassignments: Reassignment,
        watches: ZkWatches,
        is_compatible: Callable[[BrokerInfo], bool],
        processed: ProcessedBrokers,
    ) -> None:
        """`is_compatible`: whether a broker supports the finalized features (KIP-584)."""
        self.context = context
        self.store = store
        self.channels = channels
        self.partitions = partitions
        self.replicas = replicas
        self.batch = batch
        self.deletion = deletion
        self.reassignments = reassignments
        self.watches = watches
        self.is_compatible = is_compatible
        self.processed = processed

    async def load(self) -> None:
        """Read the registered brokers for a new controller, and add their channels."""
        version = await self.processed.read_version()
        self.context.brokers = await self._read_compatible_brokers()
        self.processed.set_version(version)
        for broker in self.context.brokers.values():
            self.channels.add_broker(broker)

    async def _read_compatible_brokers(self) -> dict[int, BrokerInfo]:
        """Watch the registered brokers, and read those that support the features."""
        ids = await registered_ids(self.store)
        await self.watches.watch_brokers(ids)
        return self._compatible_brokers(await read_brokers(self.store, ids))

    def _compatible_brokers(self, brokers: dict[int, BrokerInfo]) -> dict[int, BrokerInfo]:
        accepted: dict[int, BrokerInfo] = {}
        for broker in brokers.values():
            if self.is_compatible(broker):
                accepted[broker.broker_id] = broker
            else:
                logger.warning(
                    "Ignoring broker %d: it does not support the finalized features",
                    broker.broker_id,
                )
        return accepted

    async def on_broker_change(self) -> None:
        """Compare the registered brokers with the context; a higher epoch means a restart."""
        context = self.context
        version = await self.processed.read_version()
        registered = await self._read_compatible_brokers()
        known = context.brokers
        new = [each for each in registered.values() if each.broker_id not in known]
        dead = [broker_id for broker_id in known if broker_id not in registered]
        bounced = [
            each
            for each in registered.values()
            if each.broker_id in known and each.epoch > known[each.broker_id].epoch
        ]
        if not (new or dead or bounced):
            self.processed.set_version(version)
            return
        # The last one that is removed stays in an ISR: one that was shut down cleanly, if there is.
        bounced.sort(key=lambda each: not each.unclean_shutdown)
        logger.info(
            "Newly added brokers: %s, deleted brokers: %s, bounced brokers: %s, "
            "all live brokers: %s",
            _ids(each.broker_id for each in new),
            _ids(dead),
            _ids(each.broker_id for each in bounced),
            _ids(registered),
        )
        for broker_id in dead:
            self.channels.remove_broker(broker_id)
        for broker in bounced:
            self.channels.remove_broker(broker.broker_id)
        if new:
            self._add(new)
            await self.on_startup([each.broker_id for each in new])
        if bounced:
            ids = [each.broker_id for each in bounced]
            await self._on_failure(ids)
            self._add(bounced)
            await self.on_startup(ids)
        if dead:
            await self._on_failure(dead)
        self.processed.set_version(version)
        await self.processed.save(context.brokers)

    def _add(self, brokers: list[BrokerInfo]) -> None:
        """To the channels and to the context at once: a controller that resigns removes the
        channels of the brokers in its context."""
        for broker in brokers:
            self.channels.add_broker(broker)
            self.context.brokers[broker.broker_id] = broker

    async def on_startup(self, broker_ids: list[int]) -> None:
        """Send the new brokers to the others and the full metadata to them; then their replicas
        come online."""
        logger.info("New broker startup callback for %s", _ids(broker_ids))
        context = self.context
        for broker_id in broker_ids:
            context.offline_directories.pop(broker_id, None)
        others = [broker_id for broker_id in context.brokers if broker_id not in broker_ids]
        self.batch.add_update_metadata(others, ())
        await self.batch.send(context.epoch)
        # The new ones get the metadata of all partitions before any LeaderAndIsr, as a follower
        # needs the address of its leader.
        self.batch.add_update_metadata(broker_ids, ())
        async for partition in over(context.leadership):
            if partition[0] not in context.topics_to_delete:
                self.batch.add_update_metadata((), (partition,))
        await self.batch.send(context.epoch)
        replicas = context.replicas_on(broker_ids)
        await self.replicas.handle_state_changes(
            [each for each in replicas if self._can_come_online(each)], ReplicaState.ONLINE
        )
        await self.partitions.trigger_online_partitions()
        await self.reassignments.resume_for_brokers(broker_ids)
        waiting = dict.fromkeys(
            each.partition[0] for each in replicas if each.partition[0] in context.topics_to_delete
        )
        await self.deletion.resume_deletion_for_topics(waiting)

    def _can_come_online(self, replica: PartitionReplica) -> bool:
        """Whether the deletion of a replica has not started; see TopicDeletionManager."""
        return self.context.replica_states.get(replica) not in (
            ReplicaState.DELETION_STARTED,
            ReplicaState.DELETION_SUCCESSFUL,
        )

    async def _on_failure(self, broker_ids: list[int]) -> None:
        logger.info("Broker failure callback for %s", _ids(broker_ids))
        context = self.context
        for broker_id in broker_ids:
            context.brokers.pop(broker_id, None)
            self.batch.forget_dropped_deletions(broker_id)
            context.offline_directories.pop(broker_id, None)
            context.shutting_down.discard(broker_id)
        await self.on_replicas_offline(context.replicas_on(broker_ids))

    async def on_replicas_offline(self, replicas: list[PartitionReplica]) -> None:
        """Elect leaders for partitions without one, and remove the replicas from their ISRs."""
        context = self.context
        to_delete: list[PartitionReplica] = []
        staying: list[PartitionReplica] = []
        for each in replicas:
            exempt = context.is_exempt_from_election(each.partition[0])
            (to_delete if exempt else staying).append(each)
        leaderless = [
            each async for each in over(context.leadership) if context.has_offline_leader(each)
        ]
        await self.partitions.handle_state_changes(leaderless, PartitionState.OFFLINE)
        outcomes = await self.partitions.trigger_online_partitions()
        await self.replicas.handle_state_changes(staying, ReplicaState.OFFLINE)
        await self.deletion.fail_replica_deletion(to_delete)
        elected = any(isinstance(outcome, LeaderAndIsr) for outcome in outcomes.values())
        if not staying and not elected:  # otherwise it was sent with those changes
            self.batch.add_update_metadata_to_all(())
            await self.batch.send(context.epoch)

    async def on_broker_modification(self, broker_id: int) -> None:
        """A registered broker has changed its listeners or features, or its znode: if it was
        ignored before, it may be accepted now."""
        context = self.context
        before = context.brokers.get(broker_id)
        if before is None:
            await self.on_broker_change()
            return
        now = (await read_brokers(self.store, [broker_id])).get(broker_id)
        if now is None or now.epoch != before.epoch:
            return
        if now.endpoints != before.endpoints or now.features != before.features:
            logger.info("Updated broker %d: %s", broker_id, now)
            context.brokers[broker_id] = now
            if now.endpoints != before.endpoints:
                self.channels.update_broker(now)
            self.batch.add_update_metadata_to_all(())
            await self.batch.send(context.epoch)

    async def on_resend(self, broker_id: int) -> None:
        """The request queue of the broker overflowed: handles it like a restarted one.

        Deletions are started again: their StopReplica may have been dropped.
        """
        context = self.context
        if broker_id in context.brokers:
            await self.deletion.fail_replica_deletion(
                [
                    each
                    for each in context.replicas_on([broker_id])
                    if context.replica_states.get(each) is ReplicaState.DELETION_STARTED
                ]
            )
            await self.on_startup([broker_id])
            self.batch.add_dropped_deletions(broker_id)
            await self.batch.send(context.epoch)

    async def on_leader_and_isr_response(
        self, broker_id: int, response: "LeaderAndIsrResponse", request: "LeaderAndIsrRequest"
    ) -> None:
        """Replicas with KAFKA_STORAGE_ERROR are on a failed log directory: they go offline.

        Those without an error any more are online again: they may lead partitions without a leader,
        and can be deleted. So are those whose broker has this leader epoch already: it has started
        them by a request whose response was lost. One that was taken offline before this response
        to an older request got no request since then, and gets one now.
        """
        context = self.context
        if response.error_code:
            logger.error(
                "Received error %s in LeaderAndIsr response from broker %d",
                error_name(response.error_code),
                broker_id,
            )
            return
        if broker_id not in context.brokers:
            return
        offline = context.offline_directories.setdefault(broker_id, set())
        fresh: list[PartitionReplica] = []
        returned: list[PartitionReplica] = []
        for partition, code in self._errors_by_partition(response, request):
            if code == ErrorCode.KAFKA_STORAGE_ERROR:
                if partition not in offline:
                    offline.add(partition)
                    fresh.append(PartitionReplica(partition, broker_id))
            elif code in _STARTED and partition in offline:
                offline.discard(partition)
                returned.append(PartitionReplica(partition, broker_id))
        if fresh:
            logger.info(
                "Mark replicas %s on broker %d as offline",
                listed(each.partition for each in fresh),
                broker_id,
            )
            await self.on_replicas_offline(
                [each for each in fresh if self.context.has_partition(each.partition)]
            )
        missed = [
            each
            for each in returned
            if context.replica_states.get(each) is ReplicaState.OFFLINE
            and context.has_partition(each.partition)
            and each.partition.topic not in context.topics_to_delete
        ]
        if missed:
            await self.replicas.handle_state_changes(missed, ReplicaState.ONLINE)
        if returned and not fresh:
            await self.partitions.trigger_online_partitions()
        topics = dict.fromkeys(each.partition.topic for each in returned)
        await self.deletion.resume_deletion_for_topics(topics)

    def _errors_by_partition(
        self, response: "LeaderAndIsrResponse", request: "LeaderAndIsrRequest"
    ) -> Iterable[tuple[TopicPartition, int]]:
        for row in response.partition_errors:
            yield TopicPartition(row.topic_name, row.partition_index), row.error_code
        for name, _, rows in rows_by_topic(request, response, self.context.topic_names):
            for row in rows:
                yield TopicPartition(name, row.partition_index), row.error_code


class ControlledShutdown:
    """Mirrors `doControlledShutdown` of Kafka's `KafkaController`."""

    def __init__(
        self,
        context: ControllerContext,
        partitions: PartitionStateMachine,
        replicas: ReplicaStateMachine,
        batch: RequestBatch,
    ) -> None:
        self.context = context
        self.partitions = partitions
        self.replicas = replicas
        self.batch = batch

    async def shut_down(self, broker_id: int, broker_epoch: int) -> list[TopicPartition]:
        """Move the leaders; return the partitions that the broker still leads.

        The broker is marked as shutting down until its znode is deleted: it is not elected as
        leader and does not join an ISR. Unlike Kafka's, the result is empty when every broker is
        shutting down: nobody will take over, so that asking again would only delay the stop.
        Raises KafkaError STALE_BROKER_EPOCH or BROKER_NOT_AVAILABLE.
        """
        context = self.context
        broker = context.brokers.get(broker_id)
        if broker is None:
            raise KafkaError(
                ErrorCode.BROKER_NOT_AVAILABLE, f"Broker id {broker_id} does not exist."
            )
        if broker_epoch not in (-1, broker.epoch) and broker_epoch < broker.epoch:
            raise KafkaError(
                ErrorCode.STALE_BROKER_EPOCH,
                f"Received controlled shutdown request from an old broker epoch {broker_epoch} "
                f"for broker {broker_id}. Current broker epoch is {broker.epoch}.",
            )
        logger.info("Shutting down broker %d", broker_id)
        context.shutting_down.add(broker_id)
        leading: list[TopicPartition] = []
        following: list[TopicPartition] = []
        for partition in context.partitions_on(broker_id):
            state = context.leadership.get(partition)
            replicas = context.assignment(partition).replicas
            if state is None or len(replicas) < 2 or partition[0] in context.topics_to_delete:
                continue
            (leading if state.leader == broker_id else following).append(partition)
        await self.partitions.handle_state_changes(
            leading, PartitionState.ONLINE, ElectionStrategy.CONTROLLED_SHUTDOWN
        )
        for partition in following:  # it stops fetching before it is removed from the ISR
            self.batch.add_stop_replica((broker_id,), partition, delete=False)
        await self.batch.send(context.epoch)
        await self.replicas.handle_state_changes(
            [
                replica
                for replica in (PartitionReplica(partition, broker_id) for partition in following)
                if context.replica_states.get(replica)
                in (
                    ReplicaState.NEW,
                    ReplicaState.ONLINE,
                    ReplicaState.OFFLINE,
                    ReplicaState.DELETION_INELIGIBLE,
                )
            ],
            ReplicaState.OFFLINE,
        )
        return context.partitions_led_by(broker_id) if context.live_broker_ids() else []
