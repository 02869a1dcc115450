"""The settings of one broker: Kafka's `server.properties`, typed and checked.

An attribute is a Kafka setting name with `_` for `.`. Every setting of the tables is readable; the
annotated ones below are those that the broker acts on, the rest is accepted and has no effect.

Deviations from Kafka's defaults, all for a broker that is started without a properties file:

- `listeners` without `zookeeper.connect` is PLAINTEXT://127.0.0.1:9092, not every address of the
  machine: a lone broker without authentication is open to a network only when the settings say so.
  A broker of a cluster listens where Kafka listens.
- `log.dirs` is ./ottla-data, not /tmp/kafka-logs, which some systems empty at boot.
- `zookeeper.connect` may be absent: the znode tree is then kept in the data directory, for one
  broker. In that case `group.initial.rebalance.delay.ms` is 0, and the replication factors of the
  internal topics are capped by the one broker there is.
"""

from __future__ import annotations

import copy
import os
import re
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from ottla.broker.config.definitions import (
    Value,
    broker_settings,
    dynamic_only_settings,
    parse_value,
    split_list,
    topic_settings,
)
from ottla.broker.config.dynamic_rules import IgnoredSetting, StoredSecrets, take_layers
from ottla.broker.config.errors import ConfigError, each_error, located, names_in, raise_all
from ottla.broker.config.jaas_file import JaasFile
from ottla.broker.config.listeners import (
    PREFIX,
    Endpoint,
    parse_endpoints,
    parse_protocol_map,
)
from ottla.broker.config.password_encoder import new_encoder
from ottla.broker.config.properties_file import Property
from ottla.broker.config.providers import ConfigProviders
from ottla.broker.config.rules import validate
from ottla.broker.config.sources import collect, without_stars
from ottla.broker.config.unsupported import unused_settings

if TYPE_CHECKING:
    from ottla.broker.config.workers import WorkerPlace

__all__ = ["BrokerConfig", "ConfigError", "Endpoint"]

DEFAULT_DATA_DIRECTORY = "ottla-data"
DEFAULT_LISTENERS = "PLAINTEXT://127.0.0.1:9092"  #: of a broker without ZooKeeper
KAFKA_LISTENERS = "PLAINTEXT://:9092"  #: Kafka's default, of a broker with ZooKeeper
# The group protocols of Kafka 4. A cluster with brokers of Kafka 3.9 does not offer them anyway.
_DEFAULTS_OF_KAFKA_4 = {
    "group.coordinator.rebalance.protocols": "classic,consumer,share",
    "group.consumer.migration.policy": "bidirectional",
}

# As `Utils.validHostPattern`: names and addresses, also an IPv6 address in brackets.
_HOST = re.compile(r"[0-9a-zA-Z%._:-]+|\[[0-9a-fA-F:.%]+\]")

_MINUTE_MS = 60_000
_HOUR_MS = 3_600_000


