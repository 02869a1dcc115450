"""What the overview asks for once in a while, without brokers."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from ottla.broker.observability.console.cluster_views import Throttles
from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages.describe_configs import (
    DescribeConfigsResponse,
    DescribeConfigsResult,
)


async def test_without_a_controller_it_is_said_that_another_broker_responds() -> None:
    answer = DescribeConfigsResult(
        error_code=ErrorCode.INVALID_REQUEST, error_message="Unexpected broker id, expected 1"
    )

    async def ask_each(*_: Any) -> Any:
        return SimpleNamespace(responses={2: DescribeConfigsResponse(results=[answer])})

    client = SimpleNamespace(
        brokers=lambda: [1, 2],
        ask=ask_each,
        ask_each=ask_each,
        metadata=SimpleNamespace(snapshot=SimpleNamespace(topics={})),
    )
    parts: Any = SimpleNamespace(client=client, now_ms=lambda: 1_700_000_000_000)
    viewer: Any = SimpleNamespace(may_on_cluster=lambda _: True)
    found = await Throttles(parts).problems(viewer, None)
    assert [each.check for each in found] == ["wrong-broker"]
