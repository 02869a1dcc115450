"""Which settings limit a reassignment: those that Kafka's tool sets, and no others."""

from typing import Any, cast

import pytest

from ottla.cli.output import Failure
from ottla.cli.reassignment_file import remove_throttle, throttle
from ottla.cli.session import Session
from ottla.protocol.client.operations import Node
from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages.incremental_alter_configs import (
    AlterConfigsResourceResponse,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResponse,
)
from ottla.protocol.topics import TopicPartition

TOPIC, BROKER = 2, 4
SET, DELETE = 0, 1
Values = dict[str, tuple[int, str | None]]


class Recorder:
    """A session that keeps what was altered, and where it was sent."""

    def __init__(self, code: int = ErrorCode.NONE) -> None:
        self.altered: dict[tuple[int, str], Values] = {}
        self._code = code

    def broker_ids(self) -> list[int]:
        return [1, 2, 3, 4]

    def call(self, kind: type, request: IncrementalAlterConfigsRequest, to: Any) -> Any:
        (resource,) = request.resources
        name = resource.resource_name
        if resource.resource_type == BROKER:
            assert isinstance(to, Node)
            assert to.node_id == int(name), "a broker takes only its own settings"
        else:
            assert to is None
        self.altered[resource.resource_type, name] = {
            row.name: (row.config_operation, row.value) for row in resource.configs
        }
        row = AlterConfigsResourceResponse(self._code, None, resource.resource_type, name)
        return IncrementalAlterConfigsResponse(responses=[row])


def rates(operation: int, value: str | None) -> Values:
    sides = ("leader", "follower")
    return {f"{side}.replication.throttled.rate": (operation, value) for side in sides}


def replicas(leaders: str, followers: str) -> Values:
    return {
        "leader.replication.throttled.replicas": (SET, leaders),
        "follower.replication.throttled.replicas": (SET, followers),
    }


def test_only_what_moves_is_throttled() -> None:
    moving, other, staying = (TopicPartition("t", 0), TopicPartition("t", 2), ("u", 0))
    before = {moving: [1, 2], other: [3], TopicPartition(*staying): [8, 9]}
    plan = {moving: [2, 4], other: [3, 1], TopicPartition(*staying): [9, 8]}
    session = Recorder()
    throttle(cast(Session, session), before, plan, 1000)
    brokers = {(BROKER, name): rates(SET, "1000") for name in "1234"}
    assert session.altered == {(TOPIC, "t"): replicas("0:1,0:2,2:3", "0:4,2:1"), **brokers}


def test_it_is_taken_away_again() -> None:
    session = Recorder()
    remove_throttle(cast(Session, session), ["t"], [1])
    gone = dict.fromkeys(replicas("", ""), (DELETE, None))
    assert session.altered == {(TOPIC, "t"): gone, (BROKER, "1"): rates(DELETE, None)}


def test_a_topic_that_is_gone_has_no_throttle_and_other_errors_are_reported() -> None:
    gone = Recorder(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
    remove_throttle(cast(Session, gone), ["t"], [])
    refusing = Recorder(ErrorCode.CLUSTER_AUTHORIZATION_FAILED)
    with pytest.raises(Failure, match="throttle of t"):
        remove_throttle(cast(Session, refusing), ["t"], [])