class BrokerConfig:
    """All settings of a broker; changed in place by `update_dynamic` only, on the event loop."""

    advertised_listeners: str | None
    allow_everyone_if_no_acl_found: bool
    alter_config_policy_class_name: str | None
    authorizer_class_name: str
    auto_create_topics_enable: bool
    auto_leader_rebalance_enable: bool
    broker_id: int
    broker_id_generation_enable: bool
    broker_rack: str | None
    compression_type: str
    connection_failed_authentication_delay_ms: int
    connections_max_idle_ms: int
    connections_max_reauth_ms: int
    controlled_shutdown_enable: bool
    controlled_shutdown_max_retries: int
    controlled_shutdown_retry_backoff_ms: int
    controller_quota_window_num: int
    controller_quota_window_size_seconds: int
    controller_socket_timeout_ms: int
    client_quota_callback_class: str | None
    create_topic_policy_class_name: str | None
    default_replication_factor: int
    delegation_token_expiry_check_interval_ms: int
    delegation_token_expiry_time_ms: int
    delegation_token_master_key: str | None
    delegation_token_max_lifetime_ms: int
    delegation_token_secret_key: str | None
    delete_topic_enable: bool
    fetch_max_bytes: int
    group_consumer_assignors: list[str]
    group_consumer_heartbeat_interval_ms: int
    group_consumer_max_size: int
    group_consumer_migration_policy: str
    group_consumer_session_timeout_ms: int
    group_coordinator_rebalance_protocols: list[str]
    group_share_delivery_count_limit: int
    group_share_heartbeat_interval_ms: int
    group_share_max_share_sessions: int
    group_share_max_size: int
    group_share_record_lock_duration_ms: int
    group_share_session_timeout_ms: int
    group_initial_rebalance_delay_ms: int
    group_max_session_timeout_ms: int
    group_max_size: int
    group_min_session_timeout_ms: int
    inter_broker_listener_name: str | None
    inter_broker_protocol_version: str
    leader_imbalance_check_interval_seconds: int
    leader_imbalance_per_broker_percentage: int
    listener_security_protocol_map: str
    listeners: str
    log_cleaner_backoff_ms: int
    log_cleaner_dedupe_buffer_size: int
    log_cleaner_enable: bool
    log_cleaner_io_max_bytes_per_second: float
    log_cleaner_threads: int
    log_dir: str
    log_dirs: str | None
    log_flush_offset_checkpoint_interval_ms: int
    log_flush_scheduler_interval_ms: int
    log_flush_start_offset_checkpoint_interval_ms: int
    log_initial_task_delay_ms: int
    log_message_downconversion_enable: bool
    log_retention_check_interval_ms: int
    max_connection_creation_rate: int
    max_connections: int
    max_connections_per_ip: int
    max_connections_per_ip_overrides: str
    max_incremental_fetch_session_cache_slots: int
    max_request_partition_size_limit: int
    message_max_bytes: int
    min_insync_replicas: int
    num_io_threads: int
    num_partitions: int
    num_replica_fetchers: int
    offset_metadata_max_bytes: int
    offsets_commit_timeout_ms: int
    offsets_retention_check_interval_ms: int
    offsets_retention_minutes: int
    offsets_topic_compression_codec: int
    offsets_topic_num_partitions: int
    offsets_topic_replication_factor: int
    offsets_topic_segment_bytes: int
    password_encoder_cipher_algorithm: str
    password_encoder_iterations: int
    password_encoder_key_length: int
    password_encoder_keyfactory_algorithm: str | None
    password_encoder_old_secret: str | None
    password_encoder_secret: str | None
    ottla_log_dir_min_free_bytes: int
    ottla_audit_log_file: str | None
    ottla_audit_log_format: str
    ottla_log_format: str
    ottla_log_level: str
    ottla_create_topics: list[str]
    ottla_console_allow_remote: bool
    ottla_console_hosts: list[str]
    ottla_console_principal: str
    ottla_console_read_only: bool
    ottla_console_schema_registry_url: str | None
    ottla_console_schema_registry_user_info: str | None
    ottla_console_token: str | None
    ottla_console_enable: bool
    ottla_opentelemetry_traces_enable: bool
    ottla_metrics_address: str | None
    ottla_metrics_hosts: list[str]
    ottla_worker_threads: int
    ottla_workers: str
    ottla_workers_bootstrap_ports: list[str]
    ottla_workers_broker_ids: list[str]
    ottla_workers_log_dirs: list[str]
    ottla_workers_pin: bool
    ottla_workers_ports: list[str]
    ottla_workers_restart_limit: int
    ottla_request_max_bytes: int
    ottla_address_request_max_bytes: int
    ottla_memory_max_bytes: int
    ottla_authentication_timeout_ms: int
    ottla_zookeeper_digest: str | None
    producer_id_expiration_check_interval_ms: int
    producer_id_expiration_ms: int
    queued_max_request_bytes: int
    queued_max_requests: int
    quota_window_num: int
    quota_window_size_seconds: int
    remote_fetch_max_wait_ms: int
    remote_log_index_file_cache_total_size_bytes: int
    remote_log_manager_copier_thread_pool_size: int
    remote_log_manager_copy_max_bytes_per_second: int
    remote_log_manager_copy_quota_window_num: int
    remote_log_manager_copy_quota_window_size_seconds: int
    remote_log_manager_expiration_thread_pool_size: int
    remote_log_manager_fetch_max_bytes_per_second: int
    remote_log_manager_fetch_quota_window_num: int
    remote_log_manager_fetch_quota_window_size_seconds: int
    remote_log_manager_task_interval_ms: int
    remote_log_manager_task_retry_backoff_max_ms: int
    remote_log_manager_task_retry_backoff_ms: int
    remote_log_manager_task_retry_jitter: float
    remote_log_manager_thread_pool_size: int
    remote_log_metadata_custom_metadata_max_bytes: int
    remote_log_metadata_manager_class_name: str
    remote_log_metadata_manager_impl_prefix: str
    remote_log_metadata_manager_listener_name: str | None
    remote_log_reader_max_pending_tasks: int
    remote_log_reader_threads: int
    remote_log_storage_manager_class_name: str | None
    remote_log_storage_manager_impl_prefix: str
    remote_log_storage_system_enable: bool
    replica_fetch_backoff_ms: int
    replica_fetch_max_bytes: int
    replica_fetch_min_bytes: int
    replica_fetch_response_max_bytes: int
    replica_fetch_wait_max_ms: int
    replica_high_watermark_checkpoint_interval_ms: int
    replica_lag_time_max_ms: int
    replica_selector_class: str | None
    replica_socket_timeout_ms: int
    replication_quota_window_num: int
    replication_quota_window_size_seconds: int
    request_timeout_ms: int
    sasl_oauthbearer_clock_skew_seconds: int
    sasl_oauthbearer_expected_audience: list[str] | None
    sasl_oauthbearer_expected_issuer: str | None
    sasl_oauthbearer_jwks_endpoint_refresh_ms: int
    sasl_oauthbearer_sub_claim_name: str
    sasl_server_max_receive_size: int
    reserved_broker_max_id: int
    security_inter_broker_protocol: str
    share_coordinator_append_linger_ms: int
    share_coordinator_cold_partition_snapshot_interval_ms: int
    share_coordinator_snapshot_update_records_per_snapshot: int
    share_coordinator_state_topic_compression_codec: int
    share_coordinator_state_topic_min_isr: int
    share_coordinator_state_topic_num_partitions: int
    share_coordinator_state_topic_prune_interval_ms: int
    share_coordinator_state_topic_replication_factor: int
    share_coordinator_state_topic_segment_bytes: int
    share_coordinator_write_timeout_ms: int
    socket_listen_backlog_size: int
    socket_receive_buffer_bytes: int
    socket_request_max_bytes: int
    socket_send_buffer_bytes: int
    telemetry_max_bytes: int
    transaction_abort_timed_out_transaction_cleanup_interval_ms: int
    transaction_max_timeout_ms: int
    transaction_partition_verification_enable: bool
    transaction_remove_expired_transaction_cleanup_interval_ms: int
    transaction_state_log_min_isr: int
    transaction_state_log_num_partitions: int
    transaction_state_log_replication_factor: int
    transaction_state_log_segment_bytes: int
    transactional_id_expiration_ms: int
    unclean_leader_election_enable: bool
    super_users: str
    zookeeper_connect: str | None
    zookeeper_connection_timeout_ms: int | None
    zookeeper_session_timeout_ms: int
    zookeeper_set_acl: bool

    def __init__(
        self, given: Mapping[str, str] | None = None, *, worker: WorkerPlace | None = None
    ) -> None:
        """`given` holds settings as text by Kafka's names; ConfigError when one is wrong."""
        self._providers = ConfigProviders(given or {})
        self.given: dict[str, str] = self._providers.resolve_all(given or {})
        self.cluster_dynamic: dict[str, str] = {}
        self.broker_dynamic: dict[str, str] = {}
        self.ignored: list[IgnoredSetting] = []  #: dynamic settings of the tree that are not used
        self.ignored_prefixes: tuple[str, ...] = ()  #: of unknown settings
        #: Of a broker that is one of several workers of this machine.
        self.worker = worker
        self.warnings: list[str] = []
        self.jaas_file = JaasFile(os.environ.get("KAFKA_OPTS", ""))
        self._apply_synonyms()
        self.refresh()
        validate(self)
        if unused := unused_settings(self.given):
            self.warn(
                f"Without effect in this broker: {', '.join(unused)} (docs/configuration.md names "
                "the settings that are used)"
            )
        self.secrets = StoredSecrets(new_encoder(self, self.password_encoder_secret))

    @classmethod
    def load(
        cls,
        path: str | None = None,
        overrides: Iterable[str] = (),
        environment: Mapping[str, str] | None = None,
        ignored_prefixes: Iterable[str] = (),
    ) -> BrokerConfig:
        """The settings of a file, of `KAFKA_.../OTTLA_...` variables and of `--override`s.

        The later source wins. Unknown names that begin with one of `ignored_prefixes` are ignored.
        All errors are raised together; each names the file and line, the variable or the override.
        """
        found = collect(path, overrides, environment or {}, ignored_prefixes)
        table = broker_settings()
        errors = list(found.errors)
        good: dict[str, Property] = {}
        providers = ConfigProviders({name: item.value for name, item in found.given.items()})
        for item in found.given.values():
            setting = table.get(item.name)
            value = item.value
            try:
                value = providers.resolve(item.name, item.value)
                if setting is not None:
                    parse_value(setting, value)
            except ConfigError as error:
                if value != item.value:  # what a provider returned may be a secret
                    said = f"{item.name}: what {item.value} refers to is no value of this setting."
                    errors.append(ConfigError(said).at(item.origin))
                else:
                    errors.append(error.at(item.origin))
            else:
                good[item.name] = item
        try:
            config = cls({name: item.value for name, item in good.items()})
        except ConfigError as error:
            # A rule that compares a setting whose value is wrong has its default: it says nothing.
            errors += [
                located(each, good)
                for each in each_error(error)
                if not (found.given.keys() - good.keys()).intersection(names_in(each))
            ]
        raise_all(errors)
        config.warnings.extend(found.warnings)
        config.ignored_prefixes = without_stars(ignored_prefixes)
        return config

    # -- values ---------------------------------------------------------------------------------

    @property
    def embedded(self) -> bool:
        """Whether the znode tree is kept in the data directory (no ZooKeeper is named). That of
        workers is kept by their supervisor."""
        return not self.zookeeper_connect

    @property
    def alone(self) -> bool:
        """Whether this broker is the only one of its cluster."""
        return self.embedded and self.worker is None

    def effective_text(self, name: str) -> str | None:
        """A setting as text after all layers: broker's own dynamic, cluster's, given, default."""
        for layer in (self.broker_dynamic, self.cluster_dynamic, self.given):
            if name in layer:
                return layer[name]
        return self.default_text(name)

    def default_text(self, name: str) -> str | None:
        """The default of this broker for a setting, as text."""
        if name == "listeners":
            return KAFKA_LISTENERS if self.given.get("zookeeper.connect") else DEFAULT_LISTENERS
        if name == "log.dir":
            return DEFAULT_DATA_DIRECTORY
        if name == "group.initial.rebalance.delay.ms" and not self.given.get("zookeeper.connect"):
            return "0"
        if name in _DEFAULTS_OF_KAFKA_4:
            return _DEFAULTS_OF_KAFKA_4[name]
        setting = broker_settings().get(name)
        return None if setting is None else setting.default

    def texts(self) -> dict[str, str]:
        """All settings that are set, as text: in the file and, over these, at run time."""
        return {**self.given, **self.cluster_dynamic, **self.broker_dynamic}

    def value(self, name: str) -> Value:
        """The typed value of any setting of the table, by Kafka's name."""
        value: Value = getattr(self, name.replace(".", "_"))
        return value

    def listener_text(self, listener_name: str, name: str) -> str | None:
        """A setting for one listener: `listener.name.<listener>.<name>` wins over `<name>`."""
        special = self.effective_text(f"{PREFIX}{listener_name.lower()}.{name}")
        return special if special is not None else self.effective_text(name)

    def listener_limit(self, listener_name: str, name: str) -> int:
        """A connection limit of one listener, which has none unless it is set for it alone."""
        setting = broker_settings()[name]
        special = f"{PREFIX}{listener_name.lower()}.{name}"
        text = self.effective_text(special)
        try:
            value = parse_value(setting, setting.default if text is None else text)
        except ConfigError as error:
            raise ConfigError(f"{special}: {error}") from None
        assert isinstance(value, int)
        return value

    def _apply_synonyms(self) -> None:
        """`broker.id` and `node.id` are the same setting, as in Kafka's ZooKeeper mode."""
        ids = {name: self.given[name] for name in ("broker.id", "node.id") if name in self.given}
        if len(set(ids.values())) > 1:
            raise ConfigError("broker.id and node.id name the same thing but differ: drop one.")
        for value in ids.values():
            self.given["broker.id"] = self.given["node.id"] = value

    def refresh(self) -> None:
        """Parse all settings again, after a layer changed."""
        attributes = self.__dict__
        for name, setting in broker_settings().items():
            attributes[name.replace(".", "_")] = parse_value(setting, self.effective_text(name))

    def update_dynamic(
        self, cluster: Mapping[str, str], broker: Mapping[str, str], *, is_running: bool = False
    ) -> list[str]:
        """Replaces the dynamic layers, which are as the znode tree holds them; returns the names of
        the settings whose text changed. `ignored` has what cannot be used."""
        names = {*broker_settings(), *dynamic_only_settings()}
        names.update(self.cluster_dynamic, self.broker_dynamic, cluster, broker)
        before = {name: self.effective_text(name) for name in names}
        self.ignored = take_layers(self, cluster, broker, is_running=is_running)
        for each in self.ignored:
            self.warn(f"Ignoring the dynamic setting {each.name}: {each.problem}")
        return [name for name, text in before.items() if self.effective_text(name) != text]

    def for_worker(self, settings: Mapping[str, str], place: WorkerPlace) -> BrokerConfig:
        """The configuration of a worker: the given settings and, over these, its own. Raises
        ConfigError."""
        made = BrokerConfig({**self.given, **settings}, worker=place)
        made.ignored_prefixes = self.ignored_prefixes
        return made

    def with_dynamic(
        self,
        cluster: Mapping[str, str] | None = None,
        broker: Mapping[str, str] | None = None,
    ) -> BrokerConfig:
        """A copy with these dynamic settings, as they were set; None leaves a layer as it is.

        Raises ConfigError for a value that cannot be parsed. `validate` checks the rest.
        """
        changed = copy.copy(self)
        changed.warnings = []
        if cluster is not None:
            changed.cluster_dynamic = {
                name: self.resolve(name, text) for name, text in cluster.items()
            }
        if broker is not None:
            changed.broker_dynamic = {
                name: self.resolve(name, text) for name, text in broker.items()
            }
        changed.refresh()
        return changed

    def resolve(self, name: str, text: str) -> str:
        """A dynamic value with references to `config.providers` replaced. Raises ConfigError."""
        return self._providers.resolve(name, text)

    def old_secrets(self) -> StoredSecrets:
        """The decoder for `password.encoder.old.secret`. Raises ConfigError."""
        return StoredSecrets(new_encoder(self, self.password_encoder_old_secret))

    def warn(self, text: str) -> None:
        """Keeps a warning for the log; once each."""
        if text not in self.warnings:
            self.warnings.append(text)

    # -- derived values -------------------------------------------------------------------------

    def log_directories(self) -> list[str]:
        """The data directories: `log.dirs`, else `log.dir`."""
        return [path for path in split_list(self.log_dirs or self.log_dir) if path]

    def listener_endpoints(self) -> list[Endpoint]:
        """The listeners to bind, in the order written."""
        protocols = parse_protocol_map(self.listener_security_protocol_map)
        return parse_endpoints("listeners", self.listeners, protocols)

    def advertised_endpoints(self) -> list[Endpoint]:
        """`advertised.listeners`, else the listeners themselves (with "" for a wildcard host)."""
        if self.advertised_listeners is None:
            return [
                each._replace(host="") if each.host in ("", "0.0.0.0", "::") else each
                for each in self.listener_endpoints()
            ]
        protocols = parse_protocol_map(self.listener_security_protocol_map)
        return parse_endpoints("advertised.listeners", self.advertised_listeners, protocols)

    def inter_broker_listener(self) -> str:
        """The name of the listener that brokers use among themselves."""
        if self.inter_broker_listener_name:
            return self.inter_broker_listener_name.upper()
        return self.security_inter_broker_protocol

    def connections_per_ip_overrides(self) -> dict[str, int]:
        """`max.connections.per.ip.overrides`: an own limit by address."""
        overrides: dict[str, int] = {}
        for item in split_list(self.max_connections_per_ip_overrides):
            address, _, number = item.rpartition(":")
            is_number = number.isascii() and number.isdigit() and int(number[:20]) < 1 << 31
            if not is_number or not _HOST.fullmatch(address):
                raise ConfigError(
                    f"max.connections.per.ip.overrides: {item!r:.200} is not address:number."
                )
            overrides[address.strip("[]")] = int(number)
        return overrides

    def zookeeper_timeout_ms(self) -> int:
        """The time limit of the first connection to ZooKeeper."""
        timeout = self.zookeeper_connection_timeout_ms
        return self.zookeeper_session_timeout_ms if timeout is None else timeout

    def effective_log_retention_ms(self) -> int:
        """`log.retention.ms`, else minutes, else hours; -1 keeps for ever."""
        value = _first_given(
            self, "log.retention.ms", "log.retention.minutes", "log.retention.hours"
        )
        return -1 if value < 0 else value

    def topic_default_text(self, name: str) -> str | None:
        """The default of a topic setting on this broker, as text."""
        setting = topic_settings()[name]
        synonym = setting.broker_synonym
        if synonym is None:
            return setting.default
        if synonym == "log.retention.ms":
            return str(self.effective_log_retention_ms())
        if synonym == "log.roll.ms":
            return str(_first_given(self, "log.roll.ms", "log.roll.hours"))
        if synonym == "log.roll.jitter.ms":
            return str(_first_given(self, "log.roll.jitter.ms", "log.roll.jitter.hours"))
        if synonym == "log.flush.interval.ms":
            text = self.effective_text(synonym)
            return (
                text if text is not None else self.effective_text("log.flush.scheduler.interval.ms")
            )
        return self.effective_text(synonym)

    def topic_defaults(self) -> dict[str, str]:
        """The text of every topic setting that has a value on this broker."""
        found = ((name, self.topic_default_text(name)) for name in topic_settings())
        return {name: text for name, text in found if text is not None}


def _first_given(config: BrokerConfig, *names: str) -> int:
    """The first of several settings for one length of time that has a value, in milliseconds."""
    for name in names:
        value = config.value(name)
        if value is not None:
            assert isinstance(value, int)
            unit = 1
            if name.endswith(".minutes"):
                unit = _MINUTE_MS
            elif name.endswith(".hours"):
                unit = _HOUR_MS
            return value * unit
    raise AssertionError(f"none of {names} has a value: the last one has a default")
