"""Indexes of aborted transactions that are damaged are rebuilt from the batches.

Without one, reads of committed records, compaction and truncation of its log fail. Kafka recovers
the whole segment then (`LogSegment.sanityCheck`).
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Generator
from typing import TypeVar, cast

from ottla.protocol.records.errors import RecordsError
from ottla.storage.errors import CorruptIndex
from ottla.storage.index.txn_index import AbortedTransaction
from ottla.storage.log.batch_scan import CorruptLog, walk_batches
from ottla.storage.log.producer_replay import replay_in_steps
from ottla.storage.log.segment import Segment
from ottla.storage.log.segment_list import SegmentList
from ottla.storage.producer.producer_state import ProducerState
from ottla.storage.recovery.recovery_scan import replay_batch

logger = logging.getLogger("ottla.storage")

T = TypeVar("T")


def repair_transaction_indexes(
    name: str,
    segments: SegmentList,
    producers: ProducerState,
    log_start_offset: int,
    without_index: Collection[int] = (),
) -> None:
    """Checks the index of each segment of the log `name`, and writes those that are damaged.

    And those of the segments with base offsets in `without_index`, if there are none: the other
    indexes were missing, too. What was written is durable. An index stays as it is if a batch of
    its segment is damaged, too. Of a transaction that begins behind a damaged batch of an earlier
    segment nothing is known. Raises OSError.
    """
    for segment in segments:
        is_missing = segment.base_offset in without_index and not segment.txn_index.exists
        try:
            segment.txn_index.check()
        except CorruptIndex as damage:
            logger.warning(
                "%s: Rebuilding the transaction index of segment %d: %s",
                name,
                segment.base_offset,
                damage,
            )
            is_missing = True
        if is_missing:
            try:
                aborted = _aborted(segment, segments, producers, log_start_offset)
            except (CorruptLog, RecordsError) as lost:
                logger.error("%s: The transaction index cannot be rebuilt: %s", name, lost)
            else:
                if aborted or segment.txn_index.exists:
                    segment.txn_index.replace(aborted)


def _at_once(steps: Generator[None, None, T]) -> T:
    try:
        while True:
            next(steps)
    except StopIteration as end:
        return cast("T", end.value)


def _aborted(
    segment: Segment, segments: SegmentList, producers: ProducerState, log_start_offset: int
) -> list[AbortedTransaction]:
    """The transactions with an abort marker in the segment. Raises CorruptLog, RecordsError."""
    first = segments.first.base_offset
    state = _at_once(producers.as_of_snapshot(first, segment.base_offset))
    _at_once(replay_in_steps(state, segments, log_start_offset, segment.base_offset))
    batches = walk_batches(segment.log.pinned(), 0, segment.size)
    replayed = (replay_batch(state, batch) for place, batch in batches if place.magic == 2)
    return [aborted for aborted in replayed if aborted is not None]
