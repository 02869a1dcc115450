"""Which segments are of the leader's history, by where its leader epochs end."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from ottla.storage.remote.segments import RemoteLogSegmentMetadata
from pyspark_ottla.errors import ConnectorError
from pyspark_ottla.remote.lineage import EpochEnd, EpochEndLookup, is_of_history, needed_epochs
from tests.doubles.remote_segments import segment_metadata
from tests.doubles.tiered_cluster import TP


def segment(start: int, end: int, **epochs: int) -> RemoteLogSegmentMetadata:
    """`e3=20`: the records of leader epoch 3 begin at offset 20."""
    leader_epochs = {int(name[1:]): first for name, first in epochs.items()}
    return replace(
        segment_metadata(100), start_offset=start, end_offset=end, leader_epochs=leader_epochs
    )


def log_ends(epochs: list[tuple[int, int]], log_end_offset: int, epoch: int) -> EpochEnd:
    """As a leader with these (epoch, start offset) pairs responds."""
    known = [each for each, _ in epochs]
    if epoch > known[-1]:
        return EpochEnd(-1, -1)
    if epoch == known[-1]:
        return EpochEnd(epoch, log_end_offset)
    index = sum(each <= epoch for each in known)
    return EpochEnd(epoch if index == 0 else known[index - 1], epochs[index][1])


# The epochs of the log: 0 from offset 0, 2 from 100, 5 from 200; it ends at 300.
LOG = [(0, 0), (2, 100), (5, 200)]


@pytest.mark.parametrize(
    ("metadata", "start", "expected"),
    [
        (segment(0, 50, e0=0), 0, True),
        (segment(0, 99, e0=0), 0, True),
        (segment(50, 150, e0=50, e2=100), 0, True),
        (segment(50, 250, e0=50, e2=100, e5=200), 60, True),
        (segment(200, 299, e5=200), 0, True),
        (segment(50, 100, e0=50), 0, False),  # epoch 0 ends before offset 100
        (segment(200, 300, e5=200), 0, False),  # beyond the log end
        (segment(50, 150, e0=50, e2=90), 0, False),  # epoch 2 begins later
        (segment(50, 150, e0=50, e2=110), 0, False),
        (segment(50, 150, e0=50, e1=100), 0, False),  # an epoch that the log does not have
        (segment(50, 150, e0=50, e1=90, e2=100), 0, False),
        (segment(90, 150, e1=90, e2=100), 100, True),  # what is not read is not checked
        (segment(290, 310, e7=290), 0, False),
        (segment(50, 250, e0=50, e5=200), 0, False),  # epoch 2 is missing
        (segment(0, 50, e0=0), 60, False),
    ],
)
def test_history(metadata: RemoteLogSegmentMetadata, start: int, expected: bool) -> None:
    ends = {epoch: log_ends(LOG, 300, epoch) for epoch in needed_epochs([metadata], start)}
    assert is_of_history(metadata, ends, start) is expected


def test_after_deletions_at_the_start_the_first_epoch_begins_at_the_log_start() -> None:
    epochs = [(2, 120), (5, 200)]
    metadata = segment(50, 150, e0=50, e2=100)
    ends = {epoch: log_ends(epochs, 300, epoch) for epoch in needed_epochs([metadata], 120)}
    assert is_of_history(metadata, ends, 120)


def test_too_many_epochs_are_not_looked_up() -> None:
    lookup = EpochEndLookup(SimpleNamespace())  # type: ignore[arg-type]
    with pytest.raises(ConnectorError, match="at most 2000"):
        lookup.ends(TP, set(range(3000)))


def test_an_error_code_is_raised() -> None:
    from ottla.protocol.errors import ErrorCode
    from ottla.protocol.messages.offset_for_leader_epoch import (
        EpochEndOffset,
        OffsetForLeaderEpochResponse,
        OffsetForLeaderTopicResult,
    )

    def send(*_: Any, **__: Any) -> OffsetForLeaderEpochResponse:
        row = EpochEndOffset(error_code=ErrorCode.TOPIC_AUTHORIZATION_FAILED)
        topic = OffsetForLeaderTopicResult(topic="t", partitions=[row])
        return OffsetForLeaderEpochResponse(topics=[topic])

    client = SimpleNamespace(leader=lambda *_, **__: SimpleNamespace(node_id=1), send=send)
    cluster = SimpleNamespace(
        client=client,
        deadline=lambda: 0.0,
        call_with_retries=lambda _what, call, _deadline: call(1000),
    )
    with pytest.raises(ConnectorError, match=r"NOT_AUTHORIZED.*leader epochs of t-0"):
        EpochEndLookup(cluster).ends(TP, {1})  # type: ignore[arg-type]
