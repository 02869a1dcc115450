"""The parts of a controller: election, failover, resignation, and the dispatch of events.

Mirrors `process`, `elect`, `onControllerFailover` and `onControllerResignation` of Kafka's
`KafkaController`. When a fenced write fails because another controller was elected, this one
resigns. When the store fails while an event is processed, the context may differ from the znode
tree: the controller resigns, deletes `/controller` if it can, and takes part in the next election,
after which it reads all state again.
"""

import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any

from ottla.controller import election
from ottla.controller.admin.features import Features
from ottla.controller.admin.topic_admin import TopicAdmin
from ottla.controller.changes.broker_changes import BrokerChanges, ControlledShutdown
from ottla.controller.changes.epoch_repair import EpochRepair
from ottla.controller.changes.isr_changes import IsrChanges, refresh_leadership
from ottla.controller.changes.leader_elections import LeaderElections
from ottla.controller.changes.reassignment import PARTITIONS_PER_BATCH, Reassignment
from ottla.controller.changes.topic_changes import TopicChanges
from ottla.controller.changes.topic_deletion import TopicDeletionManager
from ottla.controller.changes.topic_ids import TopicIds
from ottla.controller.errors import ControllerMoved, StateChangeFailed
from ottla.controller.events.event_queue import EventProcessedCallback, EventQueue
from ottla.controller.events.events import (
    AutoLeaderBalance,
    BrokerChange,
    BrokerModification,
    BrokerResend,
    Call,
    ControllerChange,
    Event,
    Expire,
    ForceResign,
    IsrChangeNotification,
    LeaderAndIsrResponseReceived,
    LogDirEventNotification,
    PartitionModification,
    PartitionReassignment,
    PartitionReassignmentIsrChange,
    PreferredReplicaElection,
    Reelect,
    RegisterBrokerAndReelect,
    SendIsrChanges,
    ShutDown,
    Startup,
    TopicChange,
    TopicDeletion,
    TopicDeletionRetry,
    TopicDeletionStopReplicaResponseReceived,
    UncleanLeaderElectionEnable,
    UpdateMetadataResponseReceived,
)
from ottla.controller.events.zk_watches import ZkWatches
from ottla.controller.registration import BrokerIdTaken, BrokerRegistration
from ottla.controller.requests.broker_channels import BrokerChannels
from ottla.controller.requests.request_batch import Delivery, RequestBatch, ResponseCallbacks
from ottla.controller.runtime import Cancellable, Runtime
from ottla.controller.settings import ControllerSettings, control_versions
from ottla.controller.state.context import ControllerContext
from ottla.controller.state.fenced_writes import FencedWriter
from ottla.controller.state.own_znodes import DeletedTopics, ProcessedBrokers
from ottla.controller.state_machines.partitions import PartitionStateMachine
from ottla.controller.state_machines.replicas import ReplicaStateMachine
from ottla.controller.tree import znodes
from ottla.controller.tree.entity_configs import read_configs
from ottla.controller.tree.store import StoreError, ZnodeStore
from ottla.controller.tree.znode_json import MalformedZnode
from ottla.protocol.errors import ErrorCode, KafkaError, error_name
from ottla.protocol.steps import over
from ottla.protocol.topics import TopicPartition

if TYPE_CHECKING:
    from ottla.protocol.messages.alter_partition import AlterPartitionResponse
    from ottla.protocol.messages.leader_and_isr import LeaderAndIsrRequest, LeaderAndIsrResponse

logger = logging.getLogger("ottla.controller")

FIRST_BALANCE_DELAY_MS = 5_000
"""From the election to the first check of the leader imbalance, as in Kafka."""
ISR_METADATA_DELAY_MS = 30
"""From a change of an ISR to the UpdateMetadata request with it and those that follow. Only clients
that list in-sync replicas see the delay; leaders and followers do not wait for it."""
RETRY_DELAY_MS = 1_000
"""From a failure of the store to the next attempt to resign and to be elected."""
RESEND_DELAY_MS = 1_000
"""From a LeaderAndIsr or UpdateMetadata response with a top-level error to the full state for that
broker."""

