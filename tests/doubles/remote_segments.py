"""Closed segments to copy to a remote storage: files with any bytes, and their metadata."""

from __future__ import annotations

from pathlib import Path
from random import Random
from uuid import UUID

from ottla.storage.remote.segments import (
    LogSegmentData,
    RemoteLogSegmentId,
    RemoteLogSegmentMetadata,
    TopicIdPartition,
)

TOPIC_ID = UUID("30627a14-74df-4586-b2ee-3cf065d7aa49")  # MGJ6FHTfRYay7jzwZdeqSQ
SEGMENT_ID = UUID("b6a8a629-9e70-4ad3-843b-04734f72f9a1")

INDEXES = {
    "index": b"offset index" * 7,
    "timeindex": b"time index" * 5,
    "snapshot": b"snapshot",
    "txnindex": b"aborted transactions",
}
LEADER_EPOCHS = b"0\n1\n0 0\n"


def segment_metadata(
    size_bytes: int,
    start_offset: int = 1234,
    segment_id: UUID = SEGMENT_ID,
    topic: str = "topic",
    partition: int = 7,
    topic_id: UUID = TOPIC_ID,
) -> RemoteLogSegmentMetadata:
    return RemoteLogSegmentMetadata(
        RemoteLogSegmentId(TopicIdPartition(topic_id, topic, partition), segment_id),
        start_offset=start_offset,
        end_offset=start_offset + 99,
        max_timestamp_ms=1_000,
        broker_id=1,
        event_timestamp_ms=2_000,
        size_bytes=size_bytes,
        leader_epochs={0: start_offset},
    )


def segment_content(size: int, seed: int = 1) -> bytes:
    """Bytes that compress to about half."""
    random = Random(seed)
    return bytes(random.choices(b"0123456789abcdef", k=size))


def segment_files(
    directory: Path, content: bytes, *, with_transactions: bool = True, with_snapshot: bool = True
) -> LogSegmentData:
    """Writes the files of a segment on disk."""
    directory.mkdir(parents=True, exist_ok=True)
    paths = {name: directory / f"0.{name}" for name in INDEXES}
    for name, path in paths.items():
        path.write_bytes(INDEXES[name])
    log = directory / "0.log"
    log.write_bytes(content)
    return LogSegmentData(
        log,
        paths["index"],
        paths["timeindex"],
        paths["txnindex"] if with_transactions else None,
        paths["snapshot"] if with_snapshot else None,
        LEADER_EPOCHS,
    )
