"""How high the leader epochs of deleted topics were."""

from __future__ import annotations

import logging

import pytest

from ottla.controller.errors import ControllerMoved
from ottla.controller.state import own_znodes as deleted_topics
from ottla.controller.state.fenced_writes import FencedWriter
from ottla.controller.state.own_znodes import DeletedTopics, ProcessedBrokers
from ottla.controller.tree import znodes
from ottla.controller.tree.embedded_store import EmbeddedStore
from ottla.controller.tree.znodes_admin import decode_deleted_topic_ids
from ottla.protocol.uuids import uuid_to_string
from tests.doubles.controller_cluster import broker_info


@pytest.fixture
async def store() -> EmbeddedStore:
    made = EmbeddedStore()
    await made.connect()
    return made


async def remember(deleted: DeletedTopics, store: EmbeddedStore, topic: str, epoch: int) -> None:
    await deleted.prepare(store)
    await store.multi(deleted.record(topic, epoch))
    deleted.recorded()


async def test_topics_never_deleted_begin_with_zero(store: EmbeddedStore) -> None:
    deleted = DeletedTopics()
    await deleted.load(store)
    assert deleted.first_epoch("t") == 0


async def test_a_name_begins_above_its_highest_epoch(store: EmbeddedStore) -> None:
    deleted = DeletedTopics()
    await deleted.load(store)
    await remember(deleted, store, "t", 7)
    await remember(deleted, store, "t", 3)  # a later life that ended lower
    await remember(deleted, store, "u", 0)
    for each in (deleted, DeletedTopics()):
        await each.load(store)
        assert each.first_epoch("t") == 8
        assert each.first_epoch("u") == 1
        assert each.first_epoch("other") == 0


async def test_forgotten_names_raise_the_floor(
    store: EmbeddedStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(deleted_topics, "MAX_NAMES", 2)
    deleted = DeletedTopics()
    await deleted.load(store)
    for topic, epoch in (("a", 9), ("b", 4), ("c", 5), ("d", 1)):
        await remember(deleted, store, topic, epoch)
    again = DeletedTopics()
    await again.load(store)
    for each in (deleted, again):
        assert each.first_epoch("a") == 10
        assert each.first_epoch("b") == 10
        assert each.first_epoch("c") == 10  # remembered as 5, but the floor is higher
        assert each.first_epoch("never there") == 10


@pytest.mark.parametrize("data", [b"{", b'{"version":1,"floor":3000000000}'])
async def test_a_damaged_znode_counts_as_empty_and_is_replaced(
    store: EmbeddedStore, data: bytes
) -> None:
    deleted = DeletedTopics()
    await remember(deleted, store, "t", 7)
    await store.set(znodes.DELETED_TOPICS, data)
    await deleted.load(store)
    assert deleted.first_epoch("t") == 0
    await remember(deleted, store, "u", 3)
    again = DeletedTopics()
    await again.load(store)
    assert (again.first_epoch("u"), again.first_epoch("t")) == (4, 0)


async def test_the_ids_of_deleted_topics_are_evidence(store: EmbeddedStore) -> None:
    deleted = DeletedTopics()
    await deleted.load(store)
    await deleted.prepare(store)
    ids = [bytes([number] * 16) for number in range(1, 6)]
    for topic_id in [*ids, ids[-1]]:
        await store.multi(deleted.record("t", 1, topic_id))
        deleted.recorded()
    await store.multi(deleted.record("u", 1, ids[0], by_controller=False))
    again = DeletedTopics()
    await again.load(store)
    await store.multi(again.record("v", 1, None))
    data, _ = await store.get(znodes.DELETED_TOPICS)
    kept = {"t": tuple(uuid_to_string(each) for each in ids[-3:])}
    assert decode_deleted_topic_ids(data) == (kept, {"u": (uuid_to_string(ids[0]),)})
    assert decode_deleted_topic_ids(b"") == ({}, {})


async def test_the_oldest_names_are_forgotten_before_the_znode_is_too_large(
    store: EmbeddedStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(deleted_topics, "MAX_BYTES", 1000)
    deleted = DeletedTopics()
    await deleted.load(store)
    await deleted.prepare(store)
    for number in range(50):
        await store.multi(deleted.record(f"topic{number}", number, bytes([number] * 16)))
        deleted.recorded()
    data, _ = await store.get(znodes.DELETED_TOPICS)
    assert len(data) <= 1000
    assert list(decode_deleted_topic_ids(data)[0])[-1] == "topic49"
    assert deleted.first_epoch("topic0") > 30, "by the floor"


@pytest.fixture
async def writer() -> FencedWriter:
    store = EmbeddedStore()
    await store.connect()
    await store.create(znodes.CONTROLLER_EPOCH, b"3")
    made = FencedWriter(store)
    made.set_epoch(3, 0)
    return made


async def test_a_later_controller_reads_them(writer: FencedWriter) -> None:
    brokers = {each: broker_info(each)._replace(epoch=10 * each) for each in (2, 1)}
    processed = ProcessedBrokers(writer)
    assert await processed.load() is None
    await processed.save(brokers)
    del brokers[1]
    await processed.save(brokers)
    assert await ProcessedBrokers(writer).load() == {2: 20}


async def test_a_stale_controller_stores_nothing(writer: FencedWriter) -> None:
    await writer.store.set(znodes.CONTROLLER_EPOCH, b"4")
    with pytest.raises(ControllerMoved):
        await ProcessedBrokers(writer).save({})
    assert await writer.store.exists(znodes.PROCESSED_BROKERS) is None


async def test_a_malformed_znode_is_unknown(
    writer: FencedWriter, caplog: pytest.LogCaptureFixture
) -> None:
    await writer.set_or_create(znodes.PROCESSED_BROKERS, b"{]")
    with caplog.at_level(logging.ERROR):
        assert await ProcessedBrokers(writer).load() is None
    assert "Ignoring the processed registrations" in caplog.text
