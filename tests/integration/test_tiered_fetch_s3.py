"""Consumers read tiered segments from an S3 server whose requests fail."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from ottla.testing import Broker
from tests.doubles.eventually import eventually
from tests.doubles.object_stores import object_store
from tests.doubles.s3_server import Fault, S3Server
from tests.integration.test_tiered_fetch import (
    consume,
    create,
    produce,
    settings,
    wait_until_tiered,
)

FAULTS = [Fault.UNAVAILABLE, Fault.TRUNCATED, None, Fault.LOST, Fault.CORRUPT, None]


@pytest.fixture(scope="module")
def s3() -> Iterator[S3Server]:
    with object_store() as server:
        yield server


def test_a_consumer_gets_all_records_in_spite_of_faults(s3: S3Server) -> None:
    store = s3.settings(**{"chunk.size": "8192", "fetch.chunk.cache.size": "0"})
    with Broker(**settings(store)) as broker:
        create(broker, "faulty")
        sent = produce(broker, "faulty", 1_000)
        wait_until_tiered(broker, "faulty")
        s3.faults = [fault for _ in range(8) for fault in FAULTS]
        assert consume(broker, "faulty", len(sent)) == sent
        s3.faults = []
        fetches = broker.server.parts.replica_manager.remote_fetches
        assert fetches is not None
        assert fetches.reader.statistics.total("read_bytes") > 0
        eventually(lambda: fetches.reader.pending == 0)
