"""Appends the records of the share coordinator, with `share.coordinator.append.linger.ms`.

Mirrors the batches of Kafka's `CoordinatorRuntime`: with a linger time the records of one partition
of `__share_group_state` wait for others and become one batch. Otherwise, which is the default, each
is appended at once.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from ottla.broker.coordination.ports import AppendResult, CoordinatorLog
from ottla.broker.share.coordinator.partition import ShareStatePartition
from ottla.protocol.errors import ErrorCode
from ottla.protocol.records.builder import build_batch

if TYPE_CHECKING:
    from ottla.broker.runtime.clock import Clock
    from ottla.broker.runtime.timer import DelayQueue

# Of keys and values in one batch: half of the default of `max.message.bytes`.
_MAX_BYTES = 1 << 19

_Row = tuple[int, bytes, bytes | None, None]


class _Waiting:
    """Records of one partition that are not appended yet."""

    __slots__ = ("results", "rows", "size")

    def __init__(self) -> None:
        self.rows: list[_Row] = []
        self.results: list[AppendResult] = []
        self.size = 0


class RecordAppender:
    """Loop thread only. A partition that this broker has lost meanwhile gets no records."""

    def __init__(
        self,
        log: CoordinatorLog,
        clock: Clock,
        codec: int,
        is_active: Callable[[ShareStatePartition], bool],
        timer: DelayQueue,
        linger_ms: int,
    ) -> None:
        """With a linger time of 0 or less, records are appended at once."""
        self._log = log
        self._clock = clock
        self._codec = codec
        self._is_active = is_active
        self._timer = timer
        self._linger_ms = linger_ms
        self._waiting: dict[ShareStatePartition, _Waiting] = {}

    def append(
        self,
        partition: ShareStatePartition,
        key: bytes,
        value: bytes | None,
        on_result: AppendResult,
    ) -> None:
        """`on_result` is called with the error code and the offset of the record."""
        row = (self._clock.now_ms(), key, value, None)
        if self._linger_ms <= 0:
            self._log.append(partition.index, build_batch([row], codec=self._codec), on_result)
            return
        waiting = self._waiting.get(partition)
        if waiting is None:
            waiting = self._waiting[partition] = _Waiting()
            mine = waiting
            self._timer.schedule(self._linger_ms, lambda: self._append_waiting(partition, mine))
        waiting.rows.append(row)
        waiting.results.append(on_result)
        waiting.size += len(key) + len(value or b"")
        if waiting.size >= _MAX_BYTES:
            self._append_waiting(partition, waiting)

    def _append_waiting(self, partition: ShareStatePartition, waiting: _Waiting) -> None:
        if self._waiting.get(partition) is not waiting:
            return  # it was large enough before the end of its time
        del self._waiting[partition]

        def on_result(error_code: int, base_offset: int) -> None:
            for index, each in enumerate(waiting.results):
                each(error_code, base_offset + index)

        if self._is_active(partition):
            batch = build_batch(waiting.rows, codec=self._codec)
            self._log.append(partition.index, batch, on_result)
        else:
            on_result(ErrorCode.NOT_COORDINATOR, -1)
