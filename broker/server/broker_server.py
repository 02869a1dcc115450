"""One broker: starts its parts in order, stops them in reverse. Nothing else."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Sequence
from typing import TYPE_CHECKING, Any

from ottla.broker.cluster.controller_channel import hand_over
from ottla.broker.cluster.identity import check_identity, establish
from ottla.broker.config.dynamic_config import load_broker_settings
from ottla.broker.observability.broker_state import BrokerState, Phase, StateLog
from ottla.broker.observability.monitoring import event_log, open_http
from ottla.broker.runtime.tasks import run_in_threads, spawn, stop
from ottla.broker.server.broker import Broker
from ottla.broker.server.http_assembly import observe, serve_parts
from ottla.broker.server.settings import log_config_factory
from ottla.broker.server.start_checks import (
    check_certificates,
    check_directories,
    check_distinct_directories,
    check_ports,
    check_rights,
    check_tiered_topics,
    warn_of_root,
)
from ottla.broker.server.znode_store import connect_store, make_root, open_store, write_problem
from ottla.controller.registration import (
    AdvertisedAddressTaken,
    BrokerIdTaken,
    check_advertised_addresses,
)
from ottla.controller.tree import znodes
from ottla.controller.tree.store import NoNode, StoreError
from ottla.controller.tree.znode_json import MalformedZnode
from ottla.protocol.topics import GROUP_METADATA_TOPIC, SHARE_STATE_TOPIC, TRANSACTION_STATE_TOPIC
from ottla.storage.directories.log_manager import LogManager
from ottla.storage.recovery.load_progress import LoadProgress

if TYPE_CHECKING:
    from ottla.broker.config.broker_config import BrokerConfig
    from ottla.broker.observability.console.event_log import EventLog
    from ottla.broker.observability.http_endpoint import HttpEndpoint
    from ottla.broker.security.sasl.scram_admin import NewUser
    from ottla.controller.tree.store import ZnodeStore

logger = logging.getLogger("ottla.broker")

# How long requests in flight may take to end when the broker stops.
_DRAIN_MS = 1_000
# How long a stop waits for the znode tree, which may be away.
_UNREGISTER_MS = 1_000
# How long it waits for the controller to resign.
_CONTROLLER_STOP_MS = 10_000
# How long each step of a stop waits that needs ZooKeeper while it does not respond.
_WITHOUT_ZOOKEEPER_MS = 2_000
# How long the controller's stop waits when another step has just waited for that in vain.
_STILL_WITHOUT_ZOOKEEPER_MS = 500
# How often a step that waits for something else looks whether ZooKeeper responds.
_LOOK_SECONDS = 0.5
# How long the start waits for the first UpdateMetadata; without one it continues all the same.
_FIRST_METADATA_MS = 5_000


# Until the end of these a start can be given up.
_LONG_PHASES = (Phase.STARTING, Phase.CONNECTING, Phase.LOADING)


class StartCancelled(Exception):
    """Ends the recovery of a start that is not wanted any more."""


class BrokerServer:
    """One broker. `start` once, `stop` once, on one event loop."""

    def __init__(
        self,
        config: BrokerConfig,
        on_all_disks_failed: Callable[[], None],
        *,
        watches_stalls: bool = True,
        new_users: Sequence[NewUser] = (),
    ) -> None:
        """`on_all_disks_failed` is called when no log directory works any more. `watches_stalls`:
        whether turns of the event loop that take long are logged. `new_users` are written to the
        znode tree before clients are served."""
        self.config = config
        #: The port of each open listener by name, once started.
        self.ports: dict[str, int] = {}
        #: The port of metrics and console, 0 when they are not served.
        self.metrics_port = 0
        #: Whether a stop moves leaderships to other brokers first.
        self.hands_over = not config.alone
        self._watches_stalls = watches_stalls
        self._new_users = new_users
        self._on_all_disks_failed = on_all_disks_failed
        self._store: ZnodeStore | None = None
        self._logs: LogManager | None = None
        self._logs_loaded = False
        self._parts: Broker | None = None
        self._http: HttpEndpoint | None = None
        self._event_log: EventLog | None = None
        self._state: BrokerState | None = None
        self._state_log: StateLog | None = None
        self._started = False
        self._joined = False  # or is joining the cluster
        self._was_complete = False  # the start
        self._tree_is_gone = False  # as a step of the stop has seen
        self._start_is_cancelled = False

    @property
    def parts(self) -> Broker:
        """The parts of a broker that has been started."""
        assert self._parts is not None, "the broker was not started"
        return self._parts

    @property
    def state(self) -> BrokerState | None:
        """The state that health checks read; None before the start."""
        return self._state

    async def start(self) -> dict[str, int]:
        """Starts everything; returns the port of each listener when clients are served.

        Raises ConfigError, DirectoryInUse, ListenError, InconsistentClusterId, ... with a message
        for the person who started it; whatever had been opened is closed again then.
        """
        try:
            await self._start()
        except BaseException as error:
            if isinstance(error, BrokerIdTaken | AdvertisedAddressTaken) and self._logs is not None:
                self._logs.directories.forget_new_meta_properties()
            await self.stop()
            raise
        return self.ports

    def cancel_start(self, start: asyncio.Task[object]) -> None:
        """Ends a `start` that waits for ZooKeeper or recovers logs, which may take long; the next
        start recovers again. Nothing is done to one that joins the cluster or is complete."""
        if self._state is None or self._state.phase in _LONG_PHASES:
            self._start_is_cancelled = True
            start.cancel()

    async def _start(self) -> None:
        config = self.config
        events = self._event_log = event_log(config)
        logs = self._logs = LogManager(
            config.log_directories(),
            log_config_factory(config)(config.topic_defaults()),
            min_free_bytes=config.ottla_log_dir_min_free_bytes,
            producer_expiration_ms=config.producer_id_expiration_ms,
            transaction_verification=config.transaction_partition_verification_enable,
        )
        state = self._state = BrokerState(logs.directories.all)
        state.missing_directories = lambda: logs.known_directories.missing
        state.worker = config.worker
        self._state_log = StateLog(state)
        self._state_log.start()
        check_distinct_directories(config, logs)
        check_ports(config)
        # Before all that may take long, so that a probe learns what the start waits for.
        self._http, self.metrics_port = await open_http(config, state)
        check_rights(config.log_directories())
        warn_of_root(config.log_directories())
        logs.lock()
        check_directories(logs.directories.all)
        store = self._store = open_store(config)
        state.phase = Phase.CONNECTING
        await connect_store(store, may_do_without=not config.embedded)
        state.watch(store, lambda: write_problem(store))
        broker_id = await check_identity(config, store, logs)
        early = await load_broker_settings(store, config, broker_id)
        check_certificates(config)
        # Up to here a start that fails leaves nothing behind but empty directories.
        await make_root(store)
        identity = await establish(config, store, logs)
        if self._new_users:
            from ottla.broker.security.sasl.scram_admin import add_users

            await add_users(store, self._new_users)
        parts = self._parts = Broker(config, identity, store, logs, self._on_all_disks_failed)
        self.ports = parts.listeners.ports
        parts.listeners.open_all()
        state.observed = observe(parts)
        await parts.dynamic_config.start()
        check_tiered_topics(config, parts.dynamic_config.tiered_topics())
        await parts.features.start()
        if early:
            parts.dynamic_config.listener.broker_changed(early)
        await parts.access_control.start()
        await parts.delegation_tokens.start()
        await parts.listeners.start_sasl()
        if parts.login is not None:
            await parts.login.start()
        state.phase = Phase.LOADING
        await parts.workers.run(self._load_logs)
        await _decide_topics(parts)
        state.phase = Phase.JOINING
        self._joined = True
        await _join_cluster(parts)
        await self._serve_clients(parts)
        serve_parts(self._http, parts, state, events)
        self._started = self._was_complete = True
        state.phase = Phase.RUNNING

    async def _serve_clients(self, parts: Broker) -> None:
        """Opens the network, and returns when the broker knows its cluster."""
        parts.memory_watch.start()
        await parts.scheduler.check_free_space()
        parts.network_server.start()
        metadata = parts.metadata
        await metadata.wait_until(lambda _: metadata.is_loaded(), _FIRST_METADATA_MS)
        metadata.expects_topics = False  # all there are may be in deletion, or malformed
        parts.coordinators.producer_ids.startup()
        parts.scheduler.start()
        if parts.remote_logs is not None:
            parts.remote_logs.startup()
        parts.created_topics.start()
        parts.mover.resume()
        if self._watches_stalls:
            parts.stalls.start()

    def _load_logs(self) -> None:
        """In a worker thread, since recovery may take long; no request uses the logs yet."""
        parts = self.parts
        parts.logs.load(
            parts.clock.now_ms(),
            config_of=parts.dynamic_config.log_config,
            run_all=run_in_threads,
            progress=self._load_progress(),
        )
        self._logs_loaded = True

    def _load_progress(self) -> LoadProgress:
        progress = LoadProgress(self._check_cancelled)
        if self._state is not None:
            self._state.load = progress
        return progress

    def _check_cancelled(self) -> None:
        """In a worker thread, after each part of a segment."""
        if self._start_is_cancelled:
            raise StartCancelled

    async def stop(self, *, crash: bool = False) -> None:
        """Stops everything that was started. The data is closed cleanly, so that the next start
        has nothing to recover; the registration in the znode tree ends with the session.

        `crash` leaves the data as a kill of the process would: it waits for nothing, writes
        nothing, and the next start recovers.
        """
        parts = self._parts
        if self._state is not None:
            self._state.phase = Phase.STOPPING
        if self._started and parts is not None:
            self._started = False
            if crash:
                parts.network_server.close()
            else:
                await self._end_serving(parts)
        if parts is not None:
            parts.features.stop()  # ZooKeeper may be stopping, too: no use to read them again
        if self._joined and parts is not None:
            self._joined = False
            await self._leave_cluster(parts, crash=crash)
        if parts is not None:
            parts.dynamic_config.stop()
            parts.access_control.stop()
            parts.delegation_tokens.stop()
            parts.listeners.stop()
            if parts.login is not None:
                parts.login.stop()
            parts.stalls.stop()
        if self._http is not None:
            await self._http.close()
        if self._state_log is not None:
            await self._state_log.stop()
        if parts is not None:
            parts.network_server.close()
            parts.standstill.stop()  # no write can come any more
            parts.inter_broker_client.close()
            await parts.request_channel.close()
            parts.quotas.stop()
            if parts.tracing is not None:
                await parts.tracing.stop()
            parts.security_log.flush()
            parts.memory_watch.stop()
            parts.timer.close()
            await parts.workers.close()
            await parts.flush_workers.close()
            await parts.deferred_validation.close()
        await self._close_data(crash)
        if self._event_log is not None:
            self._event_log.detach()

    async def _end_serving(self, parts: Broker) -> None:
        """Clients go to the other brokers, and get the responses that are under way."""
        if self.hands_over and self.config.controlled_shutdown_enable:
            await self._hand_over(parts)
        parts.network_server.stop_accepting()
        parts.coordinators.shutdown()
        await parts.network_server.drain(_DRAIN_MS)

    async def _leave_cluster(self, parts: Broker, *, crash: bool) -> None:
        """Also after a start that failed when the broker was registered, or was about to be."""
        if parts.remote_logs is not None:
            await parts.remote_logs.shutdown(crash=crash)
        await parts.created_topics.stop()
        await parts.scheduler.stop()
        parts.fetchers.close()
        parts.mover.stop()
        limit_ms = _CONTROLLER_STOP_MS if self._has_tree else _WITHOUT_ZOOKEEPER_MS
        if self._tree_is_gone:
            limit_ms = _STILL_WITHOUT_ZOOKEEPER_MS
        await self._with_tree(parts, parts.controller.stop(limit_ms))
        if not crash:
            await self._unregister(parts)

    @property
    def _has_tree(self) -> bool:
        """Whether what needs the znode tree can be done at all."""
        return self._state is not None and self._state.can_change_tree

    async def _hand_over(self, parts: Broker) -> None:
        work = hand_over(self.config, parts.controller_channel, parts.why_out_of_service)
        if not await self._with_tree(parts, work):
            logger.warning(
                "Proceeding to shut down without controlled shutdown: ZooKeeper is not connected"
            )

    async def _with_tree(self, parts: Broker, work: Coroutine[Any, Any, object]) -> bool:
        """Wait for `work` as long as ZooKeeper responds; whether it is complete.

        A machine or a container engine that goes down stops ZooKeeper at the same time. Then a
        controller of this process cannot respond, and another one may not: the retries would take
        longer than what stops the broker waits before it kills it.
        """
        task = spawn(work, name="stop-with-tree")
        gone = spawn(_until_tree_is_gone(parts.store), name="stop-watches-tree")
        try:
            await asyncio.wait((task, gone), return_when=asyncio.FIRST_COMPLETED)
            self._tree_is_gone = not task.done()
            return task.done()
        finally:
            await stop(task, gone)

    async def _unregister(self, parts: Broker) -> None:
        """Before the logs are closed, which may take seconds: leaders wait with acks=all for a
        replica that has caught up, as long as its broker is registered."""
        if self.config.alone:
            return
        try:
            async with asyncio.timeout(_UNREGISTER_MS / 1000):
                await parts.registration.unregister()
                await parts.strays.note_newest()
        except (StoreError, TimeoutError) as error:
            # The registration ends with the session.
            logger.info("Failed to unregister: %s", str(error) or type(error).__name__)

    @property
    def _is_known(self) -> bool:
        """Whether a controller has taken up what the registration says of the logs."""
        return self._was_complete and self.parts.metadata.is_loaded()

    async def _close_data(self, crash: bool) -> None:
        logs, self._logs = self._logs, None
        if logs is not None:
            if self._logs_loaded and (crash or (logs.unclean_start and not self._is_known)):
                logs.abandon()  # the next start says again that records may be missing
            elif self._logs_loaded:
                parts = self.parts
                epoch = parts.registration.broker_epoch
                await asyncio.to_thread(
                    logs.shutdown,
                    parts.clock.now_ms(),
                    epoch,
                    run_all=run_in_threads,
                    forgets_missing=self._was_complete,
                )
            else:
                # Nothing was opened: the data is as clean, or not, as it was.
                logs.directories.unlock()
        store, self._store = self._store, None
        if store is not None:
            await store.close()


async def _until_tree_is_gone(store: ZnodeStore) -> None:
    """Return when the tree does not respond."""
    while True:
        try:
            async with asyncio.timeout(_WITHOUT_ZOOKEEPER_MS / 1000):
                await store.exists(znodes.CONTROLLER)
        except (StoreError, TimeoutError):
            return
        await asyncio.sleep(_LOOK_SECONDS)


async def _decide_topics(parts: Broker) -> None:
    """Of a partition with logs of two topics of the same name, keeps that of the topic that is."""
    logs, store = parts.logs, parts.store
    for topic in logs.undecided:
        topic_id = None
        try:
            data, _ = await store.get(znodes.topic_path(topic))
            topic_id = znodes.decode_topic(topic, data).topic_id
        except NoNode:
            pass
        except MalformedZnode as error:
            logger.error("Failed to read the topic id of %s: %s", topic, error)
        logs.decide(topic, topic_id, parts.clock.now_ms())


async def _join_cluster(parts: Broker) -> None:
    """Registers, then lets the controller tell this broker what it leads."""
    counts = [
        await _partition_count(parts.store, topic)
        for topic in (GROUP_METADATA_TOPIC, TRANSACTION_STATE_TOPIC, SHARE_STATE_TOPIC)
    ]
    parts.coordinators.startup(*counts)
    parts.request_channel.start()
    parts.metadata.expects_topics = bool(await parts.store.children(znodes.TOPICS))
    registration = parts.registration
    registration.unclean_shutdown = parts.logs.unclean_start
    await check_advertised_addresses(registration.store, registration.info)
    await registration.register()
    parts.standstill.start()
    await parts.controller.start()


async def _partition_count(store: ZnodeStore, topic: str) -> int | None:
    """The number of partitions of an internal topic, None if it does not exist yet."""
    try:
        data, _ = await store.get(znodes.topic_path(topic))
    except NoNode:
        return None
    return len(znodes.decode_topic(topic, data).assignments)
