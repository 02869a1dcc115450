"""Election, failover and resignation of the controller, and the dispatch of events to handlers.

Mirrors ``process``, ``elect`` and ``onControllerResignation`` of Kafka's ``KafkaController``. When
a fenced write fails because another controller was elected, this one resigns. When the store fails
while an event is processed, the context may differ from the znode tree: the controller resigns,
deletes ``/controller`` if it can, and participates in the next election, after which all state
is read again.
"""

import logging
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from ottla.controller import election
from ottla.controller.components import ControllerComponents
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
    ShutDown,
    Startup,
    TopicChange,
    TopicDeletion,
    TopicDeletionRetry,
    TopicDeletionStopReplicaResponseReceived,
    UncleanLeaderElectionEnable,
    UpdateMetadataResponseReceived,
)
from ottla.controller.registration import BrokerIdTaken, BrokerRegistration
from ottla.controller.requests.request_batch import Delivery, ResponseCallbacks
from ottla.controller.runtime import Cancellable, Runtime
from ottla.controller.tree.store import StoreError, ZnodeStore
from ottla.protocol.errors import ErrorCode, KafkaError, error_name
from ottla.protocol.topics import TopicPartition

logger = logging.getLogger("ottla.controller")

FIRST_BALANCE_DELAY_MS = 5_000
"""From the election to the first check of the leader imbalance, as in Kafka."""
RETRY_DELAY_MS = 1_000
"""From a failure of the store to the next attempt to resign and to be elected."""
RESEND_DELAY_MS = 1_000
"""From a LeaderAndIsr or UpdateMetadata response with a top-level error to the full state for that
broker."""

_STALE = (ErrorCode.STALE_BROKER_EPOCH, ErrorCode.STALE_CONTROLLER_EPOCH)

# A handler of one event class; Any, as the type of the table cannot relate key and parameter.
Handler = Callable[[Any], Awaitable[object]]


