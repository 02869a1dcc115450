"""What was deleted is reported, even if the rest could not be deleted."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from ottla.cli.acls import app as acls
from ottla.cli.groups import app as groups
from ottla.cli.partitions import app as partitions
from ottla.cli.records import app as records
from ottla.protocol.client.errors import BrokerConnectionError
from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.protocol.messages import delete_acls, delete_groups, delete_records, offset_delete
from ottla.protocol.messages.metadata import (
    MetadataResponse,
    MetadataResponsePartition,
    MetadataResponseTopic,
)


class Cluster:
    """Deletes from partition 0, and the group a; `failure` is raised for all others."""

    json = True
    timeout_ms = 1000

    def __init__(self, failure: Exception) -> None:
        self.client = self
        self._failure = failure

    def metadata(self, _names: list[str]) -> MetadataResponse:
        rows = [MetadataResponsePartition(partition_index=number) for number in (0, 1)]
        return MetadataResponse(topics=[MetadataResponseTopic(name="t", partitions=rows)])

    def call(self, kind: type, request: Any, to: Any) -> Any:
        if isinstance(request, delete_records.DeleteRecordsRequest):
            if to.partition.partition:
                raise self._failure
            row = delete_records.DeleteRecordsPartitionResult(0, low_watermark=5)
            return kind(topics=[delete_records.DeleteRecordsTopicResult("t", [row])])
        if isinstance(request, delete_acls.DeleteAclsRequest):
            codes = (ErrorCode.NONE, ErrorCode.UNKNOWN_SERVER_ERROR)
            found = [
                delete_acls.DeleteAclsMatchingAcl(code, None, 2, f"t{code}", 3, "User:a", "*", 3, 3)
                for code in codes
            ]
            return kind(filter_results=[delete_acls.DeleteAclsFilterResult(matching_acls=found)])
        if isinstance(request, offset_delete.OffsetDeleteRequest):
            codes = (ErrorCode.NONE, ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC)
            rows = [
                offset_delete.OffsetDeleteResponsePartition(number, code)
                for number, code in enumerate(codes)
            ]
            return kind(topics=[offset_delete.OffsetDeleteResponseTopic("t", rows)])
        if to.key != "a":
            raise self._failure
        return kind(results=[delete_groups.DeletableGroupResult("a")])

    def close(self) -> None:
        """Nothing is open."""


NO_LEADER = KafkaError(ErrorCode.LEADER_NOT_AVAILABLE, "no leader of t-1 is known")


@pytest.mark.parametrize(
    ("failure", "exit_code", "rows"),
    [(NO_LEADER, 1, 2), (BrokerConnectionError("the connection broke"), 3, 1)],
)
def test_records(
    monkeypatch: pytest.MonkeyPatch, failure: Exception, exit_code: int, rows: int
) -> None:
    monkeypatch.setattr("ottla.cli.session.Session", lambda *_: Cluster(failure))
    done = CliRunner().invoke(records, ["delete", "t:0,1", "--before-offset", "5", "--yes"])
    assert done.exit_code == exit_code
    found = json.loads(done.stdout)
    assert len(found) == rows
    assert (found[0]["partition"], found[0]["first_offset"], found[0]["error"]) == (0, 5, None)
    assert all("no leader of t-1" in row["error"] for row in found[1:])


def test_groups(monkeypatch: pytest.MonkeyPatch) -> None:
    failure = KafkaError(ErrorCode.COORDINATOR_NOT_AVAILABLE)
    monkeypatch.setattr("ottla.cli.session.Session", lambda *_: Cluster(failure))
    done = CliRunner().invoke(groups, ["delete", "a", "b", "--yes"])
    assert (done.exit_code, json.loads(done.stdout)) == (1, {"deleted": ["a"]})
    assert "group b: COORDINATOR_NOT_AVAILABLE" in done.stderr


def test_acls(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ottla.cli.session.Session", lambda *_: Cluster(NO_LEADER))
    done = CliRunner().invoke(acls, ["remove", "--principal", "User:a", "--yes"])
    assert done.exit_code == 1
    assert [row["name"] for row in json.loads(done.stdout)["removed"]] == ["t0"]
    assert "ACL on t-1: UNKNOWN_SERVER_ERROR" in done.stderr


def test_offsets_of_a_group(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ottla.cli.session.Session", lambda *_: Cluster(NO_LEADER))
    done = CliRunner().invoke(groups, ["delete-offsets", "a", "t:0,1"])
    assert (done.exit_code, json.loads(done.stdout)) == (1, {"group": "a", "deleted": ["t-0"]})
    assert "group a, t-1: GROUP_SUBSCRIBED_TO_TOPIC" in done.stderr


def test_an_offset_below_all_is_wrong_usage(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("ottla.cli.session.Session", lambda *_: Cluster(NO_LEADER))
    for offset in ("-5", "1e999"):
        path = tmp_path / "offsets.json"
        path.write_text(f'{{"partitions": [{{"topic":"t","partition":0,"offset":{offset}}}]}}')
        done = CliRunner().invoke(records, ["delete", "--file", str(path), "--yes"])
        assert (done.exit_code, done.stdout) == (2, "")


def test_a_file_and_other_partitions_are_wrong_usage(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("ottla.cli.session.Session", lambda *_: Cluster(NO_LEADER))
    path = tmp_path / "offsets.json"
    path.write_text('{"partitions": [{"topic": "t", "partition": 0, "offset": 5}]}')
    for arguments in (["t:0"], ["--before-offset", "1"], ["--before-time", "2026-01-01"]):
        done = CliRunner().invoke(records, ["delete", *arguments, "--file", str(path), "--yes"])
        assert (done.exit_code, done.stdout) == (2, "")
    done = CliRunner().invoke(partitions, ["elect-leaders", "t:0", "--file", str(path)])
    assert (done.exit_code, done.stdout) == (2, "")
