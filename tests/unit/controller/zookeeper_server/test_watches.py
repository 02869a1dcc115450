"""Which watches fire at which change, and how often."""

from __future__ import annotations

from ottla.controller.tree.store import CHANGED, CREATED, DELETED
from ottla.controller.zookeeper_server.watches import ONE_SHOT, EventType, WatchKind, WatchTable


class Watched:
    def __init__(self) -> None:
        self.events: list[tuple[str, EventType, str]] = []
        self.table: WatchTable[str] = WatchTable(
            lambda watcher, event, path: self.events.append((watcher, event, path))
        )

    def after(self, *events: tuple[str, str]) -> list[tuple[str, EventType, str]]:
        self.events.clear()
        self.table.publish(events)
        return self.events


def test_a_data_watch_fires_once() -> None:
    watched = Watched()
    watched.table.add(WatchKind.DATA, "/a", "x")
    assert watched.after((CHANGED, "/a")) == [("x", EventType.NODE_DATA_CHANGED, "/a")]
    assert watched.after((CHANGED, "/a")) == []
    watched.table.add(WatchKind.DATA, "/a", "x")
    assert watched.after((CREATED, "/a")) == [("x", EventType.NODE_CREATED, "/a")]
    assert watched.table.count() == 0


def test_a_deletion_is_one_event_for_both_watches() -> None:
    watched = Watched()
    watched.table.add(WatchKind.DATA, "/a", "x")
    watched.table.add(WatchKind.CHILDREN, "/a", "x")
    watched.table.add(WatchKind.CHILDREN, "/", "y")
    assert watched.after((DELETED, "/a")) == [
        ("x", EventType.NODE_DELETED, "/a"),
        ("y", EventType.NODE_CHILDREN_CHANGED, "/"),
    ]


def test_a_child_watch_does_not_fire_at_data() -> None:
    watched = Watched()
    watched.table.add(WatchKind.CHILDREN, "/a", "x")
    assert watched.after((CHANGED, "/a"), (CHANGED, "/a/b")) == []
    assert watched.after((CREATED, "/a/b"), (CREATED, "/a/c")) == [
        ("x", EventType.NODE_CHILDREN_CHANGED, "/a")
    ]


def test_persistent_watches_stay() -> None:
    watched = Watched()
    watched.table.add(WatchKind.PERSISTENT, "/a", "x")
    events = ((CHANGED, "/a"), (CREATED, "/a/b"), (CHANGED, "/a/b"), (DELETED, "/a/b"))
    expected = [
        ("x", EventType.NODE_DATA_CHANGED, "/a"),
        ("x", EventType.NODE_CHILDREN_CHANGED, "/a"),
        ("x", EventType.NODE_CHILDREN_CHANGED, "/a"),
    ]
    assert watched.after(*events) == expected
    assert watched.after(*events) == expected


def test_recursive_watches_see_all_below_and_no_child_events() -> None:
    watched = Watched()
    watched.table.add(WatchKind.RECURSIVE, "/a", "x")
    assert watched.after((CREATED, "/a/b/c"), (CHANGED, "/ab"), (DELETED, "/a")) == [
        ("x", EventType.NODE_CREATED, "/a/b/c"),
        ("x", EventType.NODE_DELETED, "/a"),
    ]
    watched.table.add(WatchKind.RECURSIVE, "/", "y")
    assert watched.after((CHANGED, "/ab")) == [("y", EventType.NODE_DATA_CHANGED, "/ab")]


def test_removal_and_the_end_of_a_connection() -> None:
    watched = Watched()
    for kind in WatchKind:
        watched.table.add(kind, "/a", "x")
    watched.table.add(WatchKind.DATA, "/b", "y")
    assert watched.table.has(ONE_SHOT, "/a", "x")
    assert watched.table.remove((WatchKind.DATA,), "/a", "x")
    assert not watched.table.remove((WatchKind.DATA,), "/a", "x")
    assert watched.table.paths() == {"/a": ["x"], "/b": ["y"]}
    watched.table.drop("x")
    assert watched.table.paths() == {"/b": ["y"]}
    assert watched.after((DELETED, "/a")) == []
