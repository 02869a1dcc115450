"""Appending what was fetched from a leader, a few batches in each turn of the loop.

A follower that catches up gets 1 MB of a partition at once. As batches of a few bytes that is
0.1 s of work.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator

from ottla.protocol.records.batch import LOG_OVERHEAD, read_size
from ottla.protocol.records.errors import CorruptRecordError
from ottla.storage.errors import UnexpectedAppendOffset
from ottla.storage.log.log import Log

logger = logging.getLogger("ottla.replication")

# 5 to 10 ms of the smallest ones.
_BATCHES_PER_TURN = 1_000
# An offset, a size and a message of magic 0 with neither key nor value.
_SMALLEST_BATCH_BYTES = 26


def in_pieces(records: bytes | memoryview) -> Iterable[memoryview]:
    """`records` in order, a bounded number of batches in each piece.

    What is no batch is in the last piece, for the append to refuse.
    """
    view = memoryview(records)
    if len(view) <= _BATCHES_PER_TURN * _SMALLEST_BATCH_BYTES:
        return (view,) if view else ()
    return _walked(view)


def _walked(records: memoryview) -> Iterator[memoryview]:
    begin = position = count = 0
    while position + LOG_OVERHEAD <= len(records):
        if count == _BATCHES_PER_TURN:
            yield records[begin:position]
            begin, count = position, 0
        try:
            position += read_size(records, position)
        except CorruptRecordError:
            break
        count += 1
    yield records[begin:]


def append_from_leader(
    log: Log, records: memoryview, now_ms: int, truncate_fully: Callable[[Log, int], None]
) -> None:
    """Appends batches that the leader has at the end of `log`.

    `truncate_fully` empties a log that is to start at an offset. Raises what
    `Log.append_as_follower` raises.
    """
    try:
        log.append_as_follower(records, now_ms=now_ms)
    except UnexpectedAppendOffset as error:
        is_empty = log.log_start_offset == log.log_end_offset
        if not (is_empty and error.first_offset < log.log_end_offset <= error.last_offset):
            raise
        # The leader's log start offset is inside a batch (DeleteRecords). This log has the
        # whole batch, too; its log start offset becomes the leader's after the append.
        logger.info(
            "[Partition %s-%d] Truncate fully and start at offset %d, the first offset of the "
            "batch that contains the leader's log start offset %d",
            log.topic,
            log.partition,
            error.first_offset,
            log.log_start_offset,
            extra={"topic": log.topic, "partition": log.partition},
        )
        truncate_fully(log, error.first_offset)
        log.append_as_follower(records, now_ms=now_ms)
