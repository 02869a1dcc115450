"""Reads the local log of a coordinator's partition, also past batches that are damaged.

A batch with a damaged header does not tell where the next one begins, but the next segment does. If
there is none, a new one is started, so that what is appended from now on can be read by the next
load. Kafka's group and transaction coordinators end each load at the damaged batch, with what was
read before.
"""

import logging
from collections.abc import Callable, Iterator

from ottla.broker.coordination.ports import CoordinatorLog, WallClock
from ottla.protocol.records.errors import RecordsError
from ottla.protocol.records.reader import iterate_entries

logger = logging.getLogger("ottla.coordinators")


class DamagedLogReader:
    """The batches of the partitions of one internal topic."""

    def __init__(self, topic: str, log: CoordinatorLog, now_ms: WallClock) -> None:
        self._topic = topic
        self._log = log
        self._now_ms = now_ms

    def read_batches(
        self, partition: int, from_offset: int, on_damage: Callable[[], None]
    ) -> Iterator[memoryview]:
        """As `CoordinatorLog.read_batches`, without what cannot be read.

        Logs an error and calls `on_damage` for each part that is left out.
        """
        position = from_offset
        last: memoryview | None = None
        while True:
            try:
                for batch in self._log.read_batches(partition, position):
                    last = batch
                    yield batch
            except RecordsError as problem:
                if last is not None:
                    position = max(position, _next_offset(last))
                end = self._log.segment_end_offset(partition, position)
                logger.error(
                    "Error loading %s-%d: skipping offsets %d to %d, which cannot be read: %s",
                    self._topic,
                    partition,
                    position,
                    end - 1,
                    problem,
                    extra={"topic": self._topic, "partition": partition},
                )
                on_damage()
                if end >= self._log.log_end_offset(partition):
                    self._log.roll_segment(partition, self._now_ms())
                if end <= position:
                    return
                position = end
            else:
                return


def _next_offset(batch: memoryview) -> int:
    """The offset after a batch that was read."""
    next_offset = 0
    for _, header in iterate_entries(batch):
        next_offset = header.next_offset
    return next_offset
