"""Retention: deletes old segments by age, by size, and below the log start offset."""

from __future__ import annotations

import logging
from collections.abc import Callable, Generator
from itertools import islice

from ottla.storage.errors import DiskFull
from ottla.storage.log.batch_scan import CorruptLog
from ottla.storage.log.local_log import LocalLog
from ottla.storage.log.log_offsets import LogOffsets
from ottla.storage.log.segment import Segment
from ottla.storage.log.truncation import LogTruncator

logger = logging.getLogger("ottla.storage")

# About 0.5 ms: each has four files to rename.
SEGMENTS_PER_STEP = 4

# (segment, the next one) -> whether it may be deleted
Predicate = Callable[[Segment, Segment | None], bool]


class LogRetention:
    """Applies `retention.ms`, `retention.bytes` and the log start offset to one log.

    If segments are copied to remote storage, `local.retention.ms` and `local.retention.bytes` are
    the limits, and a segment is deleted only after it was copied. The local log start offset
    advances then, and the log start offset does not.
    """

    __slots__ = ("_local", "_offsets", "_truncator")

    def __init__(self, local: LocalLog, offsets: LogOffsets, truncator: LogTruncator) -> None:
        self._local = local
        self._offsets = offsets
        self._truncator = truncator

    def delete_old_segments(self, now_ms: int) -> Generator[None, None, int]:
        """`Log.delete_old_segments`.

        Below the log start in any case; by size and time only if `cleanup.policy` has `delete`.
        """
        self._local.directory.log_directory.check_online()
        start, config = self._offsets.local_log_start_offset, self._local.config
        reason = f"log start offset {start} breach"
        deleted = yield from self._delete(_is_below(start), reason, now_ms, moves_start=False)
        if config.delete:
            scope = "local " if config.copies_to_remote else ""
            limit = config.local_limit_bytes
            reason = f"{scope}retention size {limit} breach"
            deleted += yield from self._delete(self._exceeds_size(), reason, now_ms)
            limit = config.local_limit_ms
            reason = f"{scope}retention time {limit}ms breach"
            deleted += yield from self._delete(_is_older(limit, now_ms), reason, now_ms)
        return deleted

    def is_expired(self, now_ms: int) -> bool:
        """`Log.is_expired`. Records are appended in the order of time, mostly: the last segments
        have the newest. Raises OSError."""
        config = self._local.config
        if not config.delete:
            return False
        is_older = _is_older(config.retention_ms, now_ms)
        last = list(self._local.segments)[-2:]
        return config.retention_bytes >= 0 or all(is_older(s, None) for s in last if s.size)

    def _delete(
        self, predicate: Predicate, reason: str, now_ms: int, *, moves_start: bool = True
    ) -> Generator[None, None, int]:
        """Each step is complete: the log may be used, truncated or deleted between two of them."""
        local, deleted, first, last = self._local, 0, -1, -1
        while True:
            segments = self._delete_some(predicate, now_ms, moves_start=moves_start)
            if segments:
                first = first if deleted else segments[0].base_offset
                last = segments[-1].base_offset
                deleted += len(segments)
            if len(segments) < SEGMENTS_PER_STEP:
                break
            yield
            if local.closed:
                break
            local.directory.log_directory.check_online()
        if deleted:
            logger.info(
                "%s: Deleted %d segments, base offsets %d to %d, due to %s",
                local.directory.name,
                deleted,
                first,
                last,
                reason,
            )
        return deleted

    def _deletable(self, predicate: Predicate) -> tuple[list[Segment], bool]:
        """The oldest segments for which `predicate` holds, up to the first one for which not, and
        not more than one step deletes. And whether it holds for all of them, also the active one,
        which is to be copied to remote storage first.

        Never one with records at or above the high watermark, never an empty active segment, and
        none that has to be copied: what is missing on this disk above the durable log start is in
        remote storage.
        """
        offsets, copies = self._offsets, self._local.config.copies_to_remote
        deleted_below = min(offsets.log_start_offset, offsets.durable_log_start)
        deletable: list[Segment] = []
        segments = list(islice(self._local.segments, SEGMENTS_PER_STEP + 1))
        for index, segment in enumerate(segments[:SEGMENTS_PER_STEP]):
            following = segments[index + 1] if index + 1 < len(segments) else None
            if following is None and segment.size == 0:
                break
            end = offsets.log_end_offset if following is None else following.base_offset
            if end > offsets.high_watermark or not predicate(segment, following):
                break
            is_deleted = following is not None and end <= deleted_below
            if copies and not is_deleted and end - 1 > offsets.highest_remote_offset:
                return deletable, following is None
            deletable.append(segment)
        return deletable, False

    def _exceeds_size(self) -> Predicate:
        limit = self._local.config.local_limit_bytes
        excess = self._local.size_in_bytes - limit

        def predicate(segment: Segment, _: Segment | None) -> bool:
            nonlocal excess
            if limit < 0 or excess < segment.size:
                return False
            excess -= segment.size
            return True

        return predicate

    def _delete_some(
        self, predicate: Predicate, now_ms: int, *, moves_start: bool
    ) -> list[Segment]:
        local = self._local
        try:
            deletable, closes_active = self._deletable(predicate)
            if closes_active:
                # As in Kafka: the last records of a quiet partition expire, too.
                local.roll(now_ms, self._offsets.log_end_offset)
            if not deletable:
                return deletable
            if deletable[-1] is local.active:
                try:
                    local.roll(now_ms, self._offsets.log_end_offset)
                except DiskFull:
                    deletable.pop()  # deleting the others makes room for a new segment
                    if not deletable:
                        raise
            local.retire_segments(deletable, now_ms + local.config.file_delete_delay_ms)
            if local.config.copies_to_remote or not moves_start:
                self._offsets.advance_local_log_start(local.segments.first.base_offset)
            else:
                self._truncator.delete_records_before(local.segments.first.base_offset)
        except OSError as error:
            raise local.directory.log_directory.write_failed(error) from error
        return deletable


def _is_below(log_start_offset: int) -> Predicate:
    return lambda _, following: following is not None and following.base_offset <= log_start_offset


def _is_older(retention_ms: int, now_ms: int) -> Predicate:
    if retention_ms < 0:
        return lambda _, __: False
    return lambda segment, _: now_ms - _largest_timestamp(segment) > retention_ms


def _largest_timestamp(segment: Segment) -> int:
    try:
        return segment.largest_timestamp()
    except CorruptLog:
        # The time index has the newest timestamp of an inactive segment: it expires like others.
        newest = segment.time_index.last()[0]
        return newest if newest >= 0 else segment.modified_ms()
