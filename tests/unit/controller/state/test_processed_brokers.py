"""Which registrations of brokers a controller has processed."""

from __future__ import annotations

import logging

import pytest

from ottla.controller.errors import ControllerMoved
from ottla.controller.state.fenced_writes import FencedWriter
from ottla.controller.state.processed_brokers import ProcessedBrokers
from ottla.controller.tree import znodes
from ottla.controller.tree.embedded_store import EmbeddedStore
from tests.doubles.controller_cluster import broker_info


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
