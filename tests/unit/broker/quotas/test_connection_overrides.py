"""Limits of connections by address and by host name."""

from __future__ import annotations

import asyncio
import socket

import pytest

from ottla.broker.quotas.connection_quotas import ConnectionLimits, ConnectionOverrides
from ottla.broker.runtime.tasks import running_tasks


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
