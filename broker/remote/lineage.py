"""Which remote segments belong to the history of a log: by its leader epochs.

Two leaders may have copied different records at the same offsets, before and after an unclean
election. Pure functions over (leader epoch, start offset) pairs in ascending order, as
`LeaderEpochs.entries` has them. Mirrors functions of Kafka's RemoteLogManager.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from itertools import pairwise
from typing import TYPE_CHECKING

from ottla.broker.remote.metadata_cache import last_offset_of_epoch

if TYPE_CHECKING:
    from ottla.broker.remote.metadata_cache import RemoteLogMetadataCache
    from ottla.protocol.steps import Steps
    from ottla.storage.remote.segments import RemoteLogSegmentMetadata

Epochs = Sequence[tuple[int, int]]


def end_of_epoch(epochs: Epochs, index: int, log_end_offset: int) -> int:
    """The offset after the last record of the epoch at `index`."""
    return epochs[index + 1][1] if index + 1 < len(epochs) else log_end_offset


def highest_remote_offset(
    cache: RemoteLogMetadataCache, epochs: Epochs, log_end_offset: int
) -> int:
    """The last offset of this history that is in remote storage, or -1.

    What an earlier leader copied beyond the end of its epoch is not of this history.
    """
    for index in reversed(range(len(epochs))):
        highest = cache.highest_offset(epochs[index][0])
        if highest is not None:
            return min(highest, end_of_epoch(epochs, index, log_end_offset) - 1)
    return -1


def remote_log_start_offset(cache: RemoteLogMetadataCache, epochs: Epochs) -> int | None:
    """The first offset of this history in remote storage; None if there is none."""
    for epoch, _ in epochs:
        segments = cache.segments_of_epoch(epoch)
        if segments:
            return segments[0].start_offset
    return None


def first_hole(
    segments: list[RemoteLogSegmentMetadata], start_offset: int, end_offset: int
) -> tuple[int, int] | None:
    """The first offsets in [start_offset, end_offset) that no segment has, the second exclusive.

    `segments` are in the order of their start offsets. Histories are not compared.
    """
    covered = start_offset
    for each in segments:
        if each.start_offset > covered:
            return (covered, min(each.start_offset, end_offset)) if covered < end_offset else None
        covered = max(covered, each.end_offset + 1)
    return (covered, end_offset) if covered < end_offset else None


def is_complete(epochs: Epochs, log_start_offset: int) -> bool:
    """Whether the epochs are known from the log start on.

    They are not when the checkpoint was lost and only the local batches said which there are.
    """
    return bool(epochs) and epochs[0][1] <= log_start_offset


def first_missing(
    cache: RemoteLogMetadataCache, epochs: Epochs, start_offset: int, end_offset: int
) -> Steps[int | None]:
    """The first offset in [start_offset, end_offset) that no segment of this history has.

    May pause between two segments.
    """
    offset = start_offset
    while offset < end_offset:
        index = bisect_right(epochs, offset, key=lambda entry: entry[1]) - 1
        if index < 0:
            return offset
        epoch = epochs[index][0]
        segment = cache.segment_at(epoch, offset)
        if segment is None:
            return offset
        yield
        last = last_offset_of_epoch(segment, epoch)
        offset = min(last + 1, end_of_epoch(epochs, index, end_offset))
    return None


def completed(
    segments: list[RemoteLogSegmentMetadata],
    epochs: Epochs,
    log_start_offset: int,
    log_end_offset: int,
) -> list[tuple[int, int]] | None:
    """The epochs from the log start on: those before the first known one are in the metadata of the
    segments. None if these do not have all records in between, or not of one history.

    `segments` are those that can be read.
    """
    first_epoch, first = epochs[0] if epochs else (1 << 31, log_end_offset)
    starts: dict[int, int] = {}
    covered = log_start_offset
    used = []
    for each in sorted(segments, key=lambda each: each.start_offset):
        if each.end_offset < log_start_offset:
            continue
        if not covered >= each.start_offset < first:
            break
        covered = max(covered, each.end_offset + 1)
        used.append(each)
        for epoch, start in each.leader_epochs.items():
            if start < first:
                starts[epoch] = min(start, starts.get(epoch, start))
    found = [*sorted(starts.items()), *(each for each in epochs if each[0] not in starts)]
    ascends = all(one[0] < two[0] and one[1] < two[1] for one, two in pairwise(found))
    if covered < first or not ascends or first_epoch < max(starts, default=-1):
        return None
    if not all(is_of_history(each, found, log_end_offset) for each in used):
        return None
    return found


def epochs_between(epochs: Epochs, start_offset: int, end_offset: int) -> dict[int, int]:
    """The epochs of the offsets in [start_offset, end_offset) and their first offset there."""
    found: dict[int, int] = {}
    for index, (epoch, first) in enumerate(epochs):
        if first < end_offset and end_of_epoch(epochs, index, end_offset) > start_offset:
            found[epoch] = max(first, start_offset)
    return found


def epoch_checkpoint(epochs: Epochs, end_offset: int) -> bytes:
    """A leader epoch checkpoint of what is below `end_offset`, in Kafka's text format."""
    rows = [(epoch, first) for epoch, first in epochs if first < end_offset]
    lines = ["0", str(len(rows)), *(f"{epoch} {first}" for epoch, first in rows)]
    return "".join(f"{line}\n" for line in lines).encode()


def end_of_common_history(
    metadata: RemoteLogSegmentMetadata, epochs: Epochs, log_end_offset: int, offset: int
) -> int:
    """The offset up to which the segment's records from `offset` on are those of this history.

    An earlier leader may have copied records beyond the end of its epoch that an unclean election
    removed from this history.
    """
    of_segment = [(start, epoch) for epoch, start in metadata.leader_epochs.items()]
    of_segment.sort()
    end_offset = metadata.end_offset + 1
    while offset < end_offset:
        place = bisect_right(of_segment, (offset, 1 << 31)) - 1
        index = bisect_right(epochs, offset, key=lambda entry: entry[1]) - 1
        if place < 0 or index < 0 or of_segment[place][1] != epochs[index][0]:
            break
        following = of_segment[place + 1][0] if place + 1 < len(of_segment) else end_offset
        offset = min(following, end_of_epoch(epochs, index, log_end_offset), end_offset)
        if offset >= log_end_offset:
            break
    return offset


def is_of_history(metadata: RemoteLogSegmentMetadata, epochs: Epochs, log_end_offset: int) -> bool:
    """Whether all records of the segment are of this history.

    Records before the first known epoch are not checked: the log start may be inside the segment.
    """
    if not epochs or metadata.end_offset >= log_end_offset:
        return False
    first_known = epochs[0][0]
    places = {epoch: index for index, (epoch, _) in enumerate(epochs)}
    of_segment = sorted(each for each in metadata.leader_epochs if each >= first_known)
    if not of_segment:
        return False
    last = of_segment[-1]
    for epoch in of_segment:
        index = places.get(epoch)
        if index is None:
            return False
        start, end = metadata.leader_epochs[epoch], end_of_epoch(epochs, index, log_end_offset)
        if index > 0 and start < epochs[index][1]:
            return False
        last_offset = last_offset_of_epoch(metadata, epoch)
        if last_offset >= end or (epoch != last and last_offset != end - 1):
            return False
    return True
