"""Rules for numbers of the broker's settings that depend on each other, as in KafkaConfig."""

from __future__ import annotations

from typing import Protocol

from ottla.broker.config.errors import ConfigError


class Numbers(Protocol):
    """The settings that are compared."""

    broker_id: int
    broker_id_generation_enable: bool
    connection_failed_authentication_delay_ms: int
    connections_max_idle_ms: int
    log_cleaner_dedupe_buffer_size: int
    log_cleaner_threads: int
    queued_max_request_bytes: int
    replica_fetch_wait_max_ms: int
    replica_lag_time_max_ms: int
    replica_socket_timeout_ms: int
    reserved_broker_max_id: int
    socket_request_max_bytes: int

    def effective_log_retention_ms(self) -> int: ...

    def topic_default_text(self, name: str) -> str | None: ...


#: Those of them that change at run time.
CHANGING_NUMBERS = frozenset(
    (
        *("log.cleaner.dedupe.buffer.size", "log.cleaner.threads", "log.retention.ms"),
        *("log.roll.jitter.ms", "log.roll.ms"),
    )
)

_MIN_DEDUPE_BYTES = 1 << 20
"""Of a cleaner thread; with less it compacts nothing."""


def check_numbers(config: Numbers) -> None:
    """Raises ConfigError with the names of the settings that do not fit."""
    lowest = -1 if config.broker_id_generation_enable else 0
    highest = config.reserved_broker_max_id if config.broker_id_generation_enable else 2**31 - 1
    if not lowest <= config.broker_id <= highest:
        raise ConfigError(
            f"broker.id {config.broker_id} must lie between {lowest} and {highest}; ids above "
            "reserved.broker.max.id are the generated ones."
        )
    if config.replica_fetch_wait_max_ms > config.replica_socket_timeout_ms:
        raise ConfigError("replica.fetch.wait.max.ms is above replica.socket.timeout.ms.")
    if config.replica_fetch_wait_max_ms > config.replica_lag_time_max_ms:
        raise ConfigError("replica.fetch.wait.max.ms is above replica.lag.time.max.ms.")
    if 0 < config.queued_max_request_bytes < config.socket_request_max_bytes:
        raise ConfigError("queued.max.request.bytes is below socket.request.max.bytes.")
    if config.effective_log_retention_ms() == 0:
        raise ConfigError("log.retention.ms must be -1 (for ever) or at least 1.")
    if int(config.topic_default_text("segment.ms") or 1) < 1:
        raise ConfigError("log.roll.ms must be at least 1.")
    if int(config.topic_default_text("segment.jitter.ms") or 0) < 0:
        raise ConfigError("log.roll.jitter.ms must be at least 0.")
    threads = max(1, config.log_cleaner_threads)
    if config.log_cleaner_dedupe_buffer_size // threads <= _MIN_DEDUPE_BYTES:
        raise ConfigError(
            f"log.cleaner.dedupe.buffer.size must be above {_MIN_DEDUPE_BYTES} bytes for each of "
            "log.cleaner.threads."
        )
    if 0 <= config.connections_max_idle_ms <= config.connection_failed_authentication_delay_ms:
        raise ConfigError(
            "connection.failed.authentication.delay.ms is not below connections.max.idle.ms."
        )
