from __future__ import annotations

import asyncio
import socket

import pytest

from ottla.broker.quotas import connection_quotas as limits_module
from ottla.broker.quotas.connection_quotas import (
    FULL_RETRY_MS,
    LEAST_CLOSE_MS,
    ConnectionLimits,
    ConnectionOverrides,
    ListenerLimits,
)
from ottla.broker.runtime.tasks import running_tasks


def test_an_address_may_have_so_many_connections() -> None:
    limits = ConnectionLimits(max_per_ip=2, max_per_ip_overrides={"10.0.0.9": 1})
    listener = ListenerLimits()
    assert limits.admit(listener, "10.0.0.1", 0) is None
    assert limits.admit(listener, "10.0.0.1", 0) is None
    refusal = limits.admit(listener, "10.0.0.1", 0)
    assert refusal is not None
    assert ("max.connections.per.ip" in refusal.reason, refusal.close_after_ms) == (True, 0)
    assert limits.admit(listener, "10.0.0.2", 0) is None
    assert limits.admit(listener, "10.0.0.9", 0) is None
    assert limits.admit(listener, "10.0.0.9", 0) is not None
    limits.released(listener, "10.0.0.1")
    assert limits.admit(listener, "10.0.0.1", 0) is None
    assert (limits.open, listener.open) == (4, 4)


def test_a_full_listener_waits_and_others_do_not() -> None:
    limits = ConnectionLimits()
    full, other = ListenerLimits(max_connections=1), ListenerLimits()
    limits.admit(full, "a", 0)
    assert limits.accept_delay_ms(full, 0) == FULL_RETRY_MS
    assert limits.accept_delay_ms(other, 0) == 0
    limits.released(full, "a")
    assert limits.accept_delay_ms(full, 0) == 0


def test_a_full_broker_still_takes_the_connections_of_brokers() -> None:
    limits = ConnectionLimits(max_connections=1)
    clients, brokers = ListenerLimits(), ListenerLimits(protected=True)
    limits.admit(clients, "a", 0)
    assert limits.accept_delay_ms(clients, 0) == FULL_RETRY_MS
    assert limits.accept_delay_ms(brokers, 0) == 0


def test_a_rate_over_the_limit_delays_accepting_by_a_window_at_most() -> None:
    limits = ConnectionLimits(max_creation_rate=10)
    listener, brokers = ListenerLimits(), ListenerLimits(protected=True)
    for _ in range(100):  # ten seconds' worth, which a rate over ten seconds allows at once
        assert limits.accept_delay_ms(listener, 5_000) == 0
        limits.admit(listener, "a", 5_000)
    assert limits.accept_delay_ms(listener, 5_000) == 0
    limits.admit(listener, "a", 5_000)
    assert limits.accept_delay_ms(listener, 5_000) == 100
    for _ in range(1_000):
        limits.admit(listener, "a", 5_000)
    assert limits.accept_delay_ms(listener, 5_000) == 1_000
    assert limits.accept_delay_ms(brokers, 5_000) == 0


def test_a_listener_has_a_rate_of_its_own() -> None:
    limits = ConnectionLimits()
    slow, other = ListenerLimits(max_creation_rate=1), ListenerLimits()
    for _ in range(11):
        limits.admit(slow, "a", 0)
    assert limits.accept_delay_ms(slow, 0) == 1_000
    assert limits.accept_delay_ms(other, 0) == 0
    assert limits.accept_delay_ms(slow, 20_000) == 0


def test_addresses_have_rates_set_at_run_time() -> None:
    limits = ConnectionLimits()
    listener = ListenerLimits()
    limits.set_default_ip_creation_rate(1)
    limits.set_ip_creation_rate("vip", 100)
    results = [limits.admit(listener, "a", 0) for _ in range(12)]
    assert results[:11] == [None] * 11
    assert results[11] is not None
    assert "1 connections a second" in results[11].reason
    # 1.1 a second over ten seconds: a tenth too much, so a second until it is the limit again.
    assert results[11].close_after_ms == 1000
    late = limits.admit(listener, "a", 10_990)
    assert late is not None
    assert late.close_after_ms == LEAST_CLOSE_MS
    assert all(limits.admit(listener, "vip", 0) is None for _ in range(12))
    limits.set_ip_creation_rate("vip", None)
    assert limits.admit(listener, "vip", 0) is not None
    limits.set_default_ip_creation_rate(None)
    assert limits.admit(listener, "a", 0) is None


def test_rates_of_silent_addresses_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits_module, "MAX_RATES", 3)
    limits = ConnectionLimits()
    listener = ListenerLimits()
    limits.set_default_ip_creation_rate(5)
    for number in range(10):
        limits.admit(listener, f"10.0.0.{number}", number * 60_000)
        assert len(limits._rates_by_ip) <= 3


async def resolved() -> None:
    """Waits for the tasks that resolve names."""
    await asyncio.gather(*(task for task in running_tasks() if "override" in task.get_name()))


async def test_a_host_name_counts_for_its_addresses() -> None:
    limits = ConnectionLimits()
    overrides = ConnectionOverrides(limits)
    overrides.apply({"10.0.0.9": 1, "localhost": 7})
    assert limits.max_per_ip_overrides == {"10.0.0.9": 1}, "names are resolved beside the loop"
    await resolved()
    assert limits.max_per_ip_overrides["127.0.0.1"] == 7
    overrides.apply({"localhost": 8})
    assert limits.max_per_ip_overrides["127.0.0.1"] == 8, "a known name counts at once"
    assert "10.0.0.9" not in limits.max_per_ip_overrides


async def test_an_unknown_name_is_logged_and_retried(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def unknown(*_: object) -> None:
        raise socket.gaierror("Name or service not known")

    limits = ConnectionLimits()
    overrides = ConnectionOverrides(limits)
    with monkeypatch.context() as patched:
        patched.setattr(asyncio.get_running_loop(), "getaddrinfo", unknown)
        overrides.apply({"localhost": 7, "10.0.0.9": 1})
        await resolved()
    assert limits.max_per_ip_overrides == {"10.0.0.9": 1}
    assert "max.connections.per.ip.overrides: localhost cannot be resolved" in caplog.text
    overrides.apply({"localhost": 7, "10.0.0.9": 1})
    await resolved()
    assert limits.max_per_ip_overrides["127.0.0.1"] == 7
