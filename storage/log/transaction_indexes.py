"""Indexes of aborted transactions that are damaged are rebuilt from the batches.

Without one, reads of committed records, compaction and truncation of its log fail. Kafka recovers
the whole segment then (`LogSegment.sanityCheck`).
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Generator
from typing import TypeVar, cast

from ottla.protocol.records.batch import BATCH_OVERHEAD, read_header
from ottla.protocol.records.errors import RecordsError
from ottla.storage.errors import CorruptIndex, SegmentOffsetOverflow
from ottla.storage.index.txn_index import AbortedTransaction
from ottla.storage.log.batch_scan import CorruptLog, walk_batches
from ottla.storage.log.producer_replay import replay_batch, replay_in_steps
from ottla.storage.log.segment import Segment
from ottla.storage.log.segment_list import SegmentList
from ottla.storage.producer.producer_state import ProducerState

logger = logging.getLogger("ottla.storage")

T = TypeVar("T")

# Of each segment, when its log is opened: each takes two reads, 20 us.
_MARKERS_CHECKED = 50


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
        try:
            if segment.base_offset in without_index and not segment.txn_index.exists:
                raise CorruptIndex(segment.txn_index.path, "it is missing, as others are")
            entries = segment.txn_index.check()
            # An index of another segment or log is valid in itself.
            for entry in entries[:: 1 + len(entries) // _MARKERS_CHECKED]:
                check_marker(segment, entry)
        except CorruptIndex as damage:
            try:
                found = rebuilt_transaction_index(
                    name, segment, segments, producers, log_start_offset, damage
                )
            except CorruptIndex:
                continue
            if found or segment.txn_index.exists:
                segment.txn_index.replace(found)


def rebuilt_transaction_index(
    name: str,
    segment: Segment,
    segments: SegmentList,
    producers: ProducerState,
    log_start_offset: int,
    damage: CorruptIndex,
) -> list[AbortedTransaction]:
    """What the damaged index of a segment has to contain, from the batches.

    Raises `damage` if they are damaged, too, and OSError.
    """
    base_offset = segment.base_offset
    logger.warning(
        "%s: Rebuilding the transaction index of segment %d: %s", name, base_offset, damage
    )
    try:
        return _aborted(segment, segments, producers, log_start_offset)
    except (CorruptLog, CorruptIndex, RecordsError, SegmentOffsetOverflow) as lost:
        logger.error("%s: The transaction index cannot be rebuilt: %s", name, lost)
    raise damage


def check_marker(segment: Segment, entry: AbortedTransaction) -> None:
    """Raises CorruptIndex if the batch with the marker of `entry` is another one."""
    try:
        place = segment.find_batch(entry.last_offset)
        if place is not None and place.magic == 2 and place.base_offset <= entry.last_offset:
            header = read_header(segment.log.read(place.position, BATCH_OVERHEAD))
            if header.is_control and header.producer_id == entry.producer_id:
                return
    except (CorruptLog, RecordsError):
        return  # which of both is damaged is not known
    raise CorruptIndex(
        segment.txn_index.path, f"the marker of {entry} is not at offset {entry.last_offset}"
    )


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
