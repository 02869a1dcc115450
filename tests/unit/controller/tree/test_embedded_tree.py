"""The tree in memory: what goes beyond the contract of every store."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from ottla.controller.tree.embedded_tree import EmbeddedTree
from ottla.controller.tree.store import (
    CheckOp,
    CreateOp,
    DeleteOp,
    NotEmpty,
    Op,
    SessionExpired,
    SetOp,
    StoreError,
    WatchEvent,
)


def snapshot(tree: EmbeddedTree) -> dict[str, tuple[bytes, Any, frozenset[str]]]:
    return {
        path: (node.data, node.stat(), frozenset(node.children))
        for path, node in tree.nodes.items()
    }


names = st.sampled_from(["a", "b", "c"])
paths = st.one_of(
    names.map(lambda a: f"/{a}"), st.tuples(names, names).map(lambda p: f"/{p[0]}/{p[1]}")
)
versions = st.sampled_from([-1, -1, 0, 1])
operations: st.SearchStrategy[Op] = st.one_of(
    st.builds(CreateOp, paths, st.just(b"x"), st.booleans(), st.booleans()),
    st.builds(SetOp, paths, st.just(b"y"), versions),
    st.builds(DeleteOp, paths, versions),
    st.builds(CheckOp, paths, versions),
)


@settings(deadline=None)
@example([[CreateOp("/a", b"x"), CreateOp("/b", b"x", ephemeral=True), SetOp("/b", b"y", -1)]])
@given(st.lists(st.lists(operations, min_size=1, max_size=5), max_size=12))
def test_multi_that_fails_leaves_everything_as_it_was(batches: list[list[Op]]) -> None:
    tree = EmbeddedTree(lambda: 1)
    session = tree.open_session()
    for ops in batches:
        before, zxid, dirty = snapshot(tree), tree.zxid, dict(tree.dirty)
        owned = set(tree.sessions[session])
        heard: list[WatchEvent] = []
        watches = [tree.watch(session, path, False, heard.append) for path in before]
        try:
            tree.apply(session, ops)
        except StoreError:
            assert snapshot(tree) == before
            assert tree.zxid == zxid
            assert tree.dirty == dirty
            assert tree.sessions[session] == owned
            assert heard == []
        else:
            assert tree.zxid == zxid + 1
        for watch in watches:
            watch.cancel()
    assert tree.watches == {}
    for path, node in tree.nodes.items():
        for name in node.children:
            assert f"{path.rstrip('/')}/{name}" in tree.nodes
        if node.ephemeral_owner:
            assert path in tree.sessions[session]
            assert path not in tree.dirty


def test_end_of_a_session_is_one_transaction() -> None:
    tree = EmbeddedTree(lambda: 1)
    one, two = tree.open_session(), tree.open_session()
    tree.apply(one, [CreateOp("/a", ephemeral=True), CreateOp("/b", ephemeral=True)])
    tree.apply(two, [CreateOp("/c", ephemeral=True)])
    zxid = tree.zxid
    tree.end_session(one)
    tree.end_session(one)
    assert tree.zxid == zxid + 1
    assert sorted(tree.nodes) == ["/", "/c"]
    with pytest.raises(SessionExpired):
        tree.get(one, "/c")
    with pytest.raises(SessionExpired):
        tree.apply(one, [CreateOp("/d")])


def test_watches_end_with_their_session() -> None:
    tree = EmbeddedTree(lambda: 1)
    one, two = tree.open_session(), tree.open_session()
    heard: list[WatchEvent] = []
    tree.watch(one, "/a", False, heard.append)
    tree.end_session(one)
    tree.apply(two, [CreateOp("/a")])
    assert heard == []
    assert tree.watches == {}


def test_events_come_after_the_whole_multi() -> None:
    tree = EmbeddedTree(lambda: 1)
    session = tree.open_session()
    seen: list[list[str]] = []
    tree.watch(session, "/", True, lambda _: seen.append(tree.children(session, "/")))
    tree.apply(session, [CreateOp("/a"), CreateOp("/b")])
    assert seen == [["a", "b"], ["a", "b"]]


def test_the_root_stays() -> None:
    tree = EmbeddedTree(lambda: 1)
    session = tree.open_session()
    with pytest.raises(NotEmpty):
        tree.apply(session, [DeleteOp("/")])
