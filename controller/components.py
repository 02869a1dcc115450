"""Builds the components of a controller, and runs its failover and its resignation.

Both touch all components; they mirror ``onControllerFailover`` and ``onControllerResignation`` of
Kafka's ``KafkaController``.
"""

import logging
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING

from ottla.controller.admin.features import Features
from ottla.controller.admin.topic_admin import TopicAdmin
from ottla.controller.changes.broker_changes import BrokerChanges, ControlledShutdown
from ottla.controller.changes.epoch_repair import EpochRepair
from ottla.controller.changes.isr_changes import IsrChanges, refresh_leadership
from ottla.controller.changes.leader_elections import LeaderElections
from ottla.controller.changes.reassignment import Reassignment
from ottla.controller.changes.topic_changes import TopicChanges
from ottla.controller.changes.topic_deletion import TopicDeletion
from ottla.controller.changes.topic_ids import TopicIds
from ottla.controller.events.events import Event, PartitionReassignmentIsrChange
from ottla.controller.events.zk_watches import ZkWatches
from ottla.controller.requests.broker_channels import BrokerChannels
from ottla.controller.requests.request_batch import Delivery, RequestBatch, ResponseCallbacks
from ottla.controller.settings import ControllerSettings, control_versions
from ottla.controller.slices import in_slices
from ottla.controller.state.context import ControllerContext
from ottla.controller.state.fenced_writes import FencedWriter
from ottla.controller.state.own_znodes import DeletedTopics, ProcessedBrokers
from ottla.controller.state_machines.partitions import PartitionStateMachine
from ottla.controller.state_machines.replicas import ReplicaStateMachine
from ottla.controller.tree import znodes
from ottla.controller.tree.entity_configs import read_configs
from ottla.controller.tree.store import ZnodeStore
from ottla.protocol.topics import TopicPartition

if TYPE_CHECKING:
    from ottla.protocol.messages.alter_partition import AlterPartitionResponse
    from ottla.protocol.messages.leader_and_isr import LeaderAndIsrRequest, LeaderAndIsrResponse

logger = logging.getLogger("ottla.controller")


class _ReassignmentLink:
    """BrokerChanges resumes reassignments, and Reassignment is built after it."""

    def __init__(self) -> None:
        self.target: Reassignment | None = None

    async def resume_for_brokers(self, broker_ids: Iterable[int]) -> None:
        if self.target is not None:
            await self.target.resume_for_brokers(broker_ids)


