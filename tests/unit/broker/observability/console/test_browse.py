"""Where a look at records begins and ends, without brokers."""

from __future__ import annotations

import asyncio
import json
from time import monotonic
from types import SimpleNamespace
from typing import Any

import pytest

from ottla.broker.observability.console import browse
from ottla.broker.observability.console.browse import Browser, Query
from ottla.broker.observability.console.cluster_client import Offsets
from ottla.protocol.messages.fetch import (
    FetchableTopicResponse,
    FetchResponse,
    PartitionData,
)
from ottla.protocol.records.builder import build_batch
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

    async def offsets(*_: Any, **__: Any) -> Offsets:
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


@pytest.mark.parametrize("is_silent", ["for offsets", "for records"])
async def test_a_look_ends_in_time_with_what_was_read(
    monkeypatch: pytest.MonkeyPatch, is_silent: str
) -> None:
    """Broker 2 leads partitions 1 and 2 and does not respond."""
    leaders = {0: 1, 1: 2, 2: 2}
    topics = {"t": SimpleNamespace(partitions=leaders)}
    snapshot = SimpleNamespace(
        topics=topics, partition=lambda _, index: SimpleNamespace(leader=leaders[index])
    )

    async def ask(viewer: Any, leader: int, request: Any, kind: Any) -> FetchResponse:
        if leader == 2:
            await asyncio.Event().wait()
        records = build_batch([(1, None, b"found", [])])
        row = PartitionData(partition_index=0, records=records)
        return FetchResponse(responses=[FetchableTopicResponse(topic="t", partitions=[row])])

    async def offsets(
        client: Any, viewer: Any, partitions: Any, when: int, *, seconds: float
    ) -> Offsets:
        all_of_them = dict.fromkeys(partitions, 1 if when == -1 else 0)
        if is_silent == "for records":
            return Offsets(all_of_them, [])
        await asyncio.sleep(seconds)
        known = {each: offset for each, offset in all_of_them.items() if each.partition == 0}
        return Offsets(known, ["Broker 2 did not respond: no response in 200 ms."])

    monkeypatch.setattr(browse, "list_offsets", offsets)
    monkeypatch.setattr(browse, "OFFSETS_SECONDS", 0.2)
    monkeypatch.setattr(browse, "LOOK_SECONDS", 0.6)
    client: Any = SimpleNamespace(metadata=SimpleNamespace(snapshot=snapshot), ask=ask)
    viewer: Any = SimpleNamespace(require=lambda *_: None, may=lambda *_: False)
    workers: Any = Workers()
    began = monotonic()
    found = await Browser(client, workers).look(Query("t", -1, -1, -1, "", "", 50), viewer)
    assert monotonic() - began < 5  # more than on a busy machine
    assert [row["value"]["text"] for row in found["records"]] == ["found"]
    assert (found["read"], found["unread"]) == (1, 2)
    assert found["problems"] == (
        ["Partition 1 was not read in time.", "Partition 2 was not read in time."]
        if is_silent == "for records"
        else ["Broker 2 did not respond: no response in 200 ms."]
    )
