"""`ottla groups reset-offsets --all-topics`, with offsets of partitions that were deleted."""

from __future__ import annotations

from types import SimpleNamespace
from typing import cast

import pytest

from ottla.cli.offsets import existing
from ottla.cli.session import Session
from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages.metadata import (
    MetadataResponse,
    MetadataResponsePartition,
    MetadataResponseTopic,
)
from ottla.protocol.topics import TopicPartition

ROWS = [MetadataResponsePartition(partition_index=0)]
RESPONSE = MetadataResponse(
    topics=[
        MetadataResponseTopic(name="there", partitions=ROWS),
        MetadataResponseTopic(error_code=ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, name="deleted"),
    ]
)


def test_they_are_left_out_and_named(capsys: pytest.CaptureFixture[str]) -> None:
    asked: list[list[str]] = []

    def metadata(topics: list[str]) -> MetadataResponse:
        asked.append(topics)
        return RESPONSE

    session = cast(Session, SimpleNamespace(metadata=metadata))
    there, fewer = TopicPartition("there", 0), TopicPartition("there", 7)
    assert existing(session, [there, TopicPartition("deleted", 0), fewer]) == [there]
    assert asked == [["deleted", "there"]]
    errors = capsys.readouterr().err
    assert "deleted-0 is left out" in errors
    assert "there-7 is left out" in errors
    assert "there-0" not in errors


def test_a_group_without_offsets_needs_no_metadata() -> None:
    """An empty list of topics is a request for none, and a version 0 one for all."""
    assert existing(cast(Session, None), []) == []
