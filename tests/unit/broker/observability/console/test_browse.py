"""Where a look at records begins and ends, without brokers."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any

import pytest

from ottla.broker.observability.console import browse
from ottla.broker.observability.console.browse import Browser, Query
from ottla.broker.observability.console.cluster_client import Offsets
from ottla.protocol.topics import TopicPartition


class Workers:
    async def run(self, call: Any, *given: Any) -> Any:
        return call(*given)


async def test_a_page_that_follows_keeps_its_place_in_a_partition_without_a_leader(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    topics = {"t": SimpleNamespace(partitions={0: None, 1: None})}
    client: Any = SimpleNamespace(metadata=SimpleNamespace(snapshot=SimpleNamespace(topics=topics)))
    viewer: Any = SimpleNamespace(require=lambda *_: None)
    workers: Any = Workers()

    async def offsets(*_: Any) -> Offsets:
        return Offsets({TopicPartition("t", 0): 7}, ["Partition t-1 has no leader."])

    monkeypatch.setattr(browse, "list_offsets", offsets)
    query = Query("t", -1, 0, -1, "", "", 50)
    found = json.loads(await Browser(client, workers).read(query, viewer, {0: 7, 1: 40}))
    assert {each["partition"]: each["next"] for each in found["partitions"]} == {0: 7, 1: 40}
    assert found["problems"] == ["Partition t-1 has no leader."]
    assert found["at_end"]
