"""The requests of the consumer protocol where it is not enabled."""

from __future__ import annotations

import logging
from types import SimpleNamespace
from typing import Any, cast

import pytest

from ottla.broker.groups.events import GroupEvents
from ottla.broker.handlers.common.group_request_errors import GroupRequestErrorLog
from ottla.broker.handlers.groups.consumer_groups import (
    ConsumerGroupHandlers,
    ConsumerGroupsNotEnabled,
)
from ottla.broker.requests.api_routes import entries_of
from ottla.broker.requests.request_channel import RequestContext
from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.protocol.messages.consumer_group_describe import ConsumerGroupDescribeRequest
from ottla.protocol.messages.consumer_group_heartbeat import (
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
)
from tests.doubles.eventually import eventually_async
from tests.doubles.request_context import FakeContext


def handlers() -> ConsumerGroupsNotEnabled:
    return ConsumerGroupsNotEnabled(GroupRequestErrorLog(GroupEvents(), lambda: 0))


def test_a_heartbeat_fails_and_the_log_has_the_setting(caplog: pytest.LogCaptureFixture) -> None:
    refusing = handlers()
    with caplog.at_level(logging.INFO, "ottla.groups"):
        for member in ("a", "b", "c"):  # of one address
            context = cast(RequestContext, FakeContext(68, 0))
            response = refusing.heartbeat(context, ConsumerGroupHeartbeatRequest("g", member, 0))
            assert response.error_code == ErrorCode.UNSUPPORTED_VERSION
    (line,) = caplog.messages
    assert "add `consumer` to group.coordinator.rebalance.protocols" in line


class Support:
    """What is known of the other brokers; `error` is that of the check."""

    def __init__(self, *, serves: bool, error: int = 0) -> None:
        self._serves, self.error = serves, error

    def serves(self, protocol: str) -> bool:
        return self._serves

    async def check(self, protocol: str) -> None:
        if self.error:
            raise KafkaError(self.error, "Broker 3 of the cluster does not serve consumer groups.")


@pytest.mark.parametrize(
    ("epoch", "serves", "error", "expected"),
    [
        (0, True, 0, ErrorCode.NONE),
        (0, False, 0, ErrorCode.NONE),
        (0, False, ErrorCode.UNSUPPORTED_VERSION, ErrorCode.UNSUPPORTED_VERSION),
        (4, False, ErrorCode.UNSUPPORTED_VERSION, ErrorCode.UNSUPPORTED_VERSION),
        (4, False, ErrorCode.COORDINATOR_NOT_AVAILABLE, ErrorCode.COORDINATOR_NOT_AVAILABLE),
        # Members leave in any case, so that the group drains.
        (-1, False, ErrorCode.UNSUPPORTED_VERSION, ErrorCode.NONE),
        (-2, False, ErrorCode.UNSUPPORTED_VERSION, ErrorCode.NONE),
    ],
)
async def test_members_are_refused_beside_a_broker_without_the_protocol(
    epoch: int, serves: bool, error: int, expected: int, caplog: pytest.LogCaptureFixture
) -> None:
    def accept(request: Any, version: int, client: str, host: str, respond: Any) -> None:
        respond(ConsumerGroupHeartbeatResponse(member_epoch=1))

    membership = SimpleNamespace(heartbeat=accept)
    made = ConsumerGroupHandlers(
        cast(Any, SimpleNamespace(membership=membership)),
        GroupRequestErrorLog(GroupEvents(), lambda: 0),
        cast(Any, Support(serves=serves, error=error)),
    )
    context = FakeContext(68, 1)
    with caplog.at_level(logging.INFO, "ottla.groups"):
        made.heartbeat(
            cast(RequestContext, context), ConsumerGroupHeartbeatRequest("g", "a", epoch)
        )
        await eventually_async(lambda: bool(context.responses))
    (response,) = context.responses
    assert isinstance(response, ConsumerGroupHeartbeatResponse)
    assert response.error_code == expected
    is_named = any("Broker 3 of the cluster" in line for line in caplog.messages)
    assert is_named == (expected == ErrorCode.UNSUPPORTED_VERSION)


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
