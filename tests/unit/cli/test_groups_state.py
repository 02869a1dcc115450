"""`ottla groups describe --state`: one row a group, as Kafka's tool prints it."""

from __future__ import annotations

from typing import Any

import pytest
from typer.testing import CliRunner

from ottla.cli.app import app
from ottla.cli.output import FAILED
from ottla.protocol.client.errors import UnsupportedApiError
from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages import consumer_group_describe as newer
from ottla.protocol.messages.delete_groups import DeletableGroupResult, DeleteGroupsResponse
from ottla.protocol.messages.describe_groups import (
    DescribedGroup,
    DescribedGroupMember,
    DescribeGroupsResponse,
)
from ottla.protocol.messages.list_groups import ListedGroup, ListGroupsResponse
from ottla.protocol.messages.offset_fetch import OffsetFetchResponse, OffsetFetchResponseGroup


class Cluster:
    """The groups busy and idle; a coordinator that is broker 4."""

    json = False

    def __init__(self, *_: object) -> None:
        self.client = self.state = self

    def broker_ids(self) -> list[int]:
        return [4]

    def coordinator(self, _group: str, _kind: int) -> int:
        return 4

    def call(self, kind: type, request: Any, _to: object = None, **_: object) -> Any:
        if kind is DeleteGroupsResponse:
            return kind(results=[DeletableGroupResult(error_code=ErrorCode.GROUP_ID_NOT_FOUND)])
        if kind is ListGroupsResponse:
            return kind(groups=[ListedGroup(each, "consumer") for each in ("busy", "idle")])
        if kind is OffsetFetchResponse:
            return kind(groups=[OffsetFetchResponseGroup(request.groups[0].group_id)])
        if kind is newer.ConsumerGroupDescribeResponse:
            raise UnsupportedApiError("it is an older broker")
        assert kind is DescribeGroupsResponse
        [group] = request.groups
        if group == "busy":
            members = [DescribedGroupMember(member_id=each) for each in "ab"]
            row = DescribedGroup(group_state="Stable", protocol_data="range", members=members)
        else:
            row = DescribedGroup(group_state="Empty" if group == "idle" else "Dead")
        return kind(groups=[row])

    def close(self) -> None:
        """Nothing is open."""


def run(line: str) -> Any:
    return CliRunner().invoke(app, line.split())


def test_a_row_for_each_group(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ottla.cli.session.Session", Cluster)
    rows = [
        ["GROUP", "COORDINATOR", "PROTOCOL", "STATE", "MEMBERS"],
        ["busy", "4", "range", "Stable", "2"],
        ["idle", "4", "-", "Empty", "0"],
    ]
    for typed in (
        "groups describe --all --state",
        "kafka-consumer-groups --describe --all-groups --state",
    ):
        assert [line.split() for line in run(typed).stdout.splitlines()] == rows, typed
    done = run("groups describe busy nosuch --state")
    assert (done.exit_code, done.stdout) == (FAILED, "")
    assert done.stderr == "ottla: group nosuch does not exist; see `ottla groups list`.\n"
    assert "--state is one row a group" in run("groups describe busy --state --members").stderr


def test_a_group_that_does_not_exist_cannot_be_deleted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ottla.cli.session.Session", Cluster)
    assert run("groups delete nosuch --yes").stderr == (
        "ottla: group nosuch: The group 'nosuch' does not exist (GROUP_ID_NOT_FOUND): "
        "see `ottla groups list`.\n"
    )
