"""What the overview asks for once in a while, without brokers."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from ottla.broker.cluster.cluster_problems import PartitionRow
from ottla.broker.observability.console.cluster_views import STOPPING, MinIsr, Throttles
from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages.describe_configs import (
    DescribeConfigsResourceResult,
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


async def test_partitions_that_refuse_acks_all_stop_clients() -> None:
    asked: list[list[str]] = []
    now_ms = 1_700_000_000_000

    async def ask(viewer: Any, broker_id: int, request: Any, kind: Any) -> Any:
        names = [each.resource_name for each in request.resources]
        asked.append(names)
        row = DescribeConfigsResourceResult(name="min.insync.replicas", value="2")
        return DescribeConfigsResponse(
            results=[
                DescribeConfigsResult(resource_name=name, configs=[row])
                if name == "t"
                else DescribeConfigsResult(error_code=29, resource_name=name)
                for name in names
            ]
        )

    client = SimpleNamespace(broker_id=1, ask=ask)
    parts: Any = SimpleNamespace(client=client, now_ms=lambda: now_ms)
    viewer: Any = SimpleNamespace(may_on_cluster=lambda _: True)
    checks = MinIsr(parts)
    rows = [PartitionRow(topic, 0, 1, [1], [1, 2, 3]) for topic in ("t", "secret")]
    for _ in range(2):
        (found,) = await checks.problems(viewer, rows)
        assert found.finding.endswith("refuse acks=all: 1 (t-0)")
        assert found.check in STOPPING
    assert asked == [["t", "secret"]]
    now_ms += 60_000
    await checks.problems(viewer, rows)
    assert asked == [["t", "secret"]] * 2
