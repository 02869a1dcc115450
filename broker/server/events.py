"""Connects the parts of a broker that need each other.

Some parts report to others that are built from them: a failed disk to the coordinators, a changed
setting to the controller. They get a method of `BrokerEvents`, which is built first; when all parts
are there, `connect` names the receivers, once.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from ottla.broker.config.dynamic_config import ConfigListener
    from ottla.broker.replication.directory_failures import LogDirFailureHandler
    from ottla.broker.replication.leader_and_isr import LeaderAndIsrApplier
    from ottla.broker.replication.log_cleaner import LogCleaner
    from ottla.broker.replication.log_dir_mover import LogDirMover
    from ottla.broker.replication.partition import Partition
    from ottla.broker.replication.replica_manager import ReplicaManager
    from ottla.controller.controller import Controller
    from ottla.storage.log.log import Log


class EventReceivers(NamedTuple):
    """The parts that `BrokerEvents` calls."""

    config_changes: ConfigListener
    replica_manager: ReplicaManager
    compaction: LogCleaner
    mover: LogDirMover
    failures: LogDirFailureHandler
    controller: Controller
    leader_and_isr: LeaderAndIsrApplier


class BrokerEvents:
    """Hands each event to its receivers. RuntimeError when one comes before `connect`."""

    def __init__(self) -> None:
        self._connected: EventReceivers | None = None

    def connect(self, receivers: EventReceivers) -> None:
        """Every event goes to these from now on."""
        self._connected = receivers

    def check_connected(self) -> None:
        """RuntimeError when `connect` was not called."""
        if self._connected is None:
            raise RuntimeError("BrokerEvents.connect was not called")

    @property
    def _receivers(self) -> EventReceivers:
        self.check_connected()
        assert self._connected is not None
        return self._connected

    # -- settings (see `ConfigListener`) --------------------------------------------------------

    def topic_changed(self, topic: str) -> None:
        self._receivers.config_changes.topic_changed(topic)

    def broker_changed(self, names: list[str]) -> None:
        self._receivers.config_changes.broker_changed(names)

    def quota_changed(self, kind: str, name: str, properties: dict[str, str]) -> None:
        self._receivers.config_changes.quota_changed(kind, name, properties)

    def client_metrics_changed(self, name: str, properties: dict[str, str]) -> None:
        self._receivers.config_changes.client_metrics_changed(name, properties)

    # -- replicas -------------------------------------------------------------------------------

    def high_watermark_advanced(self, partition: Partition) -> None:
        """A change of the in-sync replicas moved the high watermark."""
        self._receivers.replica_manager.complete_delayed_requests(partition)

    def log_truncated(self, log: Log) -> None:
        """A follower truncated its log."""
        self._receivers.compaction.truncated(log)
        self._receivers.mover.truncated(log)

    def directory_failed(self, directory: str) -> None:
        """An append or a read found that a log directory has failed."""
        self._receivers.failures.handle(directory)

    def leader_fenced(self, partition: Partition) -> None:
        """The controller has a higher leader epoch, and did not send it for a while."""
        self._receivers.leader_and_isr.step_down(
            partition, "the controller fenced its leader epoch"
        )

    # -- controller -----------------------------------------------------------------------------

    def request_queue_overflowed(self, broker_id: int) -> None:
        """The controller's requests to a broker were dropped: it is to send the full state."""
        self._receivers.controller.resend_all(broker_id)