_STALE = (ErrorCode.STALE_BROKER_EPOCH, ErrorCode.STALE_CONTROLLER_EPOCH)

# A handler of one event class; Any, as the type of the table cannot relate key and parameter.
Handler = Callable[[Any], Awaitable[object]]


class Lifecycle:
    """Builds the parts, which are active from election to resignation, and runs them.

    Loop only, one event at a time.
    """

    def __init__(
        self,
        broker_id: int,
        store: ZnodeStore,
        registration: BrokerRegistration,
        channels: BrokerChannels,
        settings: ControllerSettings,
        runtime: Runtime,
        supported_features: Mapping[str, tuple[int, int]],
        on_topic_deleted: Callable[[str], None],
        on_controller_change: Callable[[int], None],
        on_kraft: Callable[[str, int], None],
        on_event_processed: EventProcessedCallback,
    ) -> None:
        self.broker_id = broker_id
        self.controller_id = election.NO_CONTROLLER
        self.store = store
        self.registration = registration
        self.runtime = runtime
        self.queue = EventQueue(self.process, runtime.now_ms, on_event_processed)
        self.started = Delivery()
        self.stopped = Delivery()
        #: How a KRaft controller has taken over, in a migration; empty otherwise.
        self.kraft_problem = ""
        self._on_kraft = on_kraft
        self._on_controller_change = on_controller_change
        self._timer: Cancellable | None = None
        self._retry: Cancellable | None = None
        self._isr_metadata_is_due = False  # a timer runs
        self._resends: set[int] = set()  # brokers that get the full state after a delay
        self._takeover_failed = False  # set until the takeover is complete
        self._last_failure = ""  # logged once while it repeats
        self._registered = True  # the broker registers before it starts the controller
        responses = ResponseCallbacks(self._on_leader_and_isr, self._on_metadata, self._on_deletion)
        self.channels = channels
        self.settings = settings
        context = self.context = ControllerContext()
        versions = control_versions(settings.inter_broker_protocol_version)
        writer = self.writer = FencedWriter(store)
        batch = self.batch = RequestBatch(broker_id, context, channels, settings, responses)
        watches = self.watches = ZkWatches(store, self.queue.put)
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
        self.deletion = TopicDeletionManager(
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
        self.reassignment = Reassignment(
            context, writer, partitions, replicas, batch, self.deletion, watches
        )
        self.broker_changes = BrokerChanges(
            context,
            store,
            channels,
            partitions,
            replicas,
            batch,
            self.deletion,
            self.reassignment,
            watches,
            self.features.is_compatible,
            self.processed_brokers,
        )
        self.isr_changes = IsrChanges(
            context, writer, replicas, batch, self.reassignment, self._schedule_isr_metadata
        )
        self.elections = LeaderElections(context, writer, partitions)
        self.shutdown = ControlledShutdown(context, partitions, replicas, batch)
        self._handlers: Mapping[type, Handler] = self._table()

    def update_settings(self, settings: ControllerSettings) -> None:
        self.settings = settings
        self.topic_admin.settings = settings

    @property
    def is_active(self) -> bool:
        return self.controller_id == self.broker_id

    async def run(self) -> None:
        """Process events until `ShutDown`; the task of the controller."""
        try:
            await self.queue.run()
        finally:
            self.queue.close()
            self.stopped.finish()

    # Events

    def _table(self) -> Mapping[type, Handler]:
        """The events that only the active controller processes; see `_process_always`."""
        return {
            BrokerChange: lambda _: self.broker_changes.on_broker_change(),
            BrokerModification: lambda event: self.broker_changes.on_broker_modification(
                event.broker_id
            ),
            BrokerResend: lambda event: self.broker_changes.on_resend(event.broker_id),
            TopicChange: lambda _: self.process_topic_change(),
            PartitionModification: lambda event: self.process_partition_modification(event.topic),
            TopicDeletion: lambda _: self.deletion.on_deletion_requested(),
            TopicDeletionRetry: self._retry_deletion,
            TopicDeletionStopReplicaResponseReceived: self._replica_deletion,
            LeaderAndIsrResponseReceived: self._leader_and_isr,
            UpdateMetadataResponseReceived: self._metadata_error,
            LogDirEventNotification: lambda _: self.isr_changes.on_log_dir_notification(),
            IsrChangeNotification: lambda _: self.isr_changes.on_isr_notification(),
            SendIsrChanges: lambda _: self.isr_changes.send_metadata(),
            PreferredReplicaElection: lambda _: self.elections.on_znode(),
            PartitionReassignment: lambda _: self._reassign(),
            PartitionReassignmentIsrChange: self._isr_change_of_reassignment,
            AutoLeaderBalance: lambda _: self._auto_leader_rebalance(),
            UncleanLeaderElectionEnable: lambda event: self.partitions.trigger_online_partitions(
                event.topic
            ),
        }

    async def process(self, event: Event) -> None:
        """Process an event; raise nothing but cancellation."""
        try:
            if isinstance(event, Call):
                await self._process_call(event)
            elif not await self._process_always(event) and self.is_active:
                await self._handlers[type(event)](event)
        except ControllerMoved as moved:
            logger.info("%s", moved)
            self.batch.clear()
            await self._on_controller_moved()
        except StoreError as error:
            self.batch.clear()
            name = event.name if isinstance(event, Call) else type(event).__name__
            self._on_store_failure(f"{name}: {type(error).__name__}: {error}")
        except MalformedZnode as error:
            self.batch.clear()
            if self.is_active:
                logger.error("Failed to process %s: %s", type(event).__name__, error)
            else:  # until it is repaired
                self._on_store_failure(str(error))
        except Exception:
            self.batch.clear()
            logger.exception("Error processing event %r", event)

    async def _process_call(self, call: Call) -> None:
        try:
            result = await call.work()
        except KafkaError as error:
            _respond(call, error)
        except ControllerMoved as error:
            _respond(call, KafkaError(ErrorCode.NOT_CONTROLLER, str(error)))
            raise
        except StoreError as error:
            _respond(
                call, KafkaError(ErrorCode.REQUEST_TIMED_OUT, f"The znode store failed: {error}")
            )
            raise
        except StateChangeFailed as error:
            _respond(call, KafkaError(ErrorCode.UNKNOWN_SERVER_ERROR, str(error)))
        except Exception as error:
            _respond(call, KafkaError(ErrorCode.UNKNOWN_SERVER_ERROR, f"Internal error: {error}"))
            raise
        else:
            if not call.future.done():
                call.future.set_result(result)

    async def _process_always(self, event: Event) -> bool:
        """Process the events that all brokers process; return whether it was one."""
        if isinstance(event, Startup):
            try:
                await self._elect()
            finally:
                self.started.finish()
        elif isinstance(event, ControllerChange):
            if await self._maybe_resign() == election.NO_CONTROLLER:
                # It was deleted before the watch was set again, which does not fire for that.
                await self._elect()
        elif isinstance(event, Reelect):
            await self._maybe_resign()
            await self._elect()
        elif isinstance(event, RegisterBrokerAndReelect):
            await self._register_if_expired()
            await self._maybe_resign()
            await self._elect()
        elif isinstance(event, Expire):
            logger.warning(
                "The ZooKeeper session of broker %d has expired, registering it with a new one; if "
                "this repeats, raise zookeeper.session.timeout.ms or find what stops this process",
                self.registration.info.broker_id,
            )
            self._registered = False
            self._resign(election.NO_CONTROLLER)
        elif isinstance(event, ForceResign):
            await self._force_resign()
        elif isinstance(event, ShutDown):
            await self._shut_down()
        else:
            return False
        return True

    def _is_current_epoch(self, broker_id: int, broker_epoch: int) -> bool:
        broker = self.context.brokers.get(broker_id)
        return broker is not None and broker.epoch == broker_epoch

    async def _replica_deletion(self, event: TopicDeletionStopReplicaResponseReceived) -> None:
        if self._is_current_epoch(event.broker_id, event.broker_epoch):
            failed = await self.deletion.on_stop_replica_response(event.broker_id, event.outcome)
            if failed:
                retry = TopicDeletionRetry(failed)
                self.runtime.call_later(RESEND_DELAY_MS, lambda: self.queue.put(retry))

    async def _reassign(self) -> None:
        if await self.reassignment.on_znode():  # the next batch, after the events that wait
            self.queue.put(PartitionReassignment())

    async def _isr_change_of_reassignment(self, event: PartitionReassignmentIsrChange) -> None:
        """Also that of the other partitions in the queue, up to a batch: they complete together."""
        more = self.queue.take(PartitionReassignmentIsrChange, PARTITIONS_PER_BATCH - 1)
        await self.reassignment.on_isr_change([event.partition, *(each.partition for each in more)])

    async def _retry_deletion(self, event: TopicDeletionRetry) -> None:
        await self.deletion.resume_deletion_for_topics(event.topics)

    async def _leader_and_isr(self, event: LeaderAndIsrResponseReceived) -> None:
        if self._is_current_epoch(event.broker_id, event.broker_epoch):
            await self.broker_changes.on_leader_and_isr_response(
                event.broker_id, event.response, event.request
            )
            await self.topic_ids.on_leader_and_isr_response(
                event.broker_id, event.response, event.request
            )
            await self.epoch_repair.on_leader_and_isr_response(
                event.broker_id, event.response, event.request
            )
            if event.response.error_code not in (ErrorCode.NONE, *_STALE):
                self._schedule_resend(event.broker_id)

    def _schedule_resend(self, broker_id: int) -> None:
        """The broker has applied nothing of a request: the state of now is sent, not that of then,
        and after a delay, so that an error that stays does not fill the queue."""
        if broker_id in self._resends:
            return
        self._resends.add(broker_id)

        def resend() -> None:
            self._resends.discard(broker_id)
            self.queue.put(BrokerResend(broker_id))

        self.runtime.call_later(RESEND_DELAY_MS, resend)

    def _schedule_isr_metadata(self) -> None:
        if not self._isr_metadata_is_due:
            self._isr_metadata_is_due = True
            self.runtime.call_later(ISR_METADATA_DELAY_MS, self._put_isr_metadata)

    def _put_isr_metadata(self) -> None:
        self._isr_metadata_is_due = False
        self.queue.put(SendIsrChanges())

    async def _metadata_error(self, event: UpdateMetadataResponseReceived) -> None:
        logger.error(
            "Received error %s in UpdateMetadata response from broker %d",
            error_name(event.error_code),
            event.broker_id,
        )
        if event.error_code == ErrorCode.STALE_CONTROLLER_EPOCH and self.is_active:
            logger.error(
                "Broker %d knows a newer controller epoch than %d and says so in its log. If no "
                "other controller is elected, %s was set back: write a higher number to it and "
                "delete %s",
                event.broker_id,
                self.context.epoch,
                znodes.CONTROLLER_EPOCH,
                znodes.CONTROLLER,
            )
        if event.error_code not in _STALE:
            # Later requests have later changes only.
            self._schedule_resend(event.broker_id)

    async def _auto_leader_rebalance(self) -> None:
        settings = self.settings
        try:
            if settings.auto_leader_rebalance_enable:
                await self.elections.auto_leader_rebalance(settings)
        finally:
            self._schedule_auto_leader_rebalance(
                settings.leader_imbalance_check_interval_seconds * 1000
            )

    def _schedule_auto_leader_rebalance(self, delay_ms: int) -> None:
        self._cancel_timer()
        self._timer = self.runtime.call_later(delay_ms, lambda: self.queue.put(AutoLeaderBalance()))

    def _cancel_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    async def process_topic_change(self) -> None:
        """Handle new and removed topics, and new ones that are already marked for deletion."""
        if await self.topic_changes.on_topic_change():
            await self.deletion.on_deletion_requested()

    async def process_partition_modification(self, topic: str) -> None:
        """Handle added partitions of a topic, and a topic that could not be read before: its znode
        was malformed, or was changed while it got an id."""
        if topic in self.context.assignments:
            written_id = await self.topic_changes.on_partition_modification(topic)
            if written_id is not None:
                await self.topic_ids.adopt(topic, written_id)
        else:
            await self.process_topic_change()

    async def refresh_brokers_if_missing(self, *, count: int = 0, ids: Iterable[int] = ()) -> None:
        """Read the registered brokers if fewer than `count` or not all `ids` are known.

        A broker may have registered just now, with its event still in the queue behind the request.
        """
        known = self.context.brokers
        if count > len(self.context.live_broker_ids()) or any(each not in known for each in ids):
            await self.broker_changes.on_broker_change()

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

    # Responses from brokers

    def _on_leader_and_isr(
        self, broker_id: int, broker_epoch: int, response: Any, request: Any
    ) -> None:
        if self.is_active and self.needs_processing(broker_id, response, request):
            self.queue.put(LeaderAndIsrResponseReceived(broker_id, broker_epoch, response, request))

    def _on_metadata(self, broker_id: int, error_code: int) -> None:
        if error_code and self.is_active:
            self.queue.put(UpdateMetadataResponseReceived(broker_id, error_code))

    def _on_deletion(
        self, broker_id: int, broker_epoch: int, outcome: dict[TopicPartition, int]
    ) -> None:
        self.queue.put(
            TopicDeletionStopReplicaResponseReceived(
                broker_id, broker_epoch, tuple(outcome.items())
            )
        )

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
        """Queue the completion of reassignments for ISRs that changed.

        It runs after the response is sent, so that the leader does not wait for it.
        """
        for topic in response.topics:
            name = topic.topic_name or self.context.topic_names.get(topic.topic_id)
            for row in topic.partitions:
                if name is not None and not row.error_code:
                    partition = TopicPartition(name, row.partition_index)
                    if partition in self.context.partitions_being_reassigned:
                        self.queue.put(PartitionReassignmentIsrChange(partition))

    # Election and resignation

    def _set_controller(self, controller_id: int) -> None:
        if controller_id != self.controller_id:
            self.controller_id = controller_id
            self._on_controller_change(controller_id)

    async def _elect(self) -> None:
        """Try to become controller unless there is one; start the failover if elected.

        Without a registration it is not, as another broker may have our id; nor between a takeover
        that failed and its retry, as a failure that stays would make one election follow the other.
        """
        if not self._registered or (self._takeover_failed and self._retry is not None):
            return
        current = await self._current_controller()
        if current == self.broker_id and self.is_active:
            return
        if current not in (election.NO_CONTROLLER, self.broker_id):
            self._set_controller(current)
            return
        if current == self.broker_id:
            # From an earlier session, or from a resignation that could not be written.
            await election.remove_own(self.store, self.broker_id)
        elected = await election.elect(self.store, self.broker_id, self.runtime.now_ms())
        logger.info(
            "%d successfully elected as the controller. Epoch incremented to %d",
            self.broker_id,
            elected.epoch,
        )
        self._set_controller(self.broker_id)
        self._takeover_failed = True
        try:
            await self.on_controller_failover(elected.epoch, elected.epoch_version)
        except (ControllerMoved, StoreError):
            raise
        except MalformedZnode as error:
            self._on_store_failure(str(error))
            return
        except Exception:
            logger.exception("Error during controller failover, resigning")
            self._on_store_failure("the controller failover failed")
            return
        self._takeover_failed = False
        self._last_failure = ""
        if self.settings.auto_leader_rebalance_enable:
            self._schedule_auto_leader_rebalance(FIRST_BALANCE_DELAY_MS)

    async def on_controller_failover(self, epoch: int, epoch_version: int) -> None:
        """Read the state from the znode tree, send it to the brokers, resume pending work.

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
        async for partition in over(context.partitions()):
            if context.assignment(partition).is_being_reassigned:
                context.begin_reassignment(partition)
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
        self.batch.add_update_metadata_to_all(())
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
        """Reset the context, the watches and the requests to brokers; write no znode."""
        self.watches.stop()
        self.batch.clear()
        self.isr_changes.clear()
        self.topic_ids.clear()
        self.epoch_repair.clear()
        self.topic_changes.unreadable.clear()
        for broker_id in list(self.context.brokers):
            self.channels.remove_broker(broker_id)
        self.writer.set_epoch(0, -1)
        self.context.reset()

    async def _current_controller(self) -> int:
        """The id in `/controller`. A KRaft controller there is reported once."""
        current = await election.current_controller(self.store)
        problem = current.explain_kraft()
        if problem and not self.kraft_problem:
            epoch, _ = await election.read_epoch(self.store)
            logger.error("%s: %s", problem, election.HOW_TO_LEAVE)
            self._on_kraft(problem, epoch)
        elif self.kraft_problem and not problem:
            logger.info("The KRaft controller has gone")
        self.kraft_problem = problem
        return current.broker_id

    async def _maybe_resign(self) -> int:
        """Read `/controller` and return it; resign if it is not this broker any more."""
        was_active = self.is_active
        current = await self._current_controller()
        if was_active and current != self.broker_id:
            self._resign(current)
        elif not was_active and current != self.broker_id:
            self._set_controller(current)
        return current

    async def _on_controller_moved(self) -> None:
        """A fenced write failed: this broker is not the controller of this epoch any more."""
        if not self.is_active:
            try:
                await self._maybe_resign()
            except StoreError as error:
                self._on_store_failure(str(error))
            return
        try:
            current = await self._current_controller()
        except StoreError as error:
            self._on_store_failure(str(error))
            return
        if current == self.broker_id:
            # The controller epoch was written by another client although /controller is ours.
            self._on_store_failure("the controller epoch was changed by another client")
        else:
            self._resign(current)

    def _resign(self, successor: int) -> None:
        self._cancel_timer()
        if self._retry is not None:
            self._retry.cancel()
            self._retry = None
        if self.is_active:
            logger.info("Broker %d resigned as the controller", self.broker_id)
        self.on_controller_resignation()
        self._set_controller(successor)

    def _on_store_failure(self, reason: str) -> None:
        """The context may differ from the znode tree: resigns at once, and participates in the
        next election after RETRY_DELAY_MS."""
        if reason != self._last_failure:
            logger.warning("The znode store failed: %s", reason)
        self._last_failure = reason
        if self.is_active:
            logger.warning("Resigning; the controller state is read again after the next election")
            self._resign(election.NO_CONTROLLER)
        if self._retry is None:
            self._retry = self.runtime.call_later(RETRY_DELAY_MS, self._retry_election)

    def _retry_election(self) -> None:
        self._retry = None
        self.queue.put(ForceResign())

    async def _register_if_expired(self) -> None:
        """Register the broker again after its session has expired; retry if that fails."""
        if self._registered:
            return
        try:
            await self.registration.register()
        except BrokerIdTaken as error:
            self._on_store_failure(str(error))
            return
        except StoreError:
            raise
        except Exception:
            # Nothing else would register it before its next session.
            logger.exception("Failed to register broker %d, retrying", self.broker_id)
            self._on_store_failure("the registration failed")
            return
        self._registered = True

    async def _force_resign(self) -> None:
        """The second half of `_on_store_failure`: deletes our `/controller`, if there is one
        (`_elect` does so), and participates in the next election."""
        await self._register_if_expired()
        await self._maybe_resign()
        await self._elect()

    async def _shut_down(self) -> None:
        epoch_version = self.writer.epoch_version
        was_active = self.is_active
        self._resign(election.NO_CONTROLLER)
        if was_active and epoch_version >= 0:
            await election.resign(self.store, epoch_version)


def _respond(call: Call, error: KafkaError) -> None:
    if not call.future.done():
        call.future.set_exception(error)
