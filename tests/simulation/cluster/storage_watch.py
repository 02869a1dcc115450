"""Checks what the disks of brokers must have while they run: recovery points and synced bytes."""

from __future__ import annotations

import re
import struct
from typing import TYPE_CHECKING, Any

from ottla.storage.files.layout import RECOVERY_POINT_CHECKPOINT

if TYPE_CHECKING:
    from tests.simulation.cluster.disk import Disk, File
    from tests.simulation.cluster.node import Node

TOPIC = "t"
POINT = re.compile(rb"^%s (\d+) (\d+)$" % TOPIC.encode(), re.MULTILINE)


class StorageWatch:
    """The disks of all brokers. Only what has changed since the last look is read again."""

    def __init__(self) -> None:
        #: By broker and partition: the log, its truncations, and the recovery point that was right.
        self._synced: dict[tuple[int, int], tuple[Any, int, int]] = {}
        #: By log directory: the checkpoint as it was read, and the recovery points in it.
        self._checkpoints: dict[tuple[int, str], tuple[File, int, dict[int, int]]] = {}

    def complaints(self, node: Node, manager: Any, partitions: int) -> list[str]:
        """What is wrong with the logs of a broker, which must be between two callbacks."""
        found = []
        for index in range(partitions):
            partition = manager.partitions.get((TOPIC, index))
            if partition is None or partition.log is None or partition.offline:
                continue
            log = partition.log
            if log.log_directory.is_offline or log.local.closed:
                continue
            reason = self._not_synced(node, log, index) or self._above(node, log, index)
            if reason:
                found.append(f"{node.host}: {TOPIC}-{index} {reason}")
        return found

    def _not_synced(self, node: Node, log: Any, index: int) -> str:
        """Everything below the recovery point is on disk: else recovery would not read it again."""
        offsets = log.offsets
        known, truncations, point = self._synced.get((node.broker_id, index), (None, 0, 0))
        if known is not log or truncations != offsets.truncations:
            point = 0
        if point != offsets.recovery_point:
            reason = _not_synced(node.disk, log, point)
            if reason:
                return reason
            self._synced[node.broker_id, index] = log, offsets.truncations, offsets.recovery_point
        return ""

    def _above(self, node: Node, log: Any, index: int) -> str:
        """The recovery point on disk is never above the one in memory."""
        directory = log.log_directory.path
        file = _file(node.disk, f"{directory}/{RECOVERY_POINT_CHECKPOINT}")
        if file is None:
            return ""
        where = node.broker_id, directory
        known, changes, points = self._checkpoints.get(where, (None, 0, {}))
        if known is not file or changes != file.changes:
            rows = POINT.findall(file.content()) if _is_whole(file.content()) else ()
            points = {int(row[0]): int(row[1]) for row in rows}
            self._checkpoints[where] = file, file.changes, points
        point = points.get(index, 0)
        if point > log.recovery_point:
            return f"has the recovery point {point} on disk, {log.recovery_point} in memory"
        return ""


def _is_whole(content: bytes) -> bool:
    """Whether the next start reads a checkpoint, and does not ignore it as damaged."""
    version, _, rest = content.partition(b"\n")
    count, _, rows = rest.partition(b"\n")
    is_complete = content.endswith(b"\n") and count == str(len(rows.splitlines())).encode()
    return version == b"0" and is_complete


def _file(disk: Disk, path: str) -> File | None:
    directory, _, name = path.rpartition("/")
    names = disk.names.get(directory)
    return None if names is None else names.live.get(name)


def _not_synced(disk: Disk, log: Any, checked: int) -> str:
    """What is not on disk of the records from `checked` to the recovery point."""
    if log.recovery_point <= log.log_start_offset:
        return (
            ""  # records were deleted up to there, which raises the recovery point without a sync
        )
    segments = list(log.segments)
    for position, segment in enumerate(segments):
        is_last = position + 1 == len(segments)
        end = log.log_end_offset if is_last else segments[position + 1].base_offset
        if segment.base_offset >= log.recovery_point:
            break
        if end <= checked:
            continue
        if end <= log.log_start_offset:
            continue  # deleted records raise the recovery point without a sync
        file = _file(disk, segment.log.path)
        if file is None or len(file.synced) >= segment.size:
            continue
        below = _bytes_below(file.content(), log.recovery_point)
        if len(file.synced) < below:
            return (
                f"has the recovery point {log.recovery_point}, and of segment "
                f"{segment.base_offset} {len(file.synced)} of {below} bytes below it are synced; "
                f"the log is {log.log_start_offset} to {log.log_end_offset}"
            )
    return ""


def _bytes_below(content: bytes, offset: int) -> int:
    """How many bytes of a segment are batches that begin below an offset."""
    at = 0
    while at + 12 <= len(content):
        base, size = struct.unpack_from(">qi", content, at)
        if base >= offset or size <= 0:
            break
        at += 12 + size
    return min(at, len(content))