class ControllerComponents:
    """Constructs the components and connects them."""

    def __init__(
        self,
        broker_id: int,
        store: ZnodeStore,
        channels: BrokerChannels,
        settings: ControllerSettings,
        responses: ResponseCallbacks,
        put: Callable[[Event], None],
        on_topic_deleted: Callable[[str], None],
        supported_features: Mapping[str, tuple[int, int]],
    ) -> None:
        self.store = store
        self.channels = channels
        self.settings = settings
        self.put = put
        context = self.context = ControllerContext()
        versions = control_versions(settings.inter_broker_protocol_version)
        writer = self.writer = FencedWriter(store)
        batch = self.batch = RequestBatch(broker_id, context, channels, settings, responses)
        watches = self.watches = ZkWatches(store, put)
        deleted = self.deleted = DeletedTopics()
        self.processed_brokers = ProcessedBrokers(writer)
        partitions = self.partitions = PartitionStateMachine(
            context, writer, batch, self._unclean_allowed, deleted.first_epoch
        )
        replicas = self.replicas = ReplicaStateMachine(context, writer, batch)
        self.features = Features(context, writer, versions, supported_features)
        self.topic_admin = TopicAdmin(context, writer, settings)
        self.topic_changes = TopicChanges(
            context, writer, partitions, replicas, watches, deleted, topic_ids=versions.topic_ids
        )
        self.topic_ids = TopicIds(context, writer, batch)
        self.epoch_repair = EpochRepair(context, writer, batch)
        self.deletion = TopicDeletion(
            context,
            writer,
            partitions,
            replicas,
            batch,
            watches,
            deleted,
            enabled=lambda: self.settings.delete_topic_enable,
            on_deleted=on_topic_deleted,
        )
        link = _ReassignmentLink()
        self.broker_changes = BrokerChanges(
            context,
            store,
            channels,
            partitions,
            replicas,
            batch,
            self.deletion,
            link,
            watches,
            self.features.is_compatible,
            self.processed_brokers,
        )
        self.reassignment = link.target = Reassignment(
            context, writer, partitions, replicas, batch, self.deletion, watches
        )
        self.isr_changes = IsrChanges(context, writer, replicas, batch, self.reassignment)
        self.elections = LeaderElections(context, writer, partitions)
        self.shutdown = ControlledShutdown(context, partitions, replicas, batch)

    def update_settings(self, settings: ControllerSettings) -> None:
        self.settings = settings
        self.topic_admin.settings = settings

    async def _unclean_allowed(self, topics: Iterable[str]) -> dict[str, bool]:
        """unclean.leader.election.enable of the topics, with the broker's default."""
        default = self.settings.unclean_leader_election_enable
        entities = {f"{znodes.ENTITY_TOPICS}/{topic}": topic for topic in topics}
        allowed: dict[str, bool] = {}
        for entity, properties in (await read_configs(self.store, entities)).items():
            value = properties.get("unclean.leader.election.enable")
            allowed[entities[entity]] = (
                default if value is None else value.strip().lower() == "true"
            )
        return allowed

    # Failover and resignation

    async def on_controller_failover(self, epoch: int, epoch_version: int) -> None:
        """Reads the state from the znode tree, sends it to the brokers, resumes pending work.

        The watches are set first, so that no later change is missed. Brokers get the live brokers
        in UpdateMetadata before the first LeaderAndIsr requests of the state machines, as followers
        need the addresses of their leaders.
        """
        context = self.context
        context.epoch = epoch
        self.writer.set_epoch(epoch, epoch_version)
        await self.features.load()
        await self.watches.watch_general()
        await self.isr_changes.discard_notifications()
        await self.broker_changes.load()
        await self.topic_changes.load_topics(await self.store.children(znodes.TOPICS))
        async for partition in in_slices(context.partitions()):
            if context.assignment(partition).is_being_reassigned:
                context.partitions_being_reassigned[partition] = None
        state_zxids = await refresh_leadership(context, self.writer, context.partitions())
        await self.deleted.load(self.store)
        await self.deletion.load()
        logger.info(
            "Initialized controller context with epoch %d: %d brokers, %d topics, %d partitions",
            epoch,
            len(context.brokers),
            len(context.assignments),
            len(context.leadership),
        )
        self.batch.add_update_metadata(context.brokers, ())
        await self.batch.send(epoch)
        # Before any LeaderAndIsr: a leader that lost records must not lead for a moment, as its
        # followers would truncate.
        await self.partitions.elect_after_unclean_restarts(
            context.isr_members_before_unclean_restart(
                state_zxids, await self.processed_brokers.load()
            )
        )
        await self.processed_brokers.save(context.brokers)
        await self.replicas.startup()
        await self.partitions.startup()
        await self.reassignment.load()
        await self.deletion.resume_deletions()
        await self.elections.on_znode()
        logger.info(
            "Controller startup complete: ready to serve as the new controller with epoch %d", epoch
        )

    def on_controller_resignation(self) -> None:
        """Resets the context, the watches and the requests to brokers; writes no znode."""
        self.watches.stop()
        self.batch.clear()
        self.topic_ids.clear()
        self.epoch_repair.clear()
        self.topic_changes.unreadable.clear()
        for broker_id in list(self.context.brokers):
            self.channels.remove_broker(broker_id)
        self.writer.set_epoch(0, -1)
        self.context.reset()

    async def process_topic_change(self) -> None:
        """Handles new and removed topics, and new ones that are already marked for deletion."""
        if await self.topic_changes.on_topic_change():
            await self.deletion.on_deletion_requested()

    async def process_partition_modification(self, topic: str) -> None:
        """Handles added partitions of a topic, and a topic that could not be read before: its znode
        was malformed, or was changed while it got an id."""
        if topic in self.context.assignments:
            written_id = await self.topic_changes.on_partition_modification(topic)
            if written_id is not None:
                await self.topic_ids.adopt(topic, written_id)
        else:
            await self.process_topic_change()

    async def refresh_brokers_if_missing(self, *, count: int = 0, ids: Iterable[int] = ()) -> None:
        """Reads the registered brokers if fewer than ``count`` or not all ``ids`` are known.

        A broker may have registered just now, with its event still in the queue behind the request.
        """
        known = self.context.brokers
        if count > len(self.context.live_broker_ids()) or any(each not in known for each in ids):
            await self.broker_changes.on_broker_change()

    # Responses

    def deliveries(self) -> list[Delivery]:
        """The last UpdateMetadata request to each live broker."""
        deliveries = self.batch.metadata_deliveries
        return [deliveries[each] for each in self.context.brokers if each in deliveries]

    def needs_processing(
        self, broker_id: int, response: "LeaderAndIsrResponse", request: "LeaderAndIsrRequest"
    ) -> bool:
        """Whether a response has errors or the id of a topic without one, or may clear the errors
        of offline directories; most do not."""
        context = self.context
        if response.error_code or context.offline_directories.get(broker_id):
            return True
        if context.topics_without_id and any(
            topic.topic_name in context.topics_without_id for topic in request.topic_states
        ):
            return True
        if self.epoch_repair.asks(request):
            return True
        rows = list(response.partition_errors)
        for topic in response.topics:
            rows.extend(topic.partition_errors)
        return any(row.error_code for row in rows)

    def check_reassignments(self, response: "AlterPartitionResponse") -> None:
        """Queues the completion of reassignments for ISRs that changed.

        It runs after the response is sent, so that the leader does not wait for it.
        """
        for topic in response.topics:
            name = topic.topic_name or self.context.topic_names.get(topic.topic_id)
            for row in topic.partitions:
                if name is not None and not row.error_code:
                    partition = TopicPartition(name, row.partition_index)
                    if partition in self.context.partitions_being_reassigned:
                        self.put(PartitionReassignmentIsrChange(partition))
