"""The contract of znode stores, on the embedded tree (memory, file) and on a real ZooKeeper."""

from __future__ import annotations

import pytest

from ottla.controller.tree.store import (
    CHANGED,
    CREATED,
    DELETED,
    SESSION_CONNECTED,
    SESSION_EXPIRED,
    BadVersion,
    CheckOp,
    CreateOp,
    DeleteOp,
    NoChildrenForEphemerals,
    NodeExists,
    NoNode,
    NotEmpty,
    Op,
    SetOp,
    Stat,
    StoreError,
    WatchEvent,
    ZnodeStore,
    ancestors_of,
    get_permitted,
    make_paths,
    parent_of,
    paths_below,
    set_or_create,
)
from tests.doubles.eventually import eventually_async
from tests.doubles.znode_ensembles import Ensemble, delete_recursively


@pytest.fixture
async def store(ensemble: Ensemble) -> ZnodeStore:
    return await ensemble.open()


async def test_create_get_set_delete(store: ZnodeStore) -> None:
    assert await store.create("/a", b"one") == "/a"
    made = await store.exists("/a")
    assert made is not None
    assert made.version == 0
    assert made.data_length == 3
    assert made.ephemeral_owner == 0
    assert await store.get("/a") == (b"one", made)
    changed = await store.set("/a", b"three")
    assert changed.version == 1
    assert changed.czxid == made.czxid
    assert changed.mzxid > made.mzxid
    assert (await store.get("/a"))[0] == b"three"
    await store.delete("/a")
    assert await store.exists("/a") is None
    with pytest.raises(NoNode) as gone:
        await store.get("/a")
    assert gone.value.path == "/a"


async def test_empty_data_is_empty_bytes(store: ZnodeStore) -> None:
    await store.create("/a")
    assert (await store.get("/a"))[0] == b""


async def test_zxids_only_grow(store: ZnodeStore) -> None:
    seen = []
    for name in "abc":
        await store.create(f"/{name}")
        seen.append((await store.get(f"/{name}"))[1].czxid)
        await store.delete(f"/{name}")
    await store.create("/a")
    seen.append((await store.get("/a"))[1].czxid)
    assert seen == sorted(set(seen))


async def test_create_refuses_missing_parents_unless_asked(store: ZnodeStore) -> None:
    with pytest.raises(NoNode):
        await store.create("/a/b/c")
    assert await store.create("/a/b/c", b"x", make_parents=True) == "/a/b/c"
    assert await store.children("/a") == ["b"]
    with pytest.raises(NodeExists):
        await store.create("/a/b/c")


async def test_versions_make_compare_and_set(store: ZnodeStore) -> None:
    await store.create("/a")
    await store.set("/a", b"1", 0)
    with pytest.raises(BadVersion):
        await store.set("/a", b"2", 0)
    assert await store.get("/a") == (b"1", await store.exists("/a"))
    with pytest.raises(BadVersion):
        await store.delete("/a", 0)
    await store.delete("/a", 1)


async def test_delete_needs_an_empty_node(store: ZnodeStore) -> None:
    await store.create("/a/b", make_parents=True)
    with pytest.raises(NotEmpty):
        await store.delete("/a")
    with pytest.raises(NoNode):
        await store.delete("/nothing")


async def test_children_are_sorted_and_counted(store: ZnodeStore) -> None:
    await store.create("/a")
    for name in ("z", "m", "b"):
        await store.create(f"/a/{name}")
    await store.delete("/a/m")
    assert await store.children("/a") == ["b", "z"]
    stat = await store.exists("/a")
    assert stat is not None
    assert stat.children_count == 2
    assert stat.cversion == 4  # three came, one went
    assert stat.version == 0
    with pytest.raises(NoNode):
        await store.children("/nothing")


