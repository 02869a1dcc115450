"""The late bindings of the composition root."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import pytest

from ottla.broker.server.events import BrokerEvents, EventReceivers

EVENTS: list[tuple[Callable[[BrokerEvents], None], list[str]]] = [
    (lambda events: events.topic_changed("t"), ["config_changes.topic_changed"]),
    (lambda events: events.broker_changed(["a"]), ["config_changes.broker_changed"]),
    (lambda events: events.quota_changed("users", "u", {}), ["config_changes.quota_changed"]),
    (
        lambda events: events.client_metrics_changed("c", {}),
        ["config_changes.client_metrics_changed"],
    ),
    (
        lambda events: events.high_watermark_advanced(cast(Any, None)),
        ["replica_manager.complete_delayed_requests"],
    ),
    (
        lambda events: events.log_truncated(cast(Any, None)),
        ["compaction.truncated", "mover.truncated"],
    ),
    (lambda events: events.directory_failed("/disk"), ["failures.handle"]),
    (lambda events: events.leader_fenced(cast(Any, None)), ["leader_and_isr.step_down"]),
    (lambda events: events.request_queue_overflowed(2), ["controller.resend_all"]),
]


class Receiver:
    """Notes each call by its name."""

    def __init__(self, name: str, calls: list[str]) -> None:
        self._name = name
        self._calls = calls

    def __getattr__(self, method: str) -> Callable[..., None]:
        return lambda *_: self._calls.append(f"{self._name}.{method}")


@pytest.mark.parametrize(("event", "calls"), EVENTS)
def test_an_event_reaches_its_receivers(
    event: Callable[[BrokerEvents], None], calls: list[str]
) -> None:
    seen: list[str] = []
    events = BrokerEvents()
    events.connect(
        EventReceivers(*(cast(Any, Receiver(name, seen)) for name in EventReceivers._fields))
    )
    events.check_connected()
    event(events)
    assert seen == calls


@pytest.mark.parametrize(("event", "calls"), EVENTS)
def test_no_event_is_lost_before_it_is_connected(
    event: Callable[[BrokerEvents], None], calls: list[str]
) -> None:
    with pytest.raises(RuntimeError, match="connect was not called"):
        event(BrokerEvents())


def test_the_start_finds_out_that_it_is_not_connected() -> None:
    with pytest.raises(RuntimeError, match="connect was not called"):
        BrokerEvents().check_connected()
