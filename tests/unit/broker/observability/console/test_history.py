"""What a page shows of brokers that were registered after the last sample."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from ottla.broker.observability.console import history as module
from ottla.broker.observability.console.access import Viewer
from ottla.broker.observability.console.cluster_client import ConsoleParts, Responses
from ottla.broker.observability.console.history import History
from ottla.broker.requests.request_context import ANONYMOUS
from ottla.broker.security.authorization.access_control import allow_all
from ottla.protocol.messages.describe_log_dirs import DescribeLogDirsResponse


class Client:
    """A cluster without topics and groups."""

    broker_id = 1

    def __init__(self) -> None:
        self.registered = [1]
        self.metadata = SimpleNamespace(snapshot=SimpleNamespace(topics={}))
        self.registers_meanwhile: list[int] = []

    def brokers(self) -> list[int]:
        return self.registered

    async def is_ottla(self, broker_id: int) -> bool:
        return False

    async def ask_each(self, viewer: Viewer, requests: dict[int, Any], kind: Any) -> Responses:
        self.registered = self.registered + self.registers_meanwhile
        self.registers_meanwhile = []
        return Responses(dict.fromkeys(requests, DescribeLogDirsResponse(0, 0, [])), [])


@pytest.fixture
def client(monkeypatch: pytest.MonkeyPatch) -> Client:
    async def nothing(*args: object) -> tuple[dict[str, Any], list[str]]:
        return {}, []

    for name in ("list_groups", "committed_offsets", "list_offsets", "broker_texts"):
        monkeypatch.setattr(module, name, nothing)
    return Client()


@pytest.fixture
def history(client: Client) -> History:
    parts = SimpleNamespace(client=client, now_ms=lambda: 1_000_000, state=dict)
    return History(cast("ConsoleParts", parts), Viewer(allow_all, ANONYMOUS, "127.0.0.1"))


async def test_a_broker_registered_after_the_last_sample_is_asked(
    client: Client, history: History
) -> None:
    await history.fresh()
    assert list(history.disks) == [1]
    client.registered = [1, 2]
    await history.fresh()
    assert [disks.problem for disks in history.disks.values()] == ["", ""]


async def test_a_broker_registered_during_a_sample_is_asked(
    client: Client, history: History
) -> None:
    client.registers_meanwhile = [2]
    await history.fresh()
    assert [disks.problem for disks in history.disks.values()] == ["", ""]


async def test_a_sample_with_all_brokers_is_fresh_enough(client: Client, history: History) -> None:
    await history.fresh()
    before = history.disks
    await history.fresh()
    assert history.disks is before


async def test_counts_of_a_tiered_topic_are_requested_once_a_page_has_shown_it(
    client: Client, history: History, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []

    async def texts(
        client: Client, viewer: Viewer, brokers: list[int], key: str
    ) -> tuple[dict[int, Any], list[str]]:
        asked.append(key)
        return {1: {"topics": {"t": {"copied_bytes": 5}}}}, []

    monkeypatch.setattr(module, "broker_texts", texts)
    client.metadata.snapshot.topics["t"] = SimpleNamespace(partitions={})
    await history.sample()
    assert module.BROKER_REMOTE not in asked
    assert history.remote_rates("t") == []
    await history.sample()
    assert asked.count(module.BROKER_REMOTE) == 1
    del client.metadata.snapshot.topics["t"]
    await history.sample()
    assert asked.count(module.BROKER_REMOTE) == 1
