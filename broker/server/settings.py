"""The settings of single parts, taken from those of the broker."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from ottla.broker.config.rules import assignor_names, rebalance_protocols
from ottla.broker.groups.settings import GroupSettings
from ottla.broker.transactions.coordinator import TransactionSettings
from ottla.controller.settings import ControllerSettings, parse_protocol_version
from ottla.storage.config import LogConfig

if TYPE_CHECKING:
    from ottla.broker.config.broker_config import BrokerConfig

_NEWEST_FORMAT = "3.0-IV1"


def log_config_factory(config: BrokerConfig) -> Callable[[dict[str, str]], LogConfig]:
    """As in Kafka, `remote.storage.enable` has no effect on a broker without tiered storage, and
    `message.format.version` none from `inter.broker.protocol.version` 3.0 on."""
    overrides = {"has.remote.storage": str(config.remote_log_storage_system_enable).lower()}
    if not config.remote_log_storage_system_enable:
        overrides["remote.storage.enable"] = "false"
    if parse_protocol_version(config.inter_broker_protocol_version) >= (3, 0, 0):
        overrides["message.format.version"] = _NEWEST_FORMAT
    return lambda properties: LogConfig.from_properties({**properties, **overrides})


def controller_settings(config: BrokerConfig) -> ControllerSettings:
    """The controller's part of the settings."""
    return ControllerSettings(
        auto_leader_rebalance_enable=config.auto_leader_rebalance_enable,
        leader_imbalance_check_interval_seconds=config.leader_imbalance_check_interval_seconds,
        leader_imbalance_per_broker_percentage=config.leader_imbalance_per_broker_percentage,
        delete_topic_enable=config.delete_topic_enable,
        unclean_leader_election_enable=config.unclean_leader_election_enable,
        num_partitions=config.num_partitions,
        default_replication_factor=config.default_replication_factor,
        inter_broker_protocol_version=config.inter_broker_protocol_version,
        inter_broker_listener_name=config.inter_broker_listener(),
        controller_socket_timeout_ms=config.controller_socket_timeout_ms,
    )


def group_settings(
    config: BrokerConfig, group_configs: Callable[[str], Mapping[str, str]]
) -> GroupSettings:
    """The group coordinator's part of the settings."""
    return GroupSettings(
        group_configs=group_configs,
        group_min_session_timeout_ms=config.group_min_session_timeout_ms,
        group_max_session_timeout_ms=config.group_max_session_timeout_ms,
        group_initial_rebalance_delay_ms=config.group_initial_rebalance_delay_ms,
        group_max_size=config.group_max_size,
        offset_metadata_max_bytes=config.offset_metadata_max_bytes,
        offsets_topic_num_partitions=config.offsets_topic_num_partitions,
        offsets_topic_compression_codec=config.offsets_topic_compression_codec,
        offsets_retention_ms=config.offsets_retention_minutes * 60_000,
        offsets_retention_check_interval_ms=config.offsets_retention_check_interval_ms,
        group_consumer_heartbeat_interval_ms=config.group_consumer_heartbeat_interval_ms,
        group_consumer_session_timeout_ms=config.group_consumer_session_timeout_ms,
        group_consumer_max_size=config.group_consumer_max_size,
        group_consumer_assignors=assignor_names(config.group_consumer_assignors),
        group_consumer_migration_policy=config.group_consumer_migration_policy.lower(),
        group_coordinator_rebalance_protocols=rebalance_protocols(
            config.group_coordinator_rebalance_protocols
        ),
    )


def transaction_settings(config: BrokerConfig) -> TransactionSettings:
    """The transaction coordinator's part of the settings."""
    return TransactionSettings(
        transaction_max_timeout_ms=config.transaction_max_timeout_ms,
        transaction_state_log_num_partitions=config.transaction_state_log_num_partitions,
        transactional_id_expiration_ms=config.transactional_id_expiration_ms,
        transaction_abort_timed_out_transaction_cleanup_interval_ms=(
            config.transaction_abort_timed_out_transaction_cleanup_interval_ms
        ),
        transaction_remove_expired_transaction_cleanup_interval_ms=(
            config.transaction_remove_expired_transaction_cleanup_interval_ms
        ),
        transaction_partition_verification_enable=config.transaction_partition_verification_enable,
    )
