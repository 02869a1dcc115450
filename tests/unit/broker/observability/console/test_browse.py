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
    viewer: Any = SimpleNamespace(require=lambda *_: None, may=lambda *_: False)
    workers: Any = Workers()

    async def offsets(*_: Any) -> Offsets:
        return Offsets({TopicPartition("t", 0): 7}, ["Partition t-1 has no leader."])

    monkeypatch.setattr(browse, "list_offsets", offsets)
    query = Query("t", -1, 0, -1, "", "", 50)
    found = json.loads(await Browser(client, workers).read(query, viewer, {0: 7, 1: 40}))
    assert {each["partition"]: each["next"] for each in found["partitions"]} == {0: 7, 1: 40}
    assert found["problems"] == ["Partition t-1 has no leader."]
    assert found["at_end"]
    assert found["unread"] == 1  # so that nobody is told that the topic is empty
    assert not found["may_produce"]


def test_whether_a_file_is_full_or_the_search_has_ended() -> None:
    """A filter that drops nearly all records ends the search at its own bound."""
    for from_end in (True, False):
        query = Query("t", 0, -1 if from_end else 0, -1, "", "", 2, whole=True)
        scan = browse._Scan(0, 10, 100)
        scan.position = 100 if from_end else 50
        starts, ends = {TopicPartition("t", 0): 0}, {TopicPartition("t", 0): 100}
        row = {"partition": 0, "time_ms": 1, "line": ""}
        scan.rows = [{**row, "offset": 20}]
        found = browse._result(query, [scan], [], starts, ends)
        assert (found["is_cut"], found["is_full"]) == (True, False)
        scan.rows.append({**row, "offset": 30})
        scan.dropped = from_end
        assert browse._result(query, [scan], [], starts, ends)["is_full"]