async def test_sequential_names_grow_and_are_never_used_twice(store: ZnodeStore) -> None:
    await store.create("/a")
    first = await store.create("/a/n_", sequential=True)
    assert first == "/a/n_0000000000"
    await store.delete(first)
    second = await store.create("/a/n_", sequential=True)
    await store.create("/a/other")
    third = await store.create("/a/n_", sequential=True)
    assert (second, third) == ("/a/n_0000000001", "/a/n_0000000003")


async def test_ephemeral_nodes_live_as_long_as_their_session(ensemble: Ensemble) -> None:
    first, second = await ensemble.open(), await ensemble.open()
    await first.create("/kept")
    await first.create("/mine", b"x", ephemeral=True)
    _, stat = await first.get("/mine")
    assert stat.ephemeral_owner == first.session_id != 0
    seen = await second.exists("/mine")
    assert seen is not None
    assert seen.ephemeral_owner == first.session_id
    with pytest.raises(NoChildrenForEphemerals):
        await first.create("/mine/child")
    await first.close()
    assert await second.exists("/mine") is None
    assert await second.exists("/kept") is not None


async def test_get_many_keeps_the_order(store: ZnodeStore) -> None:
    for number in range(0, 300, 2):
        await store.create(f"/n{number}", b"%d" % number)
    found = await store.get_many([f"/n{number}" for number in range(300)])
    assert [None if each is None else int(each[0]) for each in found] == [
        None if number % 2 else number for number in range(300)
    ]
    one = found[4]
    assert one is not None
    assert one[1] == await store.exists("/n4")
    assert await store.get_many([]) == []
    assert await store.get_many(["/nothing"]) == [None]


@pytest.mark.parametrize("path", ["/a/.", "/../a", "/a//b", "/a/", "/a/\x00", "/a/\ufff0", "/"])
async def test_get_many_of_a_path_that_no_znode_can_have(store: ZnodeStore, path: str) -> None:
    """A name in a notification may be anything, and others are read with it."""
    await store.create("/n", b"1")
    if path != "/":
        assert await store.get_many([path]) == [None]
        assert await get_permitted(store, [path]) == [None]
    found = await store.get_many([f"{path}/x", "/n", path])
    assert found[0] is None
    assert found[1] is not None
    assert found[1][0] == b"1"


async def test_multi_returns_a_result_for_each_operation(store: ZnodeStore) -> None:
    await store.create("/a", b"x")
    await store.create("/gone")
    results = await store.multi(
        [
            CheckOp("/a", 0),
            CreateOp("/a/b", b"y"),
            CreateOp("/a/s_", sequential=True),
            SetOp("/a", b"z", 0),
            DeleteOp("/gone"),
        ]
    )
    stat = await store.exists("/a")
    assert results == [None, "/a/b", "/a/s_0000000001", stat, None]
    assert isinstance(stat, Stat)
    assert stat.version == 1
    assert stat.mzxid == (await store.get("/a/b"))[1].czxid  # one transaction


@pytest.mark.parametrize(
    ("last", "error"),
    [
        (CheckOp("/a", 7), BadVersion),
        (SetOp("/nothing", b""), NoNode),
        (CreateOp("/a"), NodeExists),
        (CreateOp("/nothing/below"), NoNode),
        (DeleteOp("/a"), NotEmpty),
    ],
)
async def test_multi_is_all_or_nothing(
    store: ZnodeStore, last: Op, error: type[StoreError]
) -> None:
    await store.create("/a", b"x")
    await store.create("/b")
    before = await store.get_many(["/a", "/b"])
    with pytest.raises(error) as failed:
        await store.multi(
            [SetOp("/a", b"changed"), CreateOp("/a/new"), DeleteOp("/b"), CreateOp("/b"), last]
        )
    assert failed.value.index == 4
    assert await store.get_many(["/a", "/b"]) == before
    assert await store.children("/a") == []


async def test_operations_of_a_multi_see_those_before(store: ZnodeStore) -> None:
    await store.multi(
        [
            CreateOp("/a", b"0"),
            CreateOp("/a/b"),
            SetOp("/a", b"1", 0),
            CheckOp("/a", 1),
            DeleteOp("/a/b"),
        ]
    )
    assert (await store.get("/a"))[0] == b"1"
    assert await store.children("/a") == []


