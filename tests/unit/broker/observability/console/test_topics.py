"""The list of topics with very many of them: pages, search, and turns of the event loop."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any, cast

import pytest

from ottla.broker.cluster.metadata_cache import (
    MetadataCache,
    MetadataSnapshot,
    PartitionMetadata,
    TopicMetadata,
)
from ottla.broker.observability.console import topics
from ottla.broker.observability.console.access import Viewer
from ottla.broker.observability.console.cluster_client import ClusterClient, Responses
from ottla.broker.observability.console.history import History
from ottla.broker.observability.console.topics import (
    TopicViews,
    _measures,
    _row,
    page_start,
    summed,
)
from ottla.broker.requests.request_context import ANONYMOUS
from ottla.broker.runtime.tasks import spawn
from ottla.broker.security.authorization.access_control import allow_all
from ottla.broker.security.authorization.acl_types import Operation
from ottla.protocol.topics import TopicPartition
from tests.doubles.pace import steps_per_turn

TOPICS = 10_000


class Client:
    """Brokers that have nothing to say."""

    broker_id = 1

    def __init__(self) -> None:
        state = PartitionMetadata(0, 1, 0, [1], [1], [], 1, 0)
        names = [f"topic-{number:05}" for number in range(TOPICS)]
        topics = {name: TopicMetadata(name, bytes(16), {0: state}) for name in names}
        self.metadata = MetadataCache()
        self.metadata.snapshot = MetadataSnapshot({}, topics, {}, (1, 1))
        self.asked: list[int] = []

    async def ask_each(
        self, viewer: Viewer, requests: dict[int, Any], kind: Any, **_: Any
    ) -> Responses:
        for request in requests.values():
            self.asked.append(sum(len(topic.partitions) for topic in request.topics))
        return Responses({}, [f"Broker {each} did not respond." for each in requests])


@pytest.fixture
def client() -> Client:
    return Client()


@pytest.fixture
def views(client: Client) -> TopicViews:
    async def reassignments() -> None:
        """None are known."""

    double = SimpleNamespace(topic_rate=lambda name: [], reassignments=reassignments)
    history = cast("History", double)
    return TopicViews(cast("ClusterClient", client), history)


def viewer() -> Viewer:
    return Viewer(allow_all, ANONYMOUS, "127.0.0.1")


@pytest.mark.parametrize(
    ("first", "total", "start"),
    [(0, 0, 0), (0, 5, 0), (100, 5, 0), (100, 101, 100), (150, 300, 100), (1 << 31, 10_000, 9900)],
)
def test_a_row_beyond_the_end_is_on_the_last_page(first: int, total: int, start: int) -> None:
    assert page_start(first, total, 100) == start


async def test_a_search_from_another_page_shows_what_it_finds(views: TopicViews) -> None:
    found = await views.listed("TOPIC-00007", 100, viewer())
    assert [row["name"] for row in found["topics"]] == ["topic-00007"]
    assert (found["first"], found["total"]) == (0, 1)


async def test_a_page_requests_its_own_topics_only(views: TopicViews, client: Client) -> None:
    found = await views.listed("", 9_950, viewer())
    assert (found["total"], found["first"], len(found["topics"])) == (TOPICS, 9900, 100)
    assert set(client.asked) == {100}
    # What a broker did not say is missing, and said to be.
    assert found["topics"][0]["size_bytes"] is None
    assert found["problems"] == ["Broker 1 did not respond."]


async def test_only_topics_with_problems(views: TopicViews, client: Client) -> None:
    assert (await views.listed("", 0, viewer(), only_problems=True))["total"] == 0
    topics = client.metadata.snapshot.topics
    for name, leader, isr in (("topic-00003", -1, [1, 2]), ("topic-00005", 1, [1])):
        state = PartitionMetadata(0, leader, 0, isr, [1, 2], [], 1, 0)
        topics[name] = TopicMetadata(name, bytes(16), {0: state})
    found = await views.listed("", 0, viewer(), only_problems=True)
    assert [row["name"] for row in found["topics"]] == ["topic-00003", "topic-00005"]


async def test_other_tasks_run_while_topics_are_listed(views: TopicViews) -> None:
    """A check of an ACL takes some microseconds, so that ten thousand would hold the loop."""
    turns = 0
    checked_at_once: list[int] = []
    checked = 0

    def allows(*_: object) -> bool:
        nonlocal checked
        checked += 1
        return True

    async def others() -> None:
        nonlocal turns, checked
        while True:
            checked_at_once.append(checked)
            checked = 0
            await asyncio.sleep(0)

    task = spawn(others(), name="others")
    with steps_per_turn(100):
        await views.listed("", 0, Viewer(allows, ANONYMOUS, ""))
    task.cancel()
    # The rows of the page are checked in the last turn.
    assert max(checked_at_once) <= 300


def test_the_reports_of_all_brokers_are_added_up() -> None:
    reports = [{"copies": 2.0, "size_bytes": 10.0}, None, {"copies": 3.0}]
    assert summed(reports) == {"copies": 5, "size_bytes": 10}
    assert summed([None, None]) is None


async def test_partitions_with_problems_come_first_and_their_records_are_not_counted_as_none(
    client: Client, views: TopicViews
) -> None:
    states = {
        index: PartitionMetadata(index, 1, 0, [1, 2], [1, 2], [], 1, 0) for index in range(150)
    }
    states[120] = PartitionMetadata(120, -1, 0, [], [1, 2], [], 1, 0)
    states[130] = PartitionMetadata(130, 1, 0, [1], [1, 2], [], 1, 0)
    topic = TopicMetadata("t", bytes(16), states)
    client.metadata.snapshot = MetadataSnapshot({}, {"t": topic}, {}, (1, 1))
    found = await views.one("t", 0, Viewer(_only_describe, ANONYMOUS, "127.0.0.1"))
    assert [row["partition"] for row in found["rows"][:4]] == [120, 130, 0, 1]
    assert (found["troubled"], found["records"], found["records_unknown"]) == (2, None, 150)
    assert "DESCRIBE_CONFIGS on TOPIC t; `ottla acls add --allow" in found["no_settings"]
    key = {each: TopicPartition("t", each) for each in range(150)}
    offsets = {key[0]: 5}
    sums = _measures(topic, {("t", 0): {1: 10, 2: 10}, ("t", 1): {1: 10}}, offsets, offsets)
    assert sums == {"size_bytes": 30, "size_unknown": 149, "records": 0, "records_unknown": 149}


def _only_describe(context: Any, operation: Operation, kind: Any, name: str) -> bool:
    return operation == Operation.DESCRIBE


async def test_replicas_that_a_reassignment_adds_are_not_counted(client: Client) -> None:
    moved = PartitionMetadata(0, 1, 0, [1, 2], [3, 4, 1, 2], [], 1, 0)
    topic = TopicMetadata("t", bytes(16), {0: moved})
    row = _row(topic, {("t", 0): (3, 4)})
    assert (row["least_replicas"], row["replicas"]) == (2, 2)


async def test_a_partition_that_refuses_acks_all_says_so(
    client: Client, views: TopicViews, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def described(*_: object) -> tuple[list[dict[str, Any]], list[str]]:
        return [{"name": "min.insync.replicas", "value": "2"}], []

    monkeypatch.setattr(topics, "described", described)
    states = {
        0: PartitionMetadata(0, 1, 0, [1], [1, 2], [], 1, 0),
        1: PartitionMetadata(1, 1, 0, [1, 2], [1, 2, 3], [], 1, 0),
        2: PartitionMetadata(2, -1, 0, [1], [1, 2], [], 1, 0),  # has no leader at all
    }
    topic = TopicMetadata("t", bytes(16), states)
    client.metadata.snapshot = MetadataSnapshot({}, {"t": topic}, {}, (1, 1))
    found = await views.one("t", 0, Viewer(allow_all, ANONYMOUS, "127.0.0.1"))
    assert {row["partition"] for row in found["rows"] if row["below_min_isr"]} == {0}
    assert found["below_min_isr"] == 1
