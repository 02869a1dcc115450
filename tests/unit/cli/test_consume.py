"""Where `ottla consume` ends while a transaction is open."""

from __future__ import annotations

from typing import Any, NamedTuple

import pytest
from typer.testing import CliRunner

from ottla.cli.consume import app
from ottla.protocol.messages import list_offsets
from ottla.protocol.messages.metadata import (
    MetadataResponse,
    MetadataResponsePartition,
    MetadataResponseTopic,
)
from ottla.protocol.topics import TopicPartition

LAST_STABLE_OFFSET, HIGH_WATERMARK = 8, 12


class Leader(NamedTuple):
    node_id: int


class Cluster:
    """Partition t-0: a transaction is open from offset 8 on, and all below it is deleted."""

    json = False

    def __init__(self) -> None:
        self.client = self

    def metadata(self, _names: object) -> MetadataResponse:
        rows = [MetadataResponsePartition(partition_index=0)]
        return MetadataResponse(topics=[MetadataResponseTopic(name="t", partitions=rows)])

    def leader(self, _partition: object) -> Leader:
        return Leader(1)

    def call(self, kind: type, request: Any, _to: object, versions: object = None) -> Any:
        assert isinstance(request, list_offsets.ListOffsetsRequest), "it waits for the transaction"
        end = LAST_STABLE_OFFSET if request.isolation_level else HIGH_WATERMARK
        timestamp = request.topics[0].partitions[0].timestamp
        if timestamp >= 0:  # the record at offset 10 is the first that is so late
            found = 10 if end > 10 else -1
        else:
            found = LAST_STABLE_OFFSET if timestamp == -2 else end
        row = list_offsets.ListOffsetsPartitionResponse(0, offset=found)
        return kind(topics=[list_offsets.ListOffsetsTopicResponse("t", [row])])

    def close(self) -> None:
        """Nothing is open."""


def test_until_time_ends_at_an_open_transaction(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ottla.cli.session.Session", lambda *_: Cluster())
    done = CliRunner().invoke(app, ["t", "--read-committed", "--until-time", "1772359200000"])
    assert (done.exit_code, done.output) == (0, ""), done.exception


@pytest.mark.parametrize("kind", ["--zookeeper=h:1 --group=g", "--share-group=g"])
@pytest.mark.parametrize(
    "option",
    ["--partition=0", "--where-key=k", "--until-time=1", "--offset=1", "--read-committed"],
)
def test_options_without_effect_are_wrong_usage(
    monkeypatch: pytest.MonkeyPatch, kind: str, option: str
) -> None:
    monkeypatch.setattr("ottla.cli.session.Session", lambda *_: Cluster())
    for function in ("zookeeper_consumer.consume_in_group", "consume.consume_shared"):
        monkeypatch.setattr(f"ottla.cli.{function}", lambda *_, **__: None)
    assert CliRunner().invoke(app, ["t", *kind.split()]).exit_code == 0
    done = CliRunner().invoke(app, ["t", *kind.split(), option])
    assert (done.exit_code, done.stdout) == (2, "")


def test_to_follow_until_a_time_is_wrong_usage(monkeypatch: pytest.MonkeyPatch) -> None:
    """It ended at once, at the records of now."""
    monkeypatch.setattr("ottla.cli.session.Session", lambda *_: Cluster())
    done = CliRunner().invoke(app, ["t", "--follow", "--until-time", "9999-01-01"])
    assert (done.exit_code, done.stdout) == (2, "")


def test_a_committed_offset_beyond_the_end_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ottla.cli.session.Session", lambda *_: Cluster())
    monkeypatch.setattr("ottla.cli.consume.committed", lambda *_: {TopicPartition("t", 0): 13})
    monkeypatch.setattr("ottla.cli.consume.commit", lambda *_: None)
    done = CliRunner().invoke(app, ["t", "--group", "g"])
    assert (done.exit_code, done.stdout) == (1, "")
    assert "group g has committed offset 13 of t-0, which ends at 12" in done.stderr
