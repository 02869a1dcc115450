"""What a change of the dynamic settings changes in the parts of a running broker."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from ottla.broker.config.errors import ConfigError
from ottla.broker.config.listeners import LISTENERS, is_of_login
from ottla.broker.runtime.tasks import spawn
from ottla.broker.server.settings import controller_settings
from ottla.controller.tree import znodes
from ottla.protocol.errors import KafkaError
from ottla.protocol.steps import TurnQueue

if TYPE_CHECKING:
    from ottla.broker.security.sasl.broker_login import BrokerLogin
    from ottla.broker.server.broker import Broker
    from ottla.controller.tree.entity_configs import Unreadable
    from ottla.protocol.steps import Steps

logger = logging.getLogger("ottla.broker")


class ConfigChanges:
    """Satisfies `ottla.broker.config.dynamic_config.ConfigListener`. Loop only."""

    def __init__(self, parts: Broker) -> None:
        self._parts = parts
        loop = asyncio.get_running_loop()

        def defer(callback: Callable[[], None]) -> None:
            loop.call_soon(callback)

        self._jobs = TurnQueue(defer)

    def topic_changed(self, topic: str) -> None:
        """Applies throttles, an unclean leader election, and the settings of the topic's logs."""
        dynamic_config = self._parts.dynamic_config
        overrides = dynamic_config.topic_overrides(topic)
        self._parts.throttles.apply_topic(topic, overrides)
        # As the value was given: Kafka, too, takes "True".
        if overrides.get("unclean.leader.election.enable", "").strip().lower() == "true":
            self._parts.controller.enable_topic_unclean_leader_election(topic)
        new = dynamic_config.log_config(topic)
        for log in self._parts.logs.logs():
            if log.topic == topic:
                log.update_config(new)
        self._apply_remote_storage(topic)

    def _apply_remote_storage(self, topic: str | None) -> None:
        """Begins or ends the tasks of partitions whose `remote.storage.enable` changed; None: of
        all topics."""
        remote_logs = self._parts.remote_logs
        if remote_logs is not None:
            replicas = self._parts.replica_manager.partitions.values()
            remote_logs.settings_changed(
                [each for each in replicas if topic is None or each.topic == topic]
            )

    def broker_changed(self, names: list[str]) -> None:
        """Applies the settings of all logs, throttles, limits, keys and the controller."""
        parts, config = self._parts, self._parts.config
        self._jobs.start(self._update_logs())
        self._parts.throttles.apply_broker(self._parts.mover.throttle)
        parts.logs.min_free_bytes = config.ottla_log_dir_min_free_bytes
        parts.logs.set_producer_expiration(config.producer_id_expiration_ms)
        verifies = config.transaction_partition_verification_enable
        parts.logs.set_transaction_verification(enabled=verifies)
        parts.coordinators.verifier.enabled = verifies
        self._parts.log_cleaner.settings_changed()
        parts.fetchers.resize(config.num_replica_fetchers)
        if self._parts.remote_logs is not None:
            self._parts.remote_logs.update_quotas(config)
        remote_fetches = self._parts.replica_manager.remote_fetches
        if remote_fetches is not None:
            remote_fetches.reader.indexes.set_max_bytes(
                config.remote_log_index_file_cache_total_size_bytes
            )
        self._parts.quotas.settings_changed(config)
        self._parts.controller.update_settings(controller_settings(config))
        self._parts.tls.settings_changed(names)
        self._parts.listeners.settings_changed(names)
        listener = config.inter_broker_listener()
        if parts.login is not None and any(is_of_login(name, listener) for name in names):
            spawn(self._renew_login(parts.login), name="broker-login")
        if not set(LISTENERS).isdisjoint(names):
            self._parts.listeners.changed()

    async def _renew_login(self, login: BrokerLogin) -> None:
        try:
            changed = self._parts.new_login()
            if changed is not None:
                await login.renew(changed)
        except ConfigError as error:
            logger.error("This broker logs in to others as before: %s", error)

    def _update_logs(self) -> Steps[None]:
        # Settings that change at a pause start a job of their own, which runs after this one.
        for log in self._parts.logs.logs():
            log.update_config(self._parts.dynamic_config.log_config(log.topic))
            yield
        self._apply_remote_storage(None)

    def quota_changed(self, kind: str, name: str, properties: dict[str, str]) -> None:
        """Applies the SCRAM credentials and the quotas of a user, client or ip."""
        entity = f"{kind}/{name}"
        problems = self._parts.scram_credentials.apply(kind, name, properties)
        problems += self._parts.quotas.clients.apply(entity, properties)
        path = znodes.config_path(entity)
        if problems:
            self._report(entity, path, f"{path}: {'; '.join(problems)}")
        else:
            self._parts.unusable_znodes.repaired(path)

    def quota_unreadable(self, entity: str, found: Unreadable, *, is_known: bool) -> None:
        """A user cannot log in with SCRAM; quotas stay, or nothing is allowed where there are
        none."""
        kind, _, name = entity.partition("/")
        self._parts.scram_credentials.apply(kind, name, {})
        if not is_known:
            self._parts.quotas.clients.block(entity)
        self._report(entity, *found)

    def _report(self, entity: str, path: str, problem: str) -> None:
        parts = self._parts
        parts.unusable_znodes.report(
            path,
            problem,
            "its clients are throttled as far as a limit is not known, and its user has no SCRAM "
            "credential that cannot be read,",
            partial(parts.dynamic_config.read_again, entity),
        )

    def client_metrics_changed(self, name: str, properties: dict[str, str]) -> None:
        """Applies a subscription to metrics of clients."""
        if self._parts.client_metrics is None:
            return
        try:
            self._parts.client_metrics[0].update(name, properties)
        except KafkaError as error:
            # A tool that writes the znode itself has not had it validated by a broker.
            logger.warning("client metrics subscription %s is ignored: %s", name, error.message)
