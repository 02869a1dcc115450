"""Texts that brokers of Ottla return for keys of their own."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

from ottla.broker.handlers.admin.describe_configs import BROKER_EVENTS
from ottla.broker.observability.console.access import Viewer
from ottla.broker.observability.console.cluster_client import ClusterClient, Responses
from ottla.broker.observability.console.event_log import EventLog
from ottla.broker.observability.console.events import ClusterEvents, EventViews
from ottla.broker.observability.console.settings_views import consoles
from ottla.broker.requests.request_context import ANONYMOUS
from ottla.broker.security.authorization.access_control import allow_all
from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages.describe_configs import (
    DescribeConfigsResourceResult,
    DescribeConfigsResponse,
    DescribeConfigsResult,
)

ADDRESSES = {
    2: ("true", ":9405"),
    3: ("true", "127.0.0.1:0"),
    4: ("false", ":9404"),
    5: None,
}


async def test_where_the_consoles_of_other_brokers_are() -> None:
    """A port that a broker chose itself is not known, nor that of one that does not respond."""

    class Others:
        broker_id = 1
        metadata = SimpleNamespace(
            snapshot=SimpleNamespace(
                brokers={
                    each: SimpleNamespace(endpoints={"A": SimpleNamespace(host=f"host-{each}")})
                    for each in (1, *ADDRESSES)
                }
            )
        )

        async def ask_each(self, viewer: Viewer, requests: dict[int, Any], kind: Any) -> Responses:
            names = requests[2].resources[0].configuration_keys
            assert list(requests) == list(ADDRESSES)
            found = {
                each: DescribeConfigsResult(
                    configs=[
                        DescribeConfigsResourceResult(name, value)
                        for name, value in zip(names, values, strict=True)
                    ]
                )
                for each, values in ADDRESSES.items()
                if values is not None
            }
            return Responses(
                {each: DescribeConfigsResponse(0, [found[each]]) for each in found}, []
            )

    viewer = Viewer(allow_all, ANONYMOUS, "127.0.0.1")
    found = (await consoles(cast("ClusterClient", Others()), viewer))["consoles"]
    assert [
        (each["id"], each["host"], each["console_host"], each["console_port"]) for each in found
    ] == [
        (2, "host-2", "", 9405),
        (3, "host-3", "127.0.0.1", None),
        (5, "host-5", "", None),
    ]


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
