"""Checks what the disks of brokers must have while they run: recovery points and synced bytes."""

from __future__ import annotations

import os
import re
import struct
from typing import TYPE_CHECKING, Any

from ottla.protocol.topics import TopicPartition
from ottla.storage.files.layout import RECOVERY_POINT_CHECKPOINT

if TYPE_CHECKING:
    from tests.simulation.cluster.disk import Disk, File
    from tests.simulation.cluster.node import Node

TOPIC = "t"


def storage_complaints(node: Node, manager: Any, partitions: int) -> list[str]:
    """What is wrong with the logs of a broker, which must not be in the middle of a callback."""
    found = []
    for index in range(partitions):
        partition = manager.partitions.get(TopicPartition(TOPIC, index))
        if partition is None or partition.log is None or partition.offline:
            continue
        log = partition.log
        if log.log_directory.is_offline or log.is_closed:
            continue
        reason = _not_synced(node.disk, log) or _above(node.disk, log, index)
        if reason:
            found.append(f"{node.host}: {TOPIC}-{index} {reason}")
    return found


def _file(disk: Disk, path: str) -> File | None:
    directory, name = os.path.split(path)
    names = disk.names.get(directory)
    return None if names is None else names.live.get(name)


def _not_synced(disk: Disk, log: Any) -> str:
    """Everything below the recovery point is on disk: else recovery would not read it again."""
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


def _above(disk: Disk, log: Any, index: int) -> str:
    """The recovery point on disk is never above the one in memory."""
    file = _file(disk, f"{log.log_directory.path}/{RECOVERY_POINT_CHECKPOINT}")
    if file is None:
        return ""
    match = re.search(rb"^%s %d (\d+)$" % (TOPIC.encode(), index), file.content(), re.MULTILINE)
    if match is not None and int(match[1]) > log.recovery_point:
        return f"has the recovery point {int(match[1])} on disk, {log.recovery_point} in memory"
    return ""