class Lifecycle:
    """``components`` are active from election to resignation. Loop only, one event at a time."""

    def __init__(
        self,
        broker_id: int,
        store: ZnodeStore,
        registration: BrokerRegistration,
        runtime: Runtime,
        build: "Callable[[ResponseCallbacks, Callable[[Event], None]], ControllerComponents]",
        on_controller_change: Callable[[int], None],
        on_event_processed: EventProcessedCallback,
    ) -> None:
        self.broker_id = broker_id
        self.controller_id = election.NO_CONTROLLER
        self.store = store
        self.registration = registration
        self.runtime = runtime
        self.queue = EventQueue(self.process, runtime.now_ms, on_event_processed)
        self.components = build(
            ResponseCallbacks(self._on_leader_and_isr, self._on_metadata, self._on_deletion),
            self.queue.put,
        )
        self.started = Delivery()
        self.stopped = Delivery()
        self._on_controller_change = on_controller_change
        self._timer: Cancellable | None = None
        self._retry: Cancellable | None = None
        self._resends: set[int] = set()  # brokers that get the full state after a delay
        self._takeover_failed = False  # set until the takeover is complete
        self._last_failure = ""  # logged once, while it repeats itself
        self._registered = True  # the broker registers before it starts the controller
        self._handlers: Mapping[type, Handler] = self._table()

    @property
    def is_active(self) -> bool:
        return self.controller_id == self.broker_id

    async def run(self) -> None:
        """Processes events until ``ShutDown``; the task of the controller."""
        try:
            await self.queue.run()
        finally:
            self.queue.close()
            self.stopped.finish()

    # Events

    def _table(self) -> Mapping[type, Handler]:
        """The events that only the active controller processes; see ``_process_always``."""
        components = self.components
        return {
            BrokerChange: lambda _: components.broker_changes.on_broker_change(),
            BrokerModification: lambda event: components.broker_changes.on_broker_modification(
                event.broker_id
            ),
            BrokerResend: lambda event: components.broker_changes.on_resend(event.broker_id),
            TopicChange: lambda _: components.process_topic_change(),
            PartitionModification: lambda event: components.process_partition_modification(
                event.topic
            ),
            TopicDeletion: lambda _: components.deletion.on_deletion_requested(),
            TopicDeletionRetry: self._retry_deletion,
            TopicDeletionStopReplicaResponseReceived: self._replica_deletion,
            LeaderAndIsrResponseReceived: self._leader_and_isr,
            UpdateMetadataResponseReceived: self._metadata_error,
            LogDirEventNotification: lambda _: components.isr_changes.on_log_dir_notification(),
            IsrChangeNotification: lambda _: components.isr_changes.on_isr_notification(),
            PreferredReplicaElection: lambda _: components.elections.on_znode(),
            PartitionReassignment: lambda _: components.reassignment.on_znode(),
            PartitionReassignmentIsrChange: lambda event: components.reassignment.on_isr_change(
                event.partition
            ),
            AutoLeaderBalance: lambda _: self._auto_leader_rebalance(),
            UncleanLeaderElectionEnable: lambda event: (
                components.partitions.trigger_online_partitions(event.topic)
            ),
        }

    async def process(self, event: Event) -> None:
        """Processes an event; raises nothing but cancellation."""
        try:
            if isinstance(event, Call):
                await self._process_call(event)
            elif not await self._process_always(event) and self.is_active:
                await self._handlers[type(event)](event)
        except ControllerMoved as moved:
            logger.info("%s", moved)
            self.components.batch.clear()
            await self._on_controller_moved()
        except StoreError as error:
            self.components.batch.clear()
            name = event.name if isinstance(event, Call) else type(event).__name__
            self._on_store_failure(f"{name}: {type(error).__name__}: {error}")
        except Exception:
            self.components.batch.clear()
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
        """Processes the events that all brokers process; returns whether it was one."""
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
        broker = self.components.context.brokers.get(broker_id)
        return broker is not None and broker.epoch == broker_epoch

    async def _replica_deletion(self, event: TopicDeletionStopReplicaResponseReceived) -> None:
        if self._is_current_epoch(event.broker_id, event.broker_epoch):
            failed = await self.components.deletion.on_stop_replica_response(
                event.broker_id, event.outcome
            )
            if failed:
                retry = TopicDeletionRetry(failed)
                self.runtime.call_later(RESEND_DELAY_MS, lambda: self.queue.put(retry))

    async def _retry_deletion(self, event: TopicDeletionRetry) -> None:
        await self.components.deletion.resume_deletion_for_topics(event.topics)

    async def _leader_and_isr(self, event: LeaderAndIsrResponseReceived) -> None:
        if self._is_current_epoch(event.broker_id, event.broker_epoch):
            await self.components.broker_changes.on_leader_and_isr_response(
                event.broker_id, event.response, event.request
            )
            await self.components.topic_ids.on_leader_and_isr_response(
                event.broker_id, event.response, event.request
            )
            await self.components.epoch_repair.on_leader_and_isr_response(
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

    async def _metadata_error(self, event: UpdateMetadataResponseReceived) -> None:
        logger.error(
            "Received error %s in UpdateMetadata response from broker %d",
            error_name(event.error_code),
            event.broker_id,
        )
        if event.error_code not in _STALE:
            # Later requests have later changes only.
            self._schedule_resend(event.broker_id)

    async def _auto_leader_rebalance(self) -> None:
        settings = self.components.settings
        try:
            if settings.auto_leader_rebalance_enable:
                await self.components.elections.auto_leader_rebalance(settings)
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

    # Responses from brokers

    def _on_leader_and_isr(
        self, broker_id: int, broker_epoch: int, response: Any, request: Any
    ) -> None:
        if self.is_active and self.components.needs_processing(broker_id, response, request):
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

    # Election and resignation

    def _set_controller(self, controller_id: int) -> None:
        if controller_id != self.controller_id:
            self.controller_id = controller_id
            self._on_controller_change(controller_id)

    async def _elect(self) -> None:
        """Tries to become controller unless there is one; starts the failover if elected.

        Without a registration it is not, as another broker may have our id; nor between a takeover
        that failed and its retry, as a failure that stays would make one election follow the other.
        """
        if not self._registered or (self._takeover_failed and self._retry is not None):
            return
        current = await election.current_controller(self.store)
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
            await self.components.on_controller_failover(elected.epoch, elected.epoch_version)
        except (ControllerMoved, StoreError):
            raise
        except Exception:
            logger.exception("Error during controller failover, resigning")
            self._on_store_failure("the controller failover failed")
            return
        self._takeover_failed = False
        self._last_failure = ""
        if self.components.settings.auto_leader_rebalance_enable:
            self._schedule_auto_leader_rebalance(FIRST_BALANCE_DELAY_MS)

    async def _maybe_resign(self) -> int:
        """Reads ``/controller`` and returns it; resigns if it is not this broker any more."""
        was_active = self.is_active
        current = await election.current_controller(self.store)
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
            current = await election.current_controller(self.store)
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
        self.components.on_controller_resignation()
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
        """Registers the broker again after its session has expired; retries if that fails."""
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
        """The second half of ``_on_store_failure``: deletes our ``/controller``, if there is one
        (``_elect`` does so), and participates in the next election."""
        await self._register_if_expired()
        await self._maybe_resign()
        await self._elect()

    async def _shut_down(self) -> None:
        epoch_version = self.components.writer.epoch_version
        was_active = self.is_active
        self._resign(election.NO_CONTROLLER)
        if was_active and epoch_version >= 0:
            await election.resign(self.store, epoch_version)


def _respond(call: Call, error: KafkaError) -> None:
    if not call.future.done():
        call.future.set_exception(error)
