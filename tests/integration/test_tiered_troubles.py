"""A broker process whose store denies access, is away, or has lost or changed an object: consumers
wait, nothing leaves the local disk, and both continue when the store works again."""

from __future__ import annotations

import urllib.request
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import NamedTuple

import pytest
from confluent_kafka import Consumer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from ottla.cli.zookeeper_server import free_port
from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages.fetch import FetchPartition, FetchRequest, FetchResponse, FetchTopic
from tests.doubles.alert_rules import fires, rules, samples
from tests.doubles.broker_process import BrokerProcess, start_broker
from tests.doubles.eventually import eventually
from tests.doubles.s3_server import Fault, S3Server, s3_server
from tests.doubles.tiered_topics import TIERED_TOPIC, folder_settings, produce, tiered_settings
from tests.doubles.wire import Wire

TOPIC = "history"
BEFORE, DURING = 8, 4
FETCH_VERSION = 12


class Trouble(NamedTuple):
    """`begin` returns what ends it."""

    store: dict[str, str]
    begin: Callable[[], Callable[[], object]]
    #: What the one line of the log says.
    sentence: str
    #: Whether copies fail, too.
    stops_copies: bool


def _of_s3(s3: S3Server, fault: Fault, sentence: str, **settings: str) -> Trouble:
    def begin() -> Callable[[], object]:
        s3.faults = [fault] * 100_000
        return s3.faults.clear

    store = s3.settings(**{"fetch.chunk.cache.size": "0", **settings})
    return Trouble(store, begin, sentence, stops_copies=True)


@contextmanager
def denied(_: Path) -> Iterator[Trouble]:
    with s3_server() as s3:
        yield _of_s3(
            s3, Fault.DENIED, "the store denies access (403 Forbidden). Check the credentials"
        )


@contextmanager
def unavailable(_: Path) -> Iterator[Trouble]:
    with s3_server() as s3:
        # Reads are given up soon, and not before a request on a busy machine has its response.
        limit = {"storage.s3.api.call.timeout": "2000"}
        yield _of_s3(s3, Fault.UNAVAILABLE, "Cannot read the object ", **limit)


@contextmanager
def away(path: Path) -> Iterator[Trouble]:
    store, hidden = path / "store", path / "hidden"
    store.mkdir()

    def begin() -> Callable[[], object]:
        store.rename(hidden)
        store.touch()  # nothing can be written there, as below a mount point that is read-only

        def end() -> None:
            store.unlink()
            hidden.rename(store)

        return end

    yield Trouble(folder_settings(store), begin, "does not exist", stops_copies=True)