async def test_ephemeral_node_in_a_multi_that_failed_is_not_there(ensemble: Ensemble) -> None:
    store = await ensemble.open()
    with pytest.raises(NoNode):
        await store.multi([CreateOp("/mine", ephemeral=True), SetOp("/nothing", b"")])
    assert await store.exists("/mine") is None
    await store.multi([CreateOp("/mine", ephemeral=True)])
    stat = await store.exists("/mine")
    assert stat is not None
    assert stat.ephemeral_owner == store.session_id


async def test_multi_many_returns_each_on_its_own(store: ZnodeStore) -> None:
    await store.create("/a")
    responses = await store.multi_many(
        [
            [CreateOp("/a/0")],
            [CheckOp("/a", 0), CreateOp("/a/0")],
            [CheckOp("/a", 5), CreateOp("/a/2")],
            [CreateOp("/a/3"), SetOp("/a", b"x")],
        ]
    )
    first, second, third, fourth = responses
    assert first == ["/a/0"]
    assert isinstance(second, NodeExists)
    assert second.index == 1
    assert isinstance(third, BadVersion)
    assert third.index == 0
    assert isinstance(fourth, list)
    assert await store.children("/a") == ["0", "3"]
    assert await store.multi_many([]) == []


async def test_writes_of_a_store_are_applied_in_order(store: ZnodeStore) -> None:
    await store.create("/a")
    await store.multi_many([[SetOp("/a", b"%d" % number)] for number in range(400)])
    data, stat = await store.get("/a")
    assert data == b"399"
    assert stat.version == 400


async def test_data_watch_hears_creation_change_and_deletion(ensemble: Ensemble) -> None:
    watcher, writer = await ensemble.open(), await ensemble.open()
    events: list[WatchEvent] = []
    await watcher.watch_data("/a", events.append)
    for kind, act in (
        (CREATED, writer.create("/a")),
        (CHANGED, writer.set("/a", b"1")),
        (CHANGED, writer.set("/a", b"2")),
        (DELETED, writer.delete("/a")),
        (CREATED, writer.create("/a")),
    ):
        events.clear()
        await act
        await eventually_async(lambda: bool(events))
        assert events == [WatchEvent(kind, "/a")]


async def test_data_watch_does_not_hear_of_children(ensemble: Ensemble) -> None:
    store = await ensemble.open()
    await store.create("/a")
    events: list[WatchEvent] = []
    await store.watch_data("/a", events.append)
    await store.create("/a/b")
    await store.set("/a", b"x")
    await eventually_async(lambda: bool(events))
    assert [event.kind for event in events] == [CHANGED]


async def test_children_watch_hears_of_every_coming_and_going(ensemble: Ensemble) -> None:
    watcher, writer = await ensemble.open(), await ensemble.open()
    await writer.create("/a")
    events: list[WatchEvent] = []
    await watcher.watch_children("/a", events.append)
    for number in range(5):
        events.clear()
        await writer.create(f"/a/{number}")
        await eventually_async(lambda: bool(events))
    events.clear()
    await writer.delete("/a/0")
    await eventually_async(lambda: bool(events))
    assert {event.path for event in events} == {"/a"}


async def test_children_watch_waits_for_its_node(ensemble: Ensemble) -> None:
    watcher, writer = await ensemble.open(), await ensemble.open()
    events: list[WatchEvent] = []
    await watcher.watch_children("/a", events.append)
    await writer.create("/a")
    await eventually_async(lambda: bool(events))
    events.clear()
    await writer.create("/a/b")
    await eventually_async(lambda: bool(events))


