"""`ottla acls remove` prints what the resource still has, as Kafka's tool does."""

from __future__ import annotations

import json
from typing import Any

import pytest
from typer.testing import CliRunner

from ottla.broker.security.authorization.acl_types import (
    Operation,
    PatternType,
    Permission,
    ResourceType,
)
from ottla.cli.app import app
from ottla.protocol.messages.delete_acls import DeleteAclsFilterResult, DeleteAclsResponse
from ottla.protocol.messages.describe_acls import (
    AclDescription,
    DescribeAclsResource,
    DescribeAclsResponse,
)


class Cluster:
    """User:alice may read the topic t; nothing fits what is removed."""

    def __init__(self, _bootstrap: str, _config: str, _timeout: float, json: bool) -> None:
        self.json = json

    def call(self, kind: type, request: Any, _to: object = None) -> Any:
        if kind is DeleteAclsResponse:
            return kind(filter_results=[DeleteAclsFilterResult()])
        assert kind is DescribeAclsResponse
        assert request.pattern_type_filter == PatternType.LITERAL
        acl = AclDescription("User:alice", "*", Operation.READ, Permission.ALLOW)
        resource = DescribeAclsResource(ResourceType.TOPIC, "t", PatternType.LITERAL, [acl])
        return kind(resources=[resource])

    def close(self) -> None:
        """Nothing is open."""


def run(line: str) -> Any:
    return CliRunner().invoke(app, line.split())


def test_what_is_left_is_printed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ottla.cli.session.Session", Cluster)
    done = run("kafka-acls --remove --allow-principal User:alice --topic t --force")
    assert done.exit_code == 0
    said, empty, about, _, row = done.stdout.splitlines()
    assert (said, empty, about) == ("0 ACLs removed.", "", "ACLs that the resource still has:")
    assert row.split() == ["topic", "t", "literal", "User:alice", "*", "read", "allow"]
    left = json.loads(run("acls remove --topic t --yes --json").stdout)["left"]
    assert [each["operation"] for each in left] == ["read"]
    # All that a principal has is no resource.
    assert run("acls remove --principal User:bob --yes").stdout == "0 ACLs removed.\n"
