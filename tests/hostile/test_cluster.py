"""Clients without rights do not part a leader from its follower, nor a broker from ZooKeeper."""

from __future__ import annotations

import threading
import urllib.request
from collections.abc import Iterator

import pytest
from confluent_kafka import Producer

from ottla.broker.requests.bulk_requests import MAX_AT_ONCE
from ottla.protocol.registry import API, ApiKey
from tests.doubles.eventually import eventually
from tests.hostile.cluster import TOPIC, HostileCluster, hostile_cluster
from tests.hostile.malicious_requests import shapes
from tests.hostile.raw_client import RawClient

# Far more than are handled at once; some tenths of a second for each request.
ELEMENTS = 15_000
# Of different addresses, two more than are served at the same time.
ATTACKERS = MAX_AT_ONCE + 2
# Produced during the attack; each needs a fetch of the follower.
RECORDS = 30


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[HostileCluster]:
    with hostile_cluster(tmp_path_factory.mktemp("cluster")) as started:
        yield started


class Attackers:
    """Threads that send bulk requests to the leader, one after the other, until the end."""

    def __init__(self, port: int, frame: bytes) -> None:
        self.responses = 0
        self._port = port
        self._frame = frame
        self._is_over = threading.Event()
        self._threads = [
            threading.Thread(target=self._attack, args=(f"127.0.1.{number}",))
            for number in range(1, ATTACKERS + 1)
        ]

    def __enter__(self) -> Attackers:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._is_over.set()
        for thread in self._threads:
            thread.join()

    def _attack(self, host: str) -> None:
        client = RawClient(self._port, host)
        while not self._is_over.is_set():
            client.send(self._frame)
            assert client.receive() > 0
            self.responses += 1
        client.close()


def test_bulk_requests_leave_the_follower_in_sync_and_the_session_alone(
    cluster: HostileCluster,
) -> None:
    before = cluster.observe()
    assert len(before.sessions) == 2
    (shape,) = [
        each for each in shapes(API[ApiKey.METADATA], 1, ELEMENTS) if each.name == "topics distinct"
    ]
    producer = Producer(cluster.config | {"acks": "all", "linger.ms": "0"})
    errors: list[object] = []
    with Attackers(cluster.open_port, shape.frame):
        eventually(
            lambda: cluster.metric("ottla_bulk_requests_in_progress") == MAX_AT_ONCE,
            "there is no attack",
            seconds=60,
        )
        for _ in range(RECORDS):
            producer.produce(TOPIC, b"x" * 1000, on_delivery=lambda error, _: errors.append(error))
            assert producer.flush(60) == 0
        for url in cluster.urls.values():
            with urllib.request.urlopen(f"{url}/readyz", timeout=60) as response:
                assert response.status == 200
        during = cluster.observe()
        # The attack continues.
        bulk = cluster.metric("ottla_bulk_requests")
        eventually(
            lambda: cluster.metric("ottla_bulk_requests") > bulk, "no request ends", seconds=60
        )
    assert errors == [None] * RECORDS
    assert during == before
    assert cluster.observe() == before
