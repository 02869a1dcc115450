"""Calls of the log object of a broker that tests make: appends, truncations, lookups."""

from __future__ import annotations

import base64
from collections.abc import Callable
from typing import TYPE_CHECKING

from ottla.broker.handlers.records.list_offsets import offsets_before

if TYPE_CHECKING:
    from ottla.broker.server.broker import Broker
    from ottla.storage.log.log import Log


class LogCalls:
    """Each call has topic and partition, and is that of Kafka's `UnifiedLog`."""

    def __init__(self, parts: Broker) -> None:
        self._parts = parts

    def call(self, name: str, topic: str, index: int, *arguments: object) -> object:
        """The result of a call."""
        log = self._parts.logs.get(topic, index)
        assert log is not None, f"there is no log of {topic}-{index}"
        found: Callable[..., object] = getattr(self, f"_{name}")
        return found(log, *arguments)

    def _append(self, log: Log, records: str, leader_epoch: int) -> None:
        now_ms = self._parts.clock.now_ms()
        data = bytearray(base64.b64decode(records))
        log.append(data, leader_epoch=leader_epoch, now_ms=now_ms)

    def _high_watermark(self, log: Log, offset: int) -> int:
        return log.update_high_watermark(offset)

    def _start(self, log: Log, offset: int) -> bool:
        return log.truncator.delete_records_before(offset)

    def _delete_old_segments(self, log: Log) -> int:
        before = len(log.segments)
        for _ in log.retention.delete_old_segments(self._parts.clock.now_ms()):
            pass
        return before - len(log.segments)

    def _truncate(self, log: Log, offset: int) -> bool:
        return log.truncator.truncate_to(offset)

    def _offsets_before(self, log: Log, timestamp: int, limit: int) -> list[int]:
        now_ms = self._parts.clock.now_ms()
        return offsets_before(log, timestamp, limit, now_ms, is_consumer=False)

    def _max_timestamp(self, log: Log) -> tuple[int, int, int] | None:
        return log.max_timestamp_offset()

    def _config(self, log: Log) -> object:
        """The settings of the log as text, and those that are the topic's own."""
        overrides = self._parts.dynamic_config.topic_overrides(log.topic)
        settings = {**self._parts.config.topic_defaults(), **overrides}
        # Kafka's log has this format from inter.broker.protocol.version 3.0 on, Ottla's always.
        settings["message.format.version"] = "3.0-IV1"
        return {"settings": settings, "overrides": list(overrides)}
