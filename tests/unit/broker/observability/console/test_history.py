"""What a page shows of brokers that were registered after the last sample."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from ottla.broker.observability.console import history as module
from ottla.broker.observability.console.access import Viewer
from ottla.broker.observability.console.cluster_client import ConsoleParts, Responses
from ottla.broker.observability.console.groups_of_cluster import GroupRow
from ottla.broker.observability.console.history import ClusterTraffic, History, RemoteRates
from ottla.broker.requests.request_context import ANONYMOUS
from ottla.broker.security.authorization.access_control import allow_all
from ottla.protocol.messages.describe_log_dirs import DescribeLogDirsResponse
from ottla.protocol.topics import TopicPartition


class Client:
    """A cluster without topics and groups."""

    broker_id = 1

    def __init__(self) -> None:
        self.registered = [1]
        self.metadata = SimpleNamespace(snapshot=SimpleNamespace(topics={}, brokers={1: None}))
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


async def test_the_lag_of_a_group_in_seconds_and_its_pace(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 1_000_000
    committed, end = 50, 100
    partition = TopicPartition("t", 0)

    async def groups(*_: object) -> tuple[dict[str, Any], list[str]]:
        return {"g": GroupRow("g", 1, "Stable", "classic")}, []

    async def positions(*_: object) -> tuple[dict[str, Any], list[str]]:
        return {"g": {partition: committed}}, []

    async def ends(*_: object) -> tuple[dict[TopicPartition, int], list[str]]:
        return {partition: end}, []

    monkeypatch.setattr(module, "list_groups", groups)
    monkeypatch.setattr(module, "committed_offsets", positions)
    monkeypatch.setattr(module, "list_offsets", ends)
    parts = SimpleNamespace(client=client, now_ms=lambda: now, state=dict)
    history = History(cast("ConsoleParts", parts), Viewer(allow_all, ANONYMOUS, "127.0.0.1"))
    await history.sample()
    # The record at 50 is older than the first sample; nobody knows by how much.
    assert history.is_at_least("g")
    assert history.pace("g") is None
    now, committed, end = now + 10_000, 200, 300
    await history.sample()
    # Halfway between 100 and 300, so appended halfway between the samples.
    assert (history.lag_seconds("g"), history.is_at_least("g")) == (5.0, False)
    assert history.pace("g") == (15.0, 20.0, None)  # it falls behind
    now, committed = now + 10_000, 290
    await history.sample()
    assert history.pace("g") == (12.0, 10.0, 5.0)
    now, committed = now + 10_000, 300
    await history.sample()
    assert history.pace("g") == (pytest.approx(25 / 3), pytest.approx(20 / 3), 0.0)
    # A reset to an earlier offset is not a pace.
    now, committed = now + 10_000, 0
    await history.sample()
    assert history.pace("g") is None


def report(**topics: tuple[int, int, int]) -> dict[str, Any]:
    return {
        "topics": {
            topic: {"copied_bytes": copied, "read_bytes": read, "copy_errors": errors}
            for topic, (copied, read, errors) in topics.items()
        },
        "problem": None,
    }


def test_brokers_are_added_up() -> None:
    rates = RemoteRates(10, 10)
    assert not rates.is_watching
    assert rates.watch("t") == []
    assert rates.is_watching
    rates.add(1_000, {1: report(t=(0, 0, 0), other=(5, 5, 5)), 2: report(t=(100, 7, 1))})
    assert rates.watch("t") == []
    rates.add(3_000, {1: report(t=(40, 0, 0), other=(9, 9, 9)), 2: report(t=(120, 9, 2))})
    point = {"time_ms": 3_000, "copied_bytes": 30.0, "read_bytes": 1.0, "errors": 0.5}
    assert rates.watch("t") == [point]
    assert rates.watch("other") == []


def test_all_kinds_of_errors_count() -> None:
    rates = RemoteRates(10, 10)
    rates.watch("t")
    for now_ms in (1_000, 2_000):
        errors = ("copy_errors", "read_errors", "delete_errors", "state_build_errors")
        rates.add(now_ms, {1: {"topics": {"t": dict.fromkeys(errors, now_ms // 1_000)}}})
    assert [point["errors"] for point in rates.watch("t")] == [4.0]


def test_a_broker_counts_between_two_samples_that_have_it() -> None:
    rates = RemoteRates(10, 10)
    rates.watch("t")
    rates.add(1_000, {1: report(t=(0, 0, 0)), 2: report(t=(1_000, 0, 0)), 3: report()})
    rates.add(2_000, {1: report(t=(10, 0, 0)), 4: report(t=(99, 0, 0))})  # 2 is away, 4 is new
    assert [point["copied_bytes"] for point in rates.watch("t")] == [10.0]
    rates.add(3_000, {1: report(t=(3, 0, 0)), 4: report(t=(100, 0, 0))})  # 1 was started again
    assert [point["copied_bytes"] for point in rates.watch("t")] == [10.0, 1.0]
    rates.add(3_000, {4: report(t=(200, 0, 0))})  # no time has passed
    rates.add(4_000, {})
    assert len(rates.watch("t")) == 2


def test_topics_and_points_are_bounded() -> None:
    rates = RemoteRates(2, 2)
    for topic in ("a", "b", "a", "c"):  # b was opened first
        rates.watch(topic)
    for second in range(9):
        rates.add(second * 1_000, {1: report(a=(second, 0, 0), b=(0, 0, 0), c=(0, 0, 0))})
    assert [point["time_ms"] for point in rates.watch("a")] == [7_000, 8_000]
    assert rates.watch("b") == []  # and now c goes, which was opened before a
    assert rates.watch("c") == []


def test_topics_that_are_deleted_are_forgotten() -> None:
    rates = RemoteRates(10, 10)
    rates.watch("t")
    rates.keep(["t", "other"])
    assert rates.is_watching
    rates.keep(["other"])
    assert not rates.is_watching


def state(received: int, sent: int, requests: int) -> dict[str, Any]:
    return {
        "traffic": {"received_bytes": received, "sent_bytes": sent, "requests": requests},
        "ready": True,
    }


def test_traffic_of_brokers_is_added_up() -> None:
    traffic = ClusterTraffic(10)
    traffic.add(1_000, {1: state(0, 100, 5), 2: state(7, 0, 0)})
    assert (traffic.points(), traffic.brokers) == ([], 0)
    traffic.add(3_000, {1: state(20, 100, 7), 2: state(27, 40, 4)})
    point = {"bytes_in": 20.0, "bytes_out": 20.0, "requests": 3.0}
    assert traffic.points() == [{"time_ms": 3_000, **point, "brokers": 2}]


def test_traffic_counts_between_two_samples_that_have_a_broker() -> None:
    traffic = ClusterTraffic(10)
    traffic.add(0, {1: state(0, 0, 0), 2: state(1_000, 0, 0), 3: {"faults": []}})
    traffic.add(1_000, {1: state(10, 0, 0), 4: state(99, 9, 9)})  # 2 is away, 4 is new
    assert (traffic.points()[-1]["bytes_in"], traffic.brokers) == (10.0, 1)
    traffic.add(2_000, {1: state(20, 0, 0), 2: state(2_000, 0, 0), 4: state(100, 9, 9)})
    assert (traffic.points()[-1]["bytes_in"], traffic.brokers) == (11.0, 2)
    # 1 was started again.
    traffic.add(3_000, {1: state(3, 0, 0), 2: state(2_005, 0, 0), 4: state(100, 9, 9)})
    assert (traffic.points()[-1]["bytes_in"], traffic.brokers) == (5.0, 2)


def test_nothing_is_drawn_while_no_broker_reports() -> None:
    traffic = ClusterTraffic(10)
    for now_ms in (0, 1_000, 1_000):
        traffic.add(now_ms, {})
    assert (traffic.points(), traffic.brokers) == ([], 0)
    traffic.add(1_000, {1: state(0, 0, 0)})
    traffic.add(1_000, {1: state(5, 0, 0)})  # no time has passed
    assert traffic.points() == []


def test_the_points_are_bounded() -> None:
    traffic = ClusterTraffic(3)
    for second in range(9):
        traffic.add(second * 1_000, {1: state(second, 0, 0)})
    assert [point["time_ms"] for point in traffic.points()] == [6_000, 7_000, 8_000]


async def test_offsets_that_move_without_members_are_no_pace(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A reset is not consumption, nor right after it, when the members are back."""
    now, state, committed = 1_000_000, "Stable", 50
    partition = TopicPartition("t", 0)

    async def groups(*_: object) -> tuple[dict[str, Any], list[str]]:
        return {"g": GroupRow("g", 1, state, "classic")}, []

    async def positions(*_: object) -> tuple[dict[str, Any], list[str]]:
        return {"g": {partition: committed}}, []

    async def ends(*_: object) -> tuple[dict[TopicPartition, int], list[str]]:
        return {partition: 1_000_000}, []

    monkeypatch.setattr(module, "list_groups", groups)
    monkeypatch.setattr(module, "committed_offsets", positions)
    monkeypatch.setattr(module, "list_offsets", ends)
    parts = SimpleNamespace(client=client, now_ms=lambda: now, state=dict)
    history = History(cast("ConsoleParts", parts), Viewer(allow_all, ANONYMOUS, "127.0.0.1"))
    found = []
    for state, committed in [  # noqa: B007 - the doubles read them
        ("Stable", 50), ("Empty", 60), ("Empty", 90_000), ("Stable", 95_000), ("Stable", 95_100),
    ]:  # fmt: skip
        now += 10_000
        await history.sample()
        found.append(history.pace("g"))
    assert [each and each.committed for each in found] == [None, None, None, None, 10.0]
    history.forget_pace("g")  # the console itself has reset it
    assert history.pace("g") is None