@contextmanager
def _damaged(path: Path, change: Callable[[Path], object], sentence: str) -> Iterator[Trouble]:
    store = path / "store"
    store.mkdir()

    def begin() -> Callable[[], object]:
        found = sorted(store.glob(f"{TOPIC}-*/0/*.log"))[BEFORE // 2]
        good, copy = found.read_bytes(), found.with_name("copy")
        change(found)

        def end() -> None:
            copy.write_bytes(good)
            copy.rename(found)

        return end

    yield Trouble(folder_settings(store), begin, sentence, stops_copies=False)


@contextmanager
def missing(path: Path) -> Iterator[Trouble]:
    with _damaged(path, Path.unlink, "does not exist") as trouble:
        yield trouble


def _flip(path: Path) -> None:
    good = path.read_bytes()
    half = len(good) // 2
    path.write_bytes(good[:half] + bytes([good[half] ^ 1]) + good[half + 1 :])


@contextmanager
def corrupt(path: Path) -> Iterator[Trouble]:
    with _damaged(path, _flip, "has a wrong checksum") as trouble:
        yield trouble


class Scrapes:
    """What Prometheus sees of the broker."""

    def __init__(self, port: int) -> None:
        self._url = f"http://127.0.0.1:{port}/metrics"

    def read_errors(self) -> float:
        """The sum of which `OttlaRemoteReadsFail` takes the increase."""
        found = [
            value
            for name, labels, value in self._samples()
            if name == "ottla_remote_read_errors_total" and labels["topic"] == TOPIC
        ]
        return sum(found)

    def says_that_storage_fails(self) -> bool:
        return fires(rules()["OttlaRemoteStorageFails"], self._samples())

    def _samples(self) -> list[tuple[str, dict[str, str], float]]:
        with urllib.request.urlopen(self._url, timeout=30) as response:
            return samples(response.read().decode())


def _error_of_a_fetch(broker: BrokerProcess, offset: int) -> int:
    row = FetchPartition(partition=0, fetch_offset=offset, partition_max_bytes=1 << 20)
    topics = [FetchTopic(topic=TOPIC, partitions=[row])]
    request = FetchRequest(max_wait_ms=500, min_bytes=1, max_bytes=1 << 20, topics=topics)
    with Wire(broker.bootstrap) as wire:
        response = wire.ask(request, FETCH_VERSION)
    assert isinstance(response, FetchResponse)
    [partition] = response.responses[0].partitions
    assert partition.error_code == 0 or not partition.records
    return partition.error_code


@pytest.mark.parametrize("kind", [denied, unavailable, away, missing, corrupt])
def test_consumers_wait_and_nothing_is_lost(
    tmp_path: Path, kind: Callable[[Path], AbstractContextManager[Trouble]]
) -> None:
    port = free_port()
    with kind(tmp_path) as trouble:
        settings = {
            **{name: str(value).lower() for name, value in tiered_settings(trouble.store).items()},
            "remote_fetch_max_wait_ms": "20000",
            "ottla_metrics_address": f"127.0.0.1:{port}",
        }
        with start_broker(tmp_path, **settings) as broker:
            _check(broker, trouble, Scrapes(port))


def _check(broker: BrokerProcess, trouble: Trouble, scrapes: Scrapes) -> None:
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    config = {name: str(value).lower() for name, value in TIERED_TOPIC.items()}
    admin.create_topics([NewTopic(TOPIC, 1, 1, config=config)])[TOPIC].result(60)
    produce(broker.bootstrap, TOPIC, BEFORE)

    def local_segments() -> int:
        return len(list((broker.data_directory / f"{TOPIC}-0").glob("*.log")))

    eventually(lambda: local_segments() == 1)
    assert scrapes.read_errors() == 0
    end = trouble.begin()
    produce(broker.bootstrap, TOPIC, DURING)

    found: list[bytes] = []
    consumer = Consumer(
        {
            "bootstrap.servers": broker.bootstrap,
            "group.id": "g",
            "auto.offset.reset": "error",
            "fetch.error.backoff.ms": 20,
            "check.crcs": True,
        }
    )
    consumer.assign([TopicPartition(TOPIC, 0, 0)])

    def consume() -> None:
        for message in consumer.consume(100, 0.1):
            assert message.error() is None, message.error()
            assert message.offset() == len(found)
            found.append(message.value())

    def has_failed_often() -> bool:
        consume()
        return scrapes.read_errors() > 3

    eventually(has_failed_often, lambda: f"{scrapes.read_errors()} errors, {len(found)} records")
    expected = [b"%1000d" % number for number in (*range(BEFORE), *range(DURING))]
    assert found == expected[: len(found)]
    assert len(found) < BEFORE, "what the store does not return is not skipped"
    assert _error_of_a_fetch(broker, len(found)) == ErrorCode.KAFKA_STORAGE_ERROR
    if trouble.stops_copies:
        eventually(scrapes.says_that_storage_fails)
        assert local_segments() == 1 + DURING, "they stay beyond the local retention"

    end()

    def has_all() -> bool:
        consume()
        return len(found) == len(expected)

    eventually(has_all, lambda: f"{len(found)} of {len(expected)} records")
    consumer.close()
    assert found == expected
    eventually(lambda: local_segments() == 1, "what could not be copied is copied, and deleted")
    eventually(lambda: not scrapes.says_that_storage_fails())
    lines = [line for line in broker.log().splitlines() if "Cannot read offset " in line]
    assert len(lines) == 1, lines
    assert f"of partition {TOPIC}-0 from remote storage, clients retry: " in lines[0]
    assert trouble.sentence in lines[0]


def test_a_store_without_responses_holds_nothing_else(tmp_path: Path) -> None:
    """A server that accepts connections and requests: topics are created and deleted, local
    records are read, and the broker stops."""
    with s3_server() as s3:
        store = s3.settings(**{"fetch.chunk.cache.size": "0"})
        store = {name: text for name, text in store.items() if "timeout" not in name}
        settings = {name: str(value).lower() for name, value in tiered_settings(store).items()}
        with start_broker(tmp_path, **settings) as broker:
            admin = AdminClient({"bootstrap.servers": broker.bootstrap})
            config = {name: str(value).lower() for name, value in TIERED_TOPIC.items()}
            names = [f"{TOPIC}-{number}" for number in range(3)]
            topics = [NewTopic(name, 1, 1, config=config) for name in names]
            for future in admin.create_topics(topics).values():
                future.result(60)
            for name in names:
                produce(broker.bootstrap, name, BEFORE)
                directory = broker.data_directory / f"{name}-0"
                eventually(lambda directory=directory: len(list(directory.glob("*.log"))) == 1)
            s3.faults = [Fault.STALLED] * 100_000
            for name in names:
                produce(broker.bootstrap, name, DURING)
                consumer = Consumer({"bootstrap.servers": broker.bootstrap, "group.id": name})
                consumer.assign([TopicPartition(name, 0, 0)])
                assert consumer.consume(1, 0.2) == []
                consumer.assign([TopicPartition(name, 0, BEFORE + DURING - 1)])
                (message,) = consumer.consume(1, 60)
                assert message.offset() == BEFORE + DURING - 1
                consumer.close()
            admin.delete_topics(names[:1])[names[0]].result(60)
            admin.create_topics([NewTopic("other", 1, 1)])["other"].result(60)
            broker.stop()
            assert "stopped cleanly" in broker.log()
            s3.faults.clear()
