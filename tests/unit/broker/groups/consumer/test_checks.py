"""The validation of heartbeats: valid ones, and the error codes of invalid ones."""

from __future__ import annotations

import re
from typing import Any

import pytest

from ottla.broker.groups.consumer.checks import (
    RejectedRequest,
    check_epoch,
    check_instance,
    check_request,
    new_member_id,
    owned_partitions,
)
from ottla.broker.groups.consumer.member import Assignment, ConsumerMember
from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages.consumer_group_heartbeat import (
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatRequestTopicPartitions,
)

ASSIGNORS = ("uniform", "range")
TOPIC_ID = b"i" * 16


def joining(**fields: Any) -> ConsumerGroupHeartbeatRequest:
    given: dict[str, Any] = {
        "group_id": "g",
        "member_id": "m",
        "member_epoch": 0,
        "rebalance_timeout_ms": 1000,
        "topic_partitions": [],
        "subscribed_topic_names": ["t"],
    }
    return ConsumerGroupHeartbeatRequest(**(given | fields))


@pytest.mark.parametrize("version", [0, 1])
@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"server_assignor": "range"},
        {"instance_id": "i", "rack_id": "r"},
        {"member_epoch": 5, "topic_partitions": None, "subscribed_topic_names": None},
        {"member_epoch": -1, "subscribed_topic_names": None},
        {"member_epoch": -2, "instance_id": "i"},
    ],
)
def test_valid(version: int, fields: dict[str, Any]) -> None:
    check_request(joining(**fields), version, ASSIGNORS)


@pytest.mark.parametrize("version", [0, 1])
@pytest.mark.parametrize(
    "fields",
    [
        {"group_id": " "},
        {"instance_id": ""},
        {"rack_id": ""},
        {"rebalance_timeout_ms": -1},
        {"topic_partitions": None},
        {"topic_partitions": [ConsumerGroupHeartbeatRequestTopicPartitions(TOPIC_ID, [0])]},
        {"subscribed_topic_names": None},
        {"member_epoch": -3},
        {"member_epoch": -2},
        {"member_epoch": 1, "member_id": ""},
    ],
)
def test_invalid(version: int, fields: dict[str, Any]) -> None:
    with pytest.raises(RejectedRequest) as rejected:
        check_request(joining(**fields), version, ASSIGNORS)
    assert rejected.value.error_code == ErrorCode.INVALID_REQUEST


def test_versions_differ_in_member_ids_and_in_subscriptions_to_nothing() -> None:
    check_request(joining(member_id=""), 0, ASSIGNORS)
    with pytest.raises(RejectedRequest):
        check_request(joining(member_id=""), 1, ASSIGNORS)
    check_request(joining(subscribed_topic_names=[]), 1, ASSIGNORS)
    check_request(joining(subscribed_topic_names=None, subscribed_topic_regex="a"), 1, ASSIGNORS)
    with pytest.raises(RejectedRequest):
        check_request(joining(subscribed_topic_names=[]), 0, ASSIGNORS)


def test_an_assignor_that_is_not_there_is_named_with_those_that_are() -> None:
    with pytest.raises(
        RejectedRequest, match=r"sticky is not supported\..*uniform, range"
    ) as rejected:
        check_request(joining(server_assignor="sticky"), 1, ASSIGNORS)
    assert rejected.value.error_code == ErrorCode.UNSUPPORTED_ASSIGNOR


MEMBER = ConsumerMember("m", "i", epoch=7, previous_epoch=6, assigned={TOPIC_ID: frozenset({0, 1})})
LESS: Assignment = {TOPIC_ID: frozenset({1})}


def test_an_epoch_behind_is_a_lost_response_when_nothing_more_is_owned() -> None:
    check_epoch(MEMBER, 7, None)
    check_epoch(MEMBER, 6, LESS)
    check_epoch(MEMBER, 6, {})


@pytest.mark.parametrize(
    ("epoch", "owned"), [(8, LESS), (5, LESS), (6, None), (6, {TOPIC_ID: frozenset({2})})]
)
def test_any_other_epoch_is_fenced(epoch: int, owned: Assignment | None) -> None:
    with pytest.raises(RejectedRequest) as rejected:
        check_epoch(MEMBER, epoch, owned)
    assert rejected.value.error_code == ErrorCode.FENCED_MEMBER_EPOCH
    with pytest.raises(RejectedRequest) as rejected:
        check_instance(MEMBER, "i", "m", epoch, owned)
    assert rejected.value.error_code == ErrorCode.FENCED_MEMBER_EPOCH


def test_an_instance_has_one_member_at_a_time() -> None:
    assert check_instance(MEMBER, "i", "m") is MEMBER
    with pytest.raises(RejectedRequest) as rejected:
        check_instance(MEMBER, "i", "other")
    assert rejected.value.error_code == ErrorCode.FENCED_INSTANCE_ID


def test_an_instance_that_is_not_known() -> None:
    with pytest.raises(RejectedRequest) as rejected:
        check_instance(None, "i", "m")
    assert rejected.value.error_code == ErrorCode.UNKNOWN_MEMBER_ID


def test_owned_partitions() -> None:
    assert owned_partitions(joining(topic_partitions=None)) is None
    rows = [ConsumerGroupHeartbeatRequestTopicPartitions(TOPIC_ID, [2, 0])]
    assert owned_partitions(joining(topic_partitions=rows)) == {TOPIC_ID: frozenset({0, 2})}


def test_member_ids_are_kafkas_and_no_options_of_a_command_line() -> None:
    ids = {new_member_id() for _ in range(500)}
    assert len(ids) == 500
    assert all(re.fullmatch(r"[A-Za-z0-9_][A-Za-z0-9_-]{21}", each) for each in ids)
