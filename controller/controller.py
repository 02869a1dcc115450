"""The controller of a cluster; mirrors Kafka's `KafkaController`.

Each broker has a `Controller`; one of them is elected and active at a time. A broker creates it
like this::

    store = EmbeddedStore(str(directory / "znodes.db"))      # or ZooKeeperStore("zk1:2181/kafka")
    await store.connect()
    await create_persistent_paths(store)
    cluster_id = await get_or_create_cluster_id(store)
    registration = BrokerRegistration(store, BrokerInfo(1, endpoints, rack), clock.now_ms)
    await registration.register()                             # the broker epoch
    runtime = LoopRuntime(spawn)                              # ottla.broker.runtime.tasks.spawn
    channels = QueuedBrokerChannels(1, replica_control, runtime, connect=connector)
    controller = Controller(1, store, registration, channels, settings, runtime)
    await controller.start()     # the cluster has a controller; if it is this one, it is ready
    ...
    result = await controller.create_topics([NewTopic("t", 3, 1)], timeout_ms=30_000)
    ...
    await controller.stop()      # resigns; closing the store then removes the registration

`replica_control` is a `LocalChannel`: its `handle(request, version)` gets the
LeaderAndIsrRequest, UpdateMetadataRequest and StopReplicaRequest for the local broker and returns
the response (or an awaitable of it). For other brokers `connector` opens connections
(broker_channels.py).

The methods for requests run on the event queue, in order with all other events. They raise
`KafkaError` with the error code of the whole response (NOT_CONTROLLER when this broker is not
active), and return a row with an error code for each item otherwise. A change is durable in the
znode tree when they return; those with `timeout_ms` also wait, up to that time, until the live
brokers have responded to the UpdateMetadata requests that follow from it, unless nothing changed.

Each kind of event is handled in the module named after it; see lifecycle.py for the table.
"""

from collections.abc import Awaitable, Callable, Iterable, Mapping
from functools import partial
from typing import TYPE_CHECKING, TypeVar, cast

from ottla.controller.admin.features import FeatureUpdate
from ottla.controller.admin.producer_ids import ProducerIdBlock, allocate_block
from ottla.controller.admin.topic_admin import (
    Admit,
    Charge,
    CreatedTopic,
    NewPartitions,
    NewTopic,
    admit_every_topic,
    no_mutation_quota,
)
from ottla.controller.changes.reassignment import Targets, batches_of
from ottla.controller.errors import ApiError
from ottla.controller.events.event_queue import EventProcessedCallback, ignore_processed_event
from ottla.controller.events.events import (
    BrokerResend,
    ControllerChange,
    ControllerState,
    Expire,
    Reelect,
    RegisterBrokerAndReelect,
    ShutDown,
    Startup,
    UncleanLeaderElectionEnable,
)
from ottla.controller.lifecycle import Lifecycle
from ottla.controller.model import ReplicaAssignment
from ottla.controller.registration import BrokerRegistration, create_persistent_paths
from ottla.controller.requests.broker_channels import BrokerChannels
from ottla.controller.requests.request_batch import Delivery, wait_for
from ottla.controller.runtime import Runtime
from ottla.controller.settings import ControllerSettings
from ottla.controller.state.context import (
    ControllerContext,
    ControllerGauges,
    gauge_steps,
)
from ottla.controller.tree import znodes
from ottla.controller.tree.store import (
    DELETED,
    REARMED,
    SESSION_CONNECTED,
    SESSION_EXPIRED,
    WatchEvent,
    WatchHandle,
    ZnodeStore,
)
from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.protocol.steps import Steps
from ottla.protocol.topics import TopicPartition

if TYPE_CHECKING:
    from ottla.protocol.messages.alter_partition import (
        AlterPartitionRequest,
        AlterPartitionResponse,
    )

T = TypeVar("T")


