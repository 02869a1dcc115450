"""Writes that only the newest controller can make."""

from __future__ import annotations

import pytest

from ottla.controller.errors import ControllerMoved
from ottla.controller.model import LeaderAndIsr
from ottla.controller.state import fenced_writes
from ottla.controller.state.fenced_writes import FencedWriter
from ottla.controller.tree import znodes
from ottla.controller.tree.embedded_store import EmbeddedStore
from ottla.controller.tree.store import (
    BadVersion,
    CreateOp,
    DeleteOp,
    NodeExists,
    NoNode,
    NotEmpty,
    Op,
    SetOp,
    make_paths,
)
from ottla.protocol.topics import TopicPartition

T0, T1 = TopicPartition("t", 0), TopicPartition("t", 1)
STATE = LeaderAndIsr(1, 0, (1, 2), controller_epoch=3)


@pytest.fixture
async def store() -> EmbeddedStore:
    made = EmbeddedStore()
    await made.connect()
    await made.create(znodes.CONTROLLER_EPOCH, b"3")
    await make_paths(made, [znodes.topic_path("t")])
    return made


@pytest.fixture
def writer(store: EmbeddedStore) -> FencedWriter:
    made = FencedWriter(store)
    made.set_epoch(3, 0)
    return made


async def test_every_write_of_a_fenced_controller_is_refused(
    store: EmbeddedStore, writer: FencedWriter
) -> None:
    await writer.create_states({T0: STATE})
    await store.set(znodes.CONTROLLER_EPOCH, b"4")
    before = dict(store.tree.nodes)
    ops: list[Op] = [SetOp(znodes.topic_path("t"), b"x")]
    for write in (
        writer.multi(ops),
        writer.multi_many([ops]),
        writer.multi_many([ops, [CreateOp("/x")]]),
        writer.create_states({T1: STATE}),
        writer.update_states({T0: STATE}),
        writer.set(znodes.topic_path("t"), b"x"),
        writer.set_or_create("/x/y", b""),
        writer.delete_many([znodes.state_path(T0)]),
        writer.delete_tree(znodes.topic_path("t")),
    ):
        with pytest.raises(ControllerMoved):
            await write
    assert store.tree.nodes == before


async def test_nothing_is_written_before_an_election(store: EmbeddedStore) -> None:
    with pytest.raises(ControllerMoved):
        await FencedWriter(store).multi([CreateOp("/x")])
    assert await store.exists("/x") is None


async def test_errors_count_without_the_fence(writer: FencedWriter) -> None:
    with pytest.raises(NoNode) as failed:
        await writer.multi([CreateOp("/x"), SetOp("/nothing", b"")])
    assert failed.value.index == 1
    with pytest.raises(BadVersion):  # not mistaken for the fence's own
        await writer.multi([SetOp(znodes.topic_path("t"), b"", 7)])


async def test_writes_of_a_group_that_failed_are_made_one_by_one(
    store: EmbeddedStore, writer: FencedWriter
) -> None:
    batches: list[list[Op]] = [[CreateOp(f"/n{number}")] for number in range(150)]
    batches[70] = [CreateOp("/before"), CreateOp("/n3")]
    responses = await writer.multi_many(batches)
    assert isinstance(responses[70], NodeExists)
    assert responses[70].index == 1
    assert await store.exists("/before") is None
    for number in range(150):
        if number != 70:
            assert responses[number] == [f"/n{number}"]
            assert await store.exists(f"/n{number}") is not None


async def test_groups_keep_their_bound() -> None:
    batches: list[list[Op]] = [[DeleteOp("/x")] * 30 for _ in range(10)]
    sizes = [sum(len(batches[at]) for at in g) for g in fenced_writes._grouped(batches)]
    assert sizes == [90, 90, 90, 30]
    big: list[list[Op]] = [[DeleteOp("/x")] * 500, [DeleteOp("/x")]]
    assert fenced_writes._grouped(big) == [[0], [1]]
    large: list[list[Op]] = [[CreateOp("/x", bytes(100_000))], [SetOp("/y", bytes(100_000))]] * 2
    large.append([CreateOp("/z", bytes(900_000))])
    assert fenced_writes._grouped(large) == [[0, 1], [2, 3], [4]]


async def test_states_are_made_with_their_parents(
    store: EmbeddedStore, writer: FencedWriter
) -> None:
    made = await writer.create_states({T0: STATE, T1: STATE})
    assert made == {T0: STATE, T1: STATE}
    data, stat = await store.get(znodes.state_path(T1))
    assert znodes.decode_state(T1, data, stat.version) == STATE
    again = await writer.create_states({T0: STATE})
    assert isinstance(again[T0], NodeExists)
    unknown = TopicPartition("nothing", 0)
    assert isinstance((await writer.create_states({unknown: STATE}))[unknown], NoNode)


async def test_update_is_a_compare_and_set(store: EmbeddedStore, writer: FencedWriter) -> None:
    await writer.create_states({T0: STATE, T1: STATE})
    await store.set(znodes.state_path(T1), znodes.encode_state(STATE))
    wanted = STATE._replace(leader=2, controller_epoch=1)
    gone = TopicPartition("t", 9)
    finished, changed = await writer.update_states({T0: wanted, T1: wanted, gone: wanted})
    assert finished[T0] == wanted._replace(partition_epoch=1, controller_epoch=3)
    assert isinstance(finished[gone], NoNode)
    assert changed == [T1]


async def test_set_or_create(store: EmbeddedStore, writer: FencedWriter) -> None:
    await writer.set_or_create("/a/b/c", b"1")
    await writer.set_or_create("/a/b/c", b"2")
    assert (await store.get("/a/b/c"))[0] == b"2"


async def test_delete_many_does_not_mind_what_is_gone(
    store: EmbeddedStore, writer: FencedWriter
) -> None:
    await store.create("/a/b", make_parents=True)
    await writer.delete_many(["/a/b", "/nothing"])
    assert await store.exists("/a/b") is None
    await store.create("/a/b")
    with pytest.raises(NotEmpty):
        await writer.delete_many(["/a"])


async def test_delete_tree_in_parts_with_its_last_words(
    store: EmbeddedStore, writer: FencedWriter, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fenced_writes, "MAX_OPS_PER_MULTI", 3)
    await make_paths(store, [f"/a/{number}/x" for number in range(5)])
    await writer.delete_tree("/a", [CreateOp("/done")])
    assert await store.exists("/a") is None
    assert await store.exists("/done") is not None