async def test_a_lag_of_which_a_part_is_unknown_is_a_gap(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A sum of what is known would look as if the lag had fallen."""
    one, two = TopicPartition("t", 0), TopicPartition("t", 1)
    now = 1_000_000
    listed: dict[str, Any] = {"g": GroupRow("g", 1, "Stable", "classic")}
    silent: list[str] = []
    found = {one: 100, two: 100}

    async def groups(*_: object) -> tuple[dict[str, Any], list[str]]:
        return listed, silent

    async def positions(*_: object) -> tuple[dict[str, Any], list[str]]:
        return {name: {one: 10, two: 20} for name in listed}, []

    async def ends(*_: object) -> tuple[dict[TopicPartition, int], list[str]]:
        return found, []

    monkeypatch.setattr(module, "list_groups", groups)
    monkeypatch.setattr(module, "committed_offsets", positions)
    monkeypatch.setattr(module, "list_offsets", ends)
    parts = SimpleNamespace(client=client, now_ms=lambda: now, state=dict)
    history = History(cast("ConsoleParts", parts), Viewer(allow_all, ANONYMOUS, "127.0.0.1"))
    await history.sample()
    found = {one: 100}
    await history.sample()
    assert history.lag("g") == 90  # the page says what is not counted
    # Its coordinator does not respond: the group may be there.
    known, listed, silent = listed, {}, ["Broker 1 did not respond: no response in 4000 ms."]
    await history.sample()
    assert not history.has_all_groups
    # Nor is it listed while its partition has no leader that is registered.
    silent = []
    state = SimpleNamespace(leader=2)
    offsets = SimpleNamespace(partitions={0: state})
    client.metadata.snapshot.topics = {"__consumer_offsets": offsets}
    await history.sample()
    assert not history.has_all_groups
    state.leader, listed, found = 1, known, {one: 100, two: 100}
    await history.sample()
    assert [lag for _, lag in history.lag_points("g")] == [170, None, None, None, 170]
    listed = {}
    await history.sample()
    assert (history.has_all_groups, history.lag_points("g")) == (True, [])
