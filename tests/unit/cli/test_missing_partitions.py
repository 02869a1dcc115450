"""A partition that does not exist is reported at once: no client waits for its leader."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from ottla.cli.app import app
from ottla.protocol.messages.describe_groups import DescribedGroup, DescribeGroupsResponse
from ottla.protocol.messages.metadata import (
    MetadataResponse,
    MetadataResponsePartition,
    MetadataResponseTopic,
)
from ottla.protocol.messages.offset_fetch import OffsetFetchResponse, OffsetFetchResponseGroup


class Cluster:
    """The topic t with one partition, and a group without offsets."""

    json = False
    timeout_ms = 1000

    def __init__(self, *_: object) -> None:
        self.client = self

    def metadata(self, names: list[str]) -> MetadataResponse:
        rows = [MetadataResponsePartition(partition_index=0, leader_id=1)]
        return MetadataResponse(topics=[MetadataResponseTopic(name="t", partitions=rows)])

    def leader(self, partition: object) -> None:
        pytest.fail(f"it waits for a leader of {partition}")

    def call(self, kind: type, _request: object, to: object = None, **_: object) -> Any:
        if kind is DescribeGroupsResponse:
            return kind(groups=[DescribedGroup(group_state="Empty")])
        if kind is OffsetFetchResponse:
            return kind(groups=[OffsetFetchResponseGroup("g")])
        return pytest.fail(f"it sends a request to {to}")

    def close(self) -> None:
        """Nothing is open."""


@pytest.mark.parametrize(
    "arguments",
    [
        "topics offsets t:0,7",
        "transactions producers t:7",
        "transactions abort t:7 --producer-id 1",
        "records delete t:7 --before-offset 1 --yes",
        "records delete --file FILE --yes",
        "groups reset-offsets g t:7 --to-earliest",
        "groups reset-offsets g --from-file LINES",
        "consume t --partition 7",
    ],
)
def test_it_is_reported(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, arguments: str) -> None:
    file, lines = tmp_path / "offsets.json", tmp_path / "offsets.csv"
    row = {"topic": "t", "partition": 7, "offset": 1}
    file.write_text(json.dumps({"partitions": [row]}))
    lines.write_text("t,7,1\n")
    monkeypatch.setattr("ottla.cli.session.Session", Cluster)
    words = arguments.replace("FILE", str(file)).replace("LINES", str(lines)).split()
    done = CliRunner().invoke(app, words)
    assert (done.exit_code, done.stdout) == (1, "")
    assert done.stderr == "ottla: t has no partition 7; it has 1, counted from 0.\n"
