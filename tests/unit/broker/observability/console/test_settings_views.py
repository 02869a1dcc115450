"""Texts that brokers of Ottla return for keys of their own."""

from __future__ import annotations

from typing import Any, cast

from ottla.broker.handlers.admin.describe_configs import BROKER_EVENTS
from ottla.broker.observability.console.access import Viewer
from ottla.broker.observability.console.cluster_client import ClusterClient, Responses
from ottla.broker.observability.console.event_log import EventLog
from ottla.broker.observability.console.events import ClusterEvents, EventViews
from ottla.broker.requests.request_context import ANONYMOUS
from ottla.broker.security.authorization.access_control import allow_all
from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages.describe_configs import (
    DescribeConfigsResourceResult,
    DescribeConfigsResponse,
    DescribeConfigsResult,
)

LINE = '[{"time_ms": 5, "level": "INFO", "from": "log", "text": "rolled"}]'


class Client:
    """This broker 1, one that refuses, one of Ottla and one of Kafka."""

    broker_id = 1

    def brokers(self) -> list[int]:
        return [1, 2, 3, 4]

    async def ask_each(self, viewer: Viewer, requests: dict[int, Any], kind: Any) -> Responses:
        results = {
            2: DescribeConfigsResult(ErrorCode.INVALID_REQUEST, "it is too long."),
            3: DescribeConfigsResult(configs=[DescribeConfigsResourceResult(BROKER_EVENTS, LINE)]),
            4: DescribeConfigsResult(configs=[]),
        }
        assert set(requests) == set(results)
        return Responses(
            {each: DescribeConfigsResponse(0, [results[each]]) for each in results}, []
        )


async def test_an_error_of_a_broker_is_not_taken_for_a_broker_without_lines() -> None:
    views = EventViews(cast("ClusterClient", Client()), EventLog(), ClusterEvents())
    found = await views.shown("", Viewer(allow_all, ANONYMOUS, "127.0.0.1"))
    assert [(row["text"], row["brokers"]) for row in found["events"]] == [("rolled", [3])]
    refused, silent = found["problems"]
    assert refused == "Broker 2 did not return ottla.broker.events: it is too long."
    assert silent.startswith("There are no log lines of broker 4:")