async def test_what_a_watch_notifies_of_can_be_seen(ensemble: Ensemble) -> None:
    """However fast the changes: after the last call the last of them is there to be read."""
    watcher, writer = await ensemble.open(), await ensemble.open()
    await writer.create("/a")
    calls: list[WatchEvent] = []
    await watcher.watch_children("/a", calls.append)
    await writer.multi_many([[CreateOp(f"/a/{number}")] for number in range(200)])
    seen = 0
    while seen < 200:  # each call may stand for many changes, but none is left untold
        await eventually_async(lambda: bool(calls))
        calls.clear()
        seen = len(await watcher.children("/a"))
    assert seen == 200


async def test_cancelled_watch_is_silent(ensemble: Ensemble) -> None:
    store = await ensemble.open()
    await store.create("/a")
    silent: list[WatchEvent] = []
    heard: list[WatchEvent] = []
    handle = await store.watch_data("/a", silent.append)
    await store.watch_data("/a", heard.append)
    handle.cancel()
    await store.set("/a", b"x")
    await eventually_async(lambda: bool(heard))
    assert silent == []


async def test_many_watches_at_once(ensemble: Ensemble) -> None:
    store = await ensemble.open()
    paths = [f"/n{number}" for number in range(300)]
    await store.multi_many([[CreateOp(path)] for path in paths])
    events: list[WatchEvent] = []
    handles = await store.watch_data_many([(path, events.append) for path in paths])
    assert len(handles) == 300
    await store.multi_many([[SetOp(path, b"x")] for path in paths])
    await eventually_async(lambda: len(events) == 300)
    assert {event.path for event in events} == set(paths)


async def test_session_expiry_takes_ephemeral_nodes_and_gives_a_new_session(
    ensemble: Ensemble,
) -> None:
    store, other = await ensemble.open(), await ensemble.open()
    await store.create("/mine", ephemeral=True)
    notified: list[str] = []
    store.on_session(notified.append)
    before = store.session_id
    await ensemble.expire(store)
    await eventually_async(lambda: notified[-1:] == [SESSION_CONNECTED])
    assert SESSION_EXPIRED in notified
    assert store.session_id not in (0, before)
    assert await other.exists("/mine") is None
    await store.create("/mine", ephemeral=True)
    stat = await other.exists("/mine")
    assert stat is not None
    assert stat.ephemeral_owner == store.session_id


async def test_watches_survive_an_expired_session(ensemble: Ensemble) -> None:
    store, writer = await ensemble.open(), await ensemble.open()
    await writer.create("/a")
    events: list[WatchEvent] = []
    await store.watch_data("/mine", events.append)
    await store.create("/mine", ephemeral=True)
    await eventually_async(lambda: bool(events))
    notified: list[str] = []
    store.on_session(notified.append)
    events.clear()
    await ensemble.expire(store)
    await eventually_async(lambda: notified[-1:] == [SESSION_CONNECTED] and bool(events))
    events.clear()
    await writer.create("/mine")
    await eventually_async(lambda: bool(events))
    assert events[-1].path == "/mine"


async def test_session_subscription_can_be_cancelled(ensemble: Ensemble) -> None:
    store = await ensemble.open()
    silent: list[str] = []
    notified: list[str] = []
    store.on_session(silent.append).cancel()
    store.on_session(notified.append)
    await ensemble.expire(store)
    await eventually_async(lambda: notified[-1:] == [SESSION_CONNECTED])
    assert silent == []


async def test_helpers(store: ZnodeStore) -> None:
    await set_or_create(store, "/a/b", b"1")
    await set_or_create(store, "/a/b", b"2")
    assert (await store.get("/a/b"))[0] == b"2"
    await make_paths(store, ["/a/x", "/c/d/e", "/a/b"])
    await make_paths(store, ["/a/x", "/c/d/e", "/a/b"])
    assert await paths_below(store, "/c") == ["/c", "/c/d", "/c/d/e"]
    await delete_recursively(store, "/a")
    assert await store.exists("/a") is None
    await delete_recursively(store, "/a")


def test_paths() -> None:
    assert parent_of("/a/b") == "/a"
    assert parent_of("/a") == "/"
    assert ancestors_of("/a/b/c") == ["/a", "/a/b"]
    assert ancestors_of("/a") == []