class Controller:
    """See the module. `admit_topic` may reject topics. `on_controller_change` is called with
    the broker id of the active controller, -1 while there is none; `on_kraft` with the problem
    and the controller epoch when a KRaft controller has taken over the cluster."""

    def __init__(
        self,
        broker_id: int,
        store: ZnodeStore,
        registration: BrokerRegistration,
        channels: BrokerChannels,
        settings: ControllerSettings,
        runtime: Runtime,
        *,
        supported_features: Mapping[str, tuple[int, int]] | None = None,
        admit_topic: Admit = admit_every_topic,
        on_controller_change: Callable[[int], None] = lambda _id: None,
        on_kraft: Callable[[str, int], None] = lambda _problem, _epoch: None,
        on_event_processed: EventProcessedCallback = ignore_processed_event,
    ) -> None:
        self.broker_id = broker_id
        self._store = store
        self._runtime = runtime
        self._admit_topic = admit_topic

        self._lifecycle = Lifecycle(
            broker_id,
            store,
            registration,
            channels,
            settings,
            runtime,
            {} if supported_features is None else supported_features,
            self._topic_deleted,
            on_controller_change,
            on_kraft,
            on_event_processed,
        )
        self._queue = self._lifecycle.queue
        self._handles: list[WatchHandle] = []
        self._runs = False
        self._deletions: dict[str, list[Delivery]] = {}
        self._expired = False
        # Already here: the session may expire between registration and `start`.
        self._handles.append(store.on_session(self._on_session))

    # Lifecycle

    def topic_problems(self) -> dict[str, tuple[str, str]]:
        """(problem, fix) by topic whose znode the active controller cannot use."""
        lifecycle = self._lifecycle
        found = {
            topic: (
                f"the controller ignores topic {topic}: {problem}",
                f"write {znodes.topic_path(topic)} again, with the replicas of each partition, or "
                f"delete it",
            )
            for topic, problem in lifecycle.topic_changes.unreadable.items()
        }
        return found | lifecycle.topic_ids.conflicts

    @property
    def is_everybody_stopping(self) -> bool:
        """Whether this active controller knows that all live brokers are shutting down."""
        return self.is_active and bool(self.context.brokers) and not self.context.live_broker_ids()

    @property
    def kraft_problem(self) -> str:
        """The takeover of the cluster by a KRaft controller, as text; empty without one."""
        return self._lifecycle.kraft_problem

    def waiting_deletions(self) -> dict[str, str]:
        """The reason why the deletion of a topic waits, by topic, of the active controller."""
        deletion = self._lifecycle.deletion
        topics = self.context.topics_to_delete.keys() & self.context.topics_ineligible_for_deletion
        return {topic: deletion.waits_for(topic) for topic in sorted(topics)}

    @property
    def is_active(self) -> bool:
        return self._lifecycle.is_active

    @property
    def controller_id(self) -> int:
        """The broker id of the active controller that this broker knows, -1 for none."""
        return self._lifecycle.controller_id

    @property
    def epoch(self) -> int:
        """The controller epoch while active, 0 otherwise."""
        return self._lifecycle.context.epoch

    @property
    def context(self) -> ControllerContext:
        """The controller context; read only."""
        return self._lifecycle.context

    @property
    def settings(self) -> ControllerSettings:
        return self._lifecycle.settings

    @property
    def state(self) -> ControllerState:
        return self._queue.state

    def gauge_steps(self) -> Steps[ControllerGauges]:
        """Compute the values of the controller's gauges; see `state/context.py`."""
        return gauge_steps(self.context, is_active=self.is_active)

    @property
    def queued_events(self) -> int:
        """Return the number of queued events (Kafka's EventQueueSize)."""
        return len(self._queue)

    @property
    def unclean_elections_total(self) -> int:
        """Unclean leader elections by this controller since the broker started."""
        return self._lifecycle.partitions.unclean_elections_total

    async def start(self, timeout_ms: int = 60_000) -> None:
        """Take part in the election; return when there is a controller, or after the timeout.

        The election continues in the background after the timeout.
        """
        await create_persistent_paths(self._store)
        self._handles.append(
            await self._store.watch_data(znodes.CONTROLLER, self._on_controller_node)
        )
        self._queue.put(Startup())
        self._runs = True
        self._runtime.spawn(self._lifecycle.run(), name="controller-events")
        await wait_for([self._lifecycle.started], timeout_ms, self._runtime)

    async def stop(self, timeout_ms: int = 10_000) -> None:
        """Resign if active, and shut down; wait up to `timeout_ms` for the store. Nothing is to be
        waited for after a `start` that failed early, or without one."""
        for handle in self._handles:
            handle.cancel()
        self._handles.clear()
        self._queue.clear_and_put(ShutDown())
        if self._runs:
            await wait_for([self._lifecycle.stopped], timeout_ms, self._runtime)

    def update_settings(self, settings: ControllerSettings) -> None:
        """Apply changed dynamic settings; protocol version and listeners stay the same."""
        unclean_before = self.settings.unclean_leader_election_enable
        self._lifecycle.update_settings(settings)
        if settings.unclean_leader_election_enable and not unclean_before:
            self._queue.put(UncleanLeaderElectionEnable(None))

    def enable_topic_unclean_leader_election(self, topic: str) -> None:
        """Unclean leader election was enabled for the topic: retries the election."""
        self._queue.put(UncleanLeaderElectionEnable(topic))

    def resend_all(self, broker_id: int) -> None:
        """For `QueuedBrokerChannels.on_overflow`: sends the full state to the broker."""
        self._queue.put(BrokerResend(broker_id))

    # Requests

    async def create_topics(
        self,
        topics: Iterable[NewTopic],
        *,
        validate_only: bool = False,
        timeout_ms: int = 30_000,
        charge: Charge = no_mutation_quota,
    ) -> list[CreatedTopic]:
        """CreateTopics; returns when leaders are elected and all live brokers have the metadata.

        After `timeout_ms` the rows have REQUEST_TIMED_OUT; the topics are created all the same.
        """
        wanted = list(topics)

        async def work() -> tuple[list[CreatedTopic], list[Delivery]]:
            default = self.settings.default_replication_factor
            factors = [topic.replication_factor for topic in wanted]
            await self._lifecycle.refresh_brokers_if_missing(count=max([default, *factors]))
            rows = await self._lifecycle.topic_admin.create_topics(
                wanted, validate_only=validate_only, charge=charge, admit=self._admit_topic
            )
            if validate_only or all(row.error.code for row in rows):
                return rows, []
            await self._lifecycle.process_topic_change()
            return [self._with_leaders(row) for row in rows], self._lifecycle.deliveries()

        rows, deliveries = await self._call("CreateTopics", ControllerState.TOPIC_CHANGE, work)
        if validate_only or await self._wait_for_brokers(deliveries, timeout_ms):
            return rows
        timed_out = ApiError(ErrorCode.REQUEST_TIMED_OUT)
        return [row if row.error.code else row._replace(error=timed_out) for row in rows]

    def _with_leaders(self, row: CreatedTopic) -> CreatedTopic:
        waiting = self._lifecycle.topic_admin.partitions_without_leader(row.name)
        if row.error.code or not waiting:
            return row
        message = f"The topic is created, but {len(waiting)} partitions have no live replica."
        return row._replace(error=ApiError(ErrorCode.REQUEST_TIMED_OUT, message))

    async def create_partitions(
        self,
        requests: Iterable[NewPartitions],
        *,
        validate_only: bool = False,
        timeout_ms: int = 30_000,
        charge: Charge = no_mutation_quota,
    ) -> dict[str, ApiError]:
        """CreatePartitions; waits like `create_topics`."""
        wanted = list(requests)

        async def work() -> tuple[dict[str, ApiError], list[Delivery]]:
            admin = self._lifecycle.topic_admin
            requested = [ids for request in wanted for ids in request.assignments or ()]
            await self._lifecycle.refresh_brokers_if_missing(
                ids={each for ids in requested for each in ids}
            )
            rows = await admin.create_partitions(wanted, validate_only=validate_only, charge=charge)
            if validate_only or all(row.code for row in rows.values()):
                return rows, []
            for name, row in rows.items():
                if not row.code:
                    await self._lifecycle.topic_changes.on_partition_modification(name)
            return rows, self._lifecycle.deliveries()

        rows, deliveries = await self._call("CreatePartitions", ControllerState.TOPIC_CHANGE, work)
        if validate_only or await self._wait_for_brokers(deliveries, timeout_ms):
            return rows
        return {
            name: row if row.code else ApiError(ErrorCode.REQUEST_TIMED_OUT)
            for name, row in rows.items()
        }

    async def delete_topics(
        self, topics: Iterable[str], *, timeout_ms: int = 30_000
    ) -> dict[str, ApiError]:
        """DeleteTopics. A row without an error means that no live broker serves the topic any more
        and that its znodes are deleted, unless a replica is on a dead broker: then it has a
        message, which Kafka does not send."""
        wanted = list(topics)
        deletions: dict[str, Delivery] = {}

        async def work() -> tuple[dict[str, ApiError], list[Delivery]]:
            rows = await self._lifecycle.topic_admin.request_deletion(wanted)
            for topic, row in rows.items():
                if not row.code:
                    deletions[topic] = Delivery()
                    self._deletions.setdefault(topic, []).append(deletions[topic])
            if not deletions:
                return rows, []
            await self._lifecycle.topic_changes.on_topic_change()
            await self._lifecycle.deletion.on_deletion_requested()
            return rows, self._lifecycle.deliveries()

        rows, deliveries = await self._call("DeleteTopics", ControllerState.TOPIC_DELETION, work)
        started = self.context.topics_with_deletion_started
        ineligible = self.context.topics_ineligible_for_deletion
        waiting = [
            deletions[topic]
            for topic in deletions
            if topic not in started or topic not in ineligible
        ]
        await wait_for([*waiting, *deliveries], timeout_ms, self._runtime)
        all_responded = timeout_ms > 0 and all(delivery.done for delivery in deliveries)
        for topic, delivery in deletions.items():
            if not delivery.done:
                if topic not in started or not all_responded:
                    rows[topic] = ApiError(ErrorCode.REQUEST_TIMED_OUT)
                else:
                    reason = self._lifecycle.deletion.waits_for(topic)
                    text = f"Topic '{topic}' is marked for deletion, which waits for {reason}."
                    rows[topic] = ApiError(ErrorCode.NONE, text)
                others = self._deletions.get(topic, [])
                if delivery in others:
                    others.remove(delivery)
        return rows

    async def elect_leaders(
        self,
        partitions: Iterable[TopicPartition] | None,
        election_type: int,
        *,
        timeout_ms: int = 30_000,
    ) -> dict[TopicPartition, ApiError]:
        """ElectLeaders (type 0 preferred, 1 unclean). With None for all partitions, those that need
        no election are left out of the result."""
        wanted = None if partitions is None else list(partitions)

        async def work() -> tuple[dict[TopicPartition, ApiError], list[Delivery]]:
            rows = await self._lifecycle.elections.elect(wanted, election_type)
            elected = any(not row.code for row in rows.values())
            return rows, self._lifecycle.deliveries() if elected else []

        state = ControllerState.MANUAL_LEADER_BALANCE
        rows, deliveries = await self._call("ElectLeaders", state, work)
        if await self._wait_for_brokers(deliveries, timeout_ms):
            return rows
        timed_out = ApiError(ErrorCode.REQUEST_TIMED_OUT)
        return {partition: row if row.code else timed_out for partition, row in rows.items()}

    async def alter_partition_reassignments(
        self, targets: Targets, *, may_change_count: bool = True
    ) -> dict[TopicPartition, ApiError]:
        """AlterPartitionReassignments: target replicas by partition, None cancels. A row without an
        error means that the reassignment is started, not that it is completed. Without
        `may_change_count` a partition keeps its number of replicas (KIP-860)."""

        async def start(batch: Targets) -> dict[TopicPartition, ApiError]:
            requested = [ids for ids in batch.values() if ids]
            await self._lifecycle.refresh_brokers_if_missing(
                ids={each for ids in requested for each in ids}
            )
            return await self._lifecycle.reassignment.alter(
                batch, may_change_count=may_change_count
            )

        rows: dict[TopicPartition, ApiError] = {}
        state = ControllerState.ALTER_PARTITION_REASSIGNMENT
        for batch in batches_of(targets):
            # Events that wait, such as a failed broker, are handled between two batches.
            work = partial(start, batch)
            try:
                rows.update(await self._call("AlterPartitionReassignments", state, work))
            except KafkaError as error:
                if not rows:
                    raise
                # Reassignments of earlier batches are under way, and their rows say so.
                failed = ApiError(error.code, error.message)
                return {**dict.fromkeys(targets, failed), **rows}
        return rows

    async def list_partition_reassignments(
        self, partitions: Iterable[TopicPartition] | None = None
    ) -> dict[TopicPartition, ReplicaAssignment]:
        """ListPartitionReassignments: the reassignments in progress."""
        wanted = None if partitions is None else list(partitions)

        async def work() -> dict[TopicPartition, ReplicaAssignment]:
            return await self._lifecycle.reassignment.active_reassignments(wanted)

        state = ControllerState.LIST_PARTITION_REASSIGNMENT
        return await self._call("ListPartitionReassignments", state, work)

    async def controlled_shutdown(self, broker_id: int, broker_epoch: int) -> list[TopicPartition]:
        """ControlledShutdown: the partitions that the broker still leads (empty: it may stop)."""
        return await self._call(
            "ControlledShutdown",
            ControllerState.CONTROLLED_SHUTDOWN,
            lambda: self._lifecycle.shutdown.shut_down(broker_id, broker_epoch),
        )

    async def alter_partition(
        self, request: "AlterPartitionRequest", version: int
    ) -> "AlterPartitionResponse":
        """AlterPartition of any version, from any broker, including the local one."""

        async def work() -> "AlterPartitionResponse":
            return await self._lifecycle.isr_changes.alter_partition(request, version)

        response = await self._call("AlterPartition", ControllerState.ISR_CHANGE, work)
        self._lifecycle.check_reassignments(response)
        return response

    async def allocate_producer_ids(self, broker_id: int, broker_epoch: int) -> ProducerIdBlock:
        """AllocateProducerIds; raises BROKER_ID_NOT_REGISTERED or STALE_BROKER_EPOCH."""

        async def work() -> ProducerIdBlock:
            broker = self.context.brokers.get(broker_id)
            if broker is None:
                raise KafkaError(ErrorCode.BROKER_ID_NOT_REGISTERED)
            if broker.epoch != broker_epoch:
                raise KafkaError(ErrorCode.STALE_BROKER_EPOCH)
            return await allocate_block(self._store, broker_id)

        return await self._call("AllocateProducerIds", ControllerState.IDLE, work)

    async def update_features(
        self,
        updates: Iterable[FeatureUpdate],
        *,
        validate_only: bool = False,
        is_all_or_nothing: bool = False,
    ) -> dict[str, ApiError]:
        """UpdateFeatures: a row for each feature; see `Features.update`."""
        wanted = list(updates)
        return await self._call(
            "UpdateFeatures",
            ControllerState.UPDATE_FEATURES,
            lambda: self._lifecycle.features.update(
                wanted, validate_only=validate_only, is_all_or_nothing=is_all_or_nothing
            ),
        )

    async def _call(self, name: str, state: ControllerState, work: Callable[[], Awaitable[T]]) -> T:
        async def if_active() -> object:
            if not self.is_active:
                raise KafkaError(
                    ErrorCode.NOT_CONTROLLER, "This is not the correct controller for this cluster."
                )
            return await work()

        return cast("T", await self._queue.call(name, state, if_active))

    async def _wait_for_brokers(self, deliveries: Iterable[Delivery], timeout_ms: int) -> bool:
        return timeout_ms > 0 and await wait_for(deliveries, timeout_ms, self._runtime)

    # Notifications of the store

    def _on_session(self, event: str) -> None:
        if event == SESSION_EXPIRED:
            self._expired = True
            self._queue.clear_and_put(Expire())
        elif event == SESSION_CONNECTED and self._expired:
            self._expired = False
            self._queue.put(RegisterBrokerAndReelect())

    def _on_controller_node(self, event: WatchEvent) -> None:
        gone = event.kind in (DELETED, REARMED)
        self._queue.put(Reelect() if gone else ControllerChange())

    def _topic_deleted(self, topic: str) -> None:
        for delivery in self._deletions.pop(topic, ()):
            delivery.finish()
