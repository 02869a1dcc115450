"""The requests of the consumer protocol where it is not enabled."""

from __future__ import annotations

import logging
from typing import cast

import pytest

from ottla.broker.groups.events import GroupEvents
from ottla.broker.handlers.common.group_request_errors import GroupRequestErrorLog
from ottla.broker.handlers.groups.consumer_groups import ConsumerGroupsNotEnabled
from ottla.broker.requests.api_routes import entries_of
from ottla.broker.requests.request_channel import RequestContext
from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages.consumer_group_describe import ConsumerGroupDescribeRequest
from ottla.protocol.messages.consumer_group_heartbeat import ConsumerGroupHeartbeatRequest
from tests.doubles.request_context import FakeContext


def handlers() -> ConsumerGroupsNotEnabled:
    return ConsumerGroupsNotEnabled(GroupRequestErrorLog(GroupEvents(), lambda: 0))


def test_a_heartbeat_fails_and_the_log_has_the_setting(caplog: pytest.LogCaptureFixture) -> None:
    context = cast(RequestContext, FakeContext(68, 0))
    with caplog.at_level(logging.INFO, "ottla.groups"):
        response = handlers().heartbeat(context, ConsumerGroupHeartbeatRequest("g", "", 0))
    assert response.error_code == ErrorCode.UNSUPPORTED_VERSION
    assert "group.coordinator.rebalance.protocols" in caplog.text


def test_each_described_group_has_the_error() -> None:
    context = cast(RequestContext, FakeContext(69, 0))
    response = handlers().describe(context, ConsumerGroupDescribeRequest(["g", "h"]))
    assert [(row.group_id, row.error_code) for row in response.groups] == [
        ("g", ErrorCode.UNSUPPORTED_VERSION),
        ("h", ErrorCode.UNSUPPORTED_VERSION),
    ]


def test_version_0_is_listed_as_by_kafka_3_9() -> None:
    rows = [(each.api_key, each.min_version, each.max_version) for each in entries_of(handlers())]
    assert rows == [(68, 0, 0), (69, 0, 0)]
