from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from ottla.broker.observability.console.cluster_client import Responses
from ottla.broker.observability.console.groups import MAX_NAMED, GroupViews, _Bounds, summed
from ottla.broker.observability.console.groups_of_cluster import GroupRow, MemberRow
from ottla.broker.observability.console.history import Lag
from ottla.protocol.topics import TopicPartition


def row(topic: str, partition: int, locked: int, oldest_lock_ms: int | None) -> dict[str, Any]:
    lock = {"locked": locked, "oldest_lock_ms": oldest_lock_ms}
    return {"topic": topic, "partition": partition, "in_flight": 10, **lock}


def counts(delivered: int) -> dict[str, Any]:
    acknowledged = {"accept": 3, "reject": 0}
    found = {"delivered": delivered, "redelivered": 1, "expired_locks": 2}
    return {**found, "acknowledged": acknowledged}


def test_the_reports_of_all_brokers_are_added_up() -> None:
    loading = {"topic": "t", "partition": 0, "leader_epoch": 1}
    rows = [row("t", 2, 4, 700), row("secret", 0, 9, 9000)]
    found = summed(
        {
            1: {"partitions": rows, "counts": counts(5)},
            2: {"partitions": [row("t", 1, 0, None), loading], "counts": None},
            3: {"partitions": [], "counts": counts(6)},
        },
        lambda topic: topic != "secret",
    )
    places = [(each["partition"], each["broker"]) for each in found["rows"]]
    assert places == [(0, 2), (1, 2), (2, 1)]
    assert (found["in_flight"], found["locked"], found["oldest_lock_ms"]) == (20, 4, 700)
    assert (found["delivered"], found["redelivered"], found["expired_locks"]) == (11, 2, 4)
    assert found["acknowledged"] == {"accept": 6, "reject": 0}
    assert summed({}, lambda topic: True)["oldest_lock_ms"] is None


@pytest.mark.parametrize(("kind", "uncounted"), [("classic", 3), ("consumer", 3), ("share", 1)])
def test_partitions_that_are_not_counted_are_no_lag_of_0(kind: str, uncounted: int) -> None:
    """A group without a lag is caught up only when all its partitions are measured."""
    orders = [TopicPartition("orders", index) for index in range(4)]
    lags = {orders[0]: Lag(7, 7, 0, 0.0), orders[1]: Lag(7, None, None, None)}
    history = SimpleNamespace(lags=lambda _: lags, is_sampled=lambda _: True)
    views = GroupViews(cast("Any", None), cast("Any", history))
    group = GroupRow("g", 1, "Stable", kind)
    members = [MemberRow("m", None, "client", "/10.0.0.1", orders)]
    assert views._uncounted(group, members) == uncounted
    assert views._uncounted(group, members, {orders[3]}) == uncounted - (kind != "share")
    history.is_sampled = lambda _: False
    assert views._uncounted(group, members) == 1  # nobody knows what it has committed


async def test_groups_with_the_greatest_lag_come_first() -> None:
    lags = {"a": 5, "b": None, "c": 0, "d": 900, "e": 5}

    async def fresh(*_: object) -> None:
        """All is known."""

    async def nothing(*_: object) -> Responses:
        return Responses({}, [])

    history = SimpleNamespace(
        fresh=fresh,
        groups={name: GroupRow(name, 1, "Stable", "classic") for name in lags},
        lag=lags.get,
        lags=lambda _: {},
        lag_points=lambda _: [],
        lag_seconds=lambda _: None,
        is_at_least=lambda _: False,
        problems=[],
    )
    viewer = cast("Any", SimpleNamespace(may_on_cluster=lambda _: True))
    client = SimpleNamespace(ask_each=nothing)
    views = GroupViews(cast("Any", client), cast("Any", history))
    found = await views.listed("", 0, viewer, by_lag=True)
    assert [each["group"] for each in found["groups"]] == ["d", "a", "e", "c", "b"]
    found = await views.listed("", 0, viewer)
    assert [each["group"] for each in found["groups"]] == sorted(lags)


@pytest.mark.parametrize("is_share", [False, True])
def test_assigned_partitions_without_a_commit_are_shown(is_share: bool) -> None:
    """Their records are not in the lag of the group, although its consumers may read them all."""
    orders = [TopicPartition("orders", index) for index in range(3)]
    secret = TopicPartition("secret", 0)
    history = SimpleNamespace(lags=lambda _: {orders[1]: Lag(7, 10, 3, 1.5)})
    viewer = SimpleNamespace(may_describe_topic=lambda topic: topic == "orders")
    members = [MemberRow("m", None, "client", "/10.0.0.1", [*orders, secret])]
    views = GroupViews(cast("Any", None), cast("Any", history))
    bare = {orders[0]: _Bounds(5, 5), orders[2]: _Bounds(0, 9)}
    rows = views._offsets("g", members, bare, cast("Any", viewer), is_share=is_share)
    names = ("partition", "offset", "end_offset", "lag", "owner")
    found = [tuple(each[name] for name in names) for each in rows]
    committed = (1, 7, 10, 3, "client")
    # One that is empty has no lag, wherever its consumer begins.
    others = [(0, None, 5, 0, "client"), (2, None, 9, None, "client")]
    assert found == ([committed] if is_share else [others[0], committed, others[1]])
    # Their ends are not known, as their leaders do not respond.
    rows = views._offsets("g", members, {}, cast("Any", viewer))
    assert [(each["end_offset"], each["lag"]) for each in rows] == [
        (None, None), (10, 3), (None, None),
    ]  # fmt: skip


async def test_the_groups_that_lose_offsets_with_a_topic_are_named() -> None:
    async def fresh(*_: object) -> None:
        """All is known."""

    orders, other = TopicPartition("orders", 0), TopicPartition("other", 0)
    lags = {
        "both": {orders: Lag(7, 7, 0, 0.0), other: Lag(7, 7, 0, 0.0)},
        "elsewhere": {other: Lag(7, 7, 0, 0.0)},
        "only": {orders: Lag(7, 7, 0, 0.0)},
        "used": {orders: Lag(7, 7, 0, 0.0)},
    }
    groups = {name: GroupRow(name, 1, "Empty", "classic") for name in [*lags, "new"]}
    groups["used"] = GroupRow("used", 1, "Stable", "classic")
    history = SimpleNamespace(
        fresh=fresh,
        groups=groups,
        has_all_groups=True,
        is_sampled=lambda name: name in lags,
        lags=lambda name: lags.get(name, {}),
    )
    viewer = SimpleNamespace(require=lambda *_: None, may_on_cluster=lambda _: True)
    views = GroupViews(cast("Any", None), cast("Any", history))
    found = await views.of_topic("orders", cast("Any", viewer))
    rows = [(each["group"], each["disappears"], each["has_members"]) for each in found["groups"]]
    assert rows == [("used", False, True), ("both", False, False), ("only", True, False)]
    assert (found["total"], found["unknown"], found["are_all"]) == (3, 1, True)
    for number in range(10):
        groups[f"more-{number}"] = GroupRow(f"more-{number}", 1, "Empty", "classic")
        lags[f"more-{number}"] = {orders: Lag(7, 7, 0, 0.0)}
    found = await views.of_topic("orders", cast("Any", viewer))
    assert (len(found["groups"]), found["total"]) == (MAX_NAMED, 13)
