"""What the console shows of records: transactions, gaps, damage, and the bounds of a look."""

from __future__ import annotations

import http.server
import io
import json
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from typing import ClassVar

import fastavro
import pytest
from confluent_kafka import Producer

from ottla.broker.observability.console import browse, follow, record_views
from ottla.broker.observability.console.record_views import MAX_SHOWN_BYTES
from ottla.testing import Broker
from tests.doubles.console_client import ConsoleClient

SECONDS = 60.0


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    with Broker(ottla_console_enable=True, ottla_metrics_address="127.0.0.1:0") as running:
        yield running


@pytest.fixture
def page(broker: Broker) -> ConsoleClient:
    return ConsoleClient(broker.server.metrics_port)


def produce(broker: Broker, topic: str, count: int, padding: int = 0, **settings: object) -> None:
    producer = Producer({"bootstrap.servers": broker.bootstrap, **settings})
    for number in range(count):
        producer.produce(topic, f"value {number}{' ' * padding}")
    assert producer.flush(SECONDS) == 0


def offsets(found: dict[str, list[dict[str, int]]]) -> list[int]:
    return [row["offset"] for row in found["records"]]


def test_markers_of_transactions_are_no_records(broker: Broker, page: ConsoleClient) -> None:
    producer = Producer({"bootstrap.servers": broker.bootstrap, "transactional.id": "writer"})
    producer.init_transactions(SECONDS)
    for number in range(3):
        producer.begin_transaction()
        producer.produce("transactions", f"value {number}")
        producer.commit_transaction(SECONDS)
    # Every second offset is a marker.
    found = page.get("messages?topic=transactions&offset=0")
    assert offsets(found) == [0, 2, 4]
    assert found["at_end"]
    assert offsets(page.get("messages?topic=transactions&limit=2")) == [2, 4]
    # A look that begins at a marker continues behind it.
    assert offsets(page.get("messages?topic=transactions&offset=1&limit=1")) == [2]


@pytest.mark.parametrize("codec", ["none", "gzip", "snappy", "lz4", "zstd"])
def test_compressed_records_are_searched(broker: Broker, page: ConsoleClient, codec: str) -> None:
    topic = f"compressed-{codec}"
    produce(broker, topic, 500, **{"compression.type": codec})
    found = page.get(f"messages?topic={topic}&offset=0&value=value%20499")
    assert offsets(found) == [499]
    assert found["scanned"] == 500


def test_a_look_is_bounded_and_says_how_far_it_came(
    broker: Broker, page: ConsoleClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    produce(broker, "long", 3000, 200, **{"batch.num.messages": 100})
    monkeypatch.setattr(browse, "MAX_SCANNED", 1000)
    monkeypatch.setattr(browse, "FETCH_BYTES", 64 << 10)
    position, scanned, looks = 0, 0, 0
    while True:
        found = page.get(f"messages?topic=long&partition=0&offset={position}&value=value%202999")
        scanned += found["scanned"]
        looks += 1
        position = found["partitions"][0]["next"]
        if found["at_end"]:
            break
        assert offsets(found) == []
    assert offsets(found) == [2999]
    assert (scanned, looks > 1) == (3000, True)


def test_offsets_outside_of_the_log(broker: Broker, page: ConsoleClient) -> None:
    produce(broker, "few", 5)
    assert offsets(page.get("messages?topic=few&offset=99")) == []
    assert offsets(page.get("messages?topic=few&time=99999999999999")) == []
    assert offsets(page.get("messages?topic=few&time=0")) == [0, 1, 2, 3, 4]


def test_views_of_records(broker: Broker, page: ConsoleClient) -> None:
    producer = Producer({"bootstrap.servers": broker.bootstrap})
    for value in (b'{"a": 1}', b"\xff\x00", b"\x00\x00\x00\x00\x07" + b'{"b": 2}'):
        producer.produce("views", value, "key")
    producer.flush(SECONDS)

    def seen(view: str) -> list[tuple[str, str]]:
        rows = page.get(f"messages?topic=views&offset=0&view={view}")["records"]
        return [(row["value"]["kind"], row["value"]["text"]) for row in rows]

    assert seen("auto") == [
        ("JSON", '{"a": 1}'),
        ("bytes", "ff 00"),
        ("schema 7, JSON", '{"b": 2}'),
    ]
    assert seen("text")[1] == ("text", "�\x00")
    assert seen("json")[1] == ("bytes, not JSON", "ff 00")
    assert seen("bytes")[0] == ("bytes", "7b 22 61 22 3a 20 31 7d")
    # Without a registry nothing is Avro.
    assert seen("avro")[0] == ("JSON, not Avro", '{"a": 1}')
    status, found = page.send("GET", "messages?topic=views&view=xml")
    assert (status, "view is not one of auto" in found["error"]) == (400, True)


def test_a_download_has_whole_records_of_the_filter(broker: Broker, page: ConsoleClient) -> None:
    producer = Producer({"bootstrap.servers": broker.bootstrap})
    long = "x" * (3 * MAX_SHOWN_BYTES)
    for number in range(6):
        producer.produce("saved", f"{number} {long}", b"\xff", headers={"trace": b"1"})
    producer.flush(SECONDS)
    found = page.get("download?topic=saved&offset=0&value=3%20x")
    (line,) = found["text"].splitlines()
    assert json.loads(line) == {
        "topic": "saved",
        "partition": 0,
        "offset": 3,
        "timestamp": json.loads(line)["timestamp"],
        "key": {"base64": "/w=="},
        "value": f"3 {long}",
        "headers": [["trace", "1"]],
    }
    assert (found["records"], found["is_cut"]) == (1, False)
    newest = page.get("download?topic=saved&limit=2")
    assert [json.loads(each)["offset"] for each in newest["text"].splitlines()] == [4, 5]
    assert newest["is_cut"]


def test_a_value_that_is_too_long_for_a_file(
    broker: Broker, page: ConsoleClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    produce(broker, "huge", 1, 2000)
    monkeypatch.setattr(record_views, "MAX_WHOLE_BYTES", 1000)
    found = page.get("download?topic=huge")
    (line,) = found["text"].splitlines()
    assert json.loads(line)["value"] == {"omitted_bytes": 2007}
    assert found["omitted"] == {"values": 1, "bytes": 2007}
    monkeypatch.setattr(record_views, "MAX_WHOLE_BYTES", 2007)
    assert page.get("download?topic=huge")["omitted"] == {"values": 0, "bytes": 0}


def test_partitions_that_are_not_read_are_named(
    broker: Broker, page: ConsoleClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    broker.create_topic("wide", partitions=5)
    monkeypatch.setattr(browse, "MAX_PARTITIONS", 3)
    for path in ("messages?topic=wide", "download?topic=wide"):
        assert "Only the first 3 of 5 partitions are read" in page.get(path)["problems"][0]
    assert page.get("messages?topic=wide&partition=4")["problems"] == []


def test_a_download_is_bounded(
    broker: Broker, page: ConsoleClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    produce(broker, "big", 50, 10_000)
    monkeypatch.setattr(browse, "MAX_DOWNLOADED_BYTES", 100_000)
    for start in ("offset=0", "offset=-1"):
        found = page.get(f"download?topic=big&{start}")
        assert found["is_cut"]
        assert len(found["text"]) < 130_000
        assert found["records"] >= 9


def test_records_are_followed_as_they_arrive(broker: Broker, page: ConsoleClient) -> None:
    produce(broker, "followed", 3)
    newest = page.get("messages?topic=followed")
    at = ",".join(f"{each['partition']}:{each['next']}" for each in newest["partitions"])
    ask = "follow?topic=followed&follower=one&value=value&at="
    empty = page.get(f"{ask}{at}")  # after a while, as there is nothing
    assert empty["records"] == []
    timer = threading.Timer(0.5, produce, (broker, "followed", 2))
    timer.start()
    found = page.get(f"{ask}{at}")
    timer.join()
    while len(found["records"]) < 2:
        next_at = f"0:{found['partitions'][0]['next']}"
        found["records"] += page.get(f"{ask}{next_at}")["records"]
    assert offsets(found) == [3, 4]
    # From a position that is no longer, or not yet, in the log it goes on at the nearest.
    assert offsets(page.get(f"{ask}0:99")) == []
    for wrong in ("", "0", "0:x", "1" * 11 + ":0"):
        assert page.send("GET", f"{ask}{wrong}")[0] == 400, wrong


def test_only_so_many_pages_follow(
    broker: Broker, page: ConsoleClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    produce(broker, "crowded", 1)
    monkeypatch.setattr(follow, "MAX_FOLLOWERS", 2)
    monkeypatch.setattr(follow, "IDLE_SECONDS", 1.0)
    ask = "follow?topic=crowded&at=0:0&follower="
    time.sleep(1.1)  # pages of other tests are gone
    page.get(f"{ask}one")
    page.get(f"{ask}two")
    status, found = page.send("GET", f"{ask}three")
    assert (status, "2 pages follow records" in found["error"]) == (429, True)
    page.get(f"{ask}one")  # who has a place keeps it
    time.sleep(1.1)
    page.get(f"{ask}three")  # who left has none
    page.get(f"{ask}four")
    monkeypatch.setattr(follow, "IDLE_SECONDS", 60.0)
    assert page.send("GET", f"{ask}five")[0] == 429
    page.get("unfollow?follower=four")  # and who says so, at once
    page.get(f"{ask}five")
    page.get("unfollow?follower=unknown")
    for each in ("three", "five"):
        page.get(f"unfollow?follower={each}")
    assert page.send("GET", f"{ask}{'x' * 65}")[0] == 400


class Registry(http.server.BaseHTTPRequestHandler):
    """Schemas by id; number 5 does not end, 6 leads elsewhere."""

    protocol_version = "HTTP/1.1"
    asked: ClassVar[list[tuple[str, str | None]]] = []
    schemas: ClassVar[dict[int, dict[str, object]]] = {}

    def do_GET(self) -> None:
        self.asked.append((self.path, self.headers["Authorization"]))
        number = int(self.path.rpartition("/")[2])
        if number == 5:
            self.send_response(200)
            self.end_headers()
            with suppress(OSError):
                while True:
                    self.wfile.write(b" " * 10)
                    time.sleep(0.1)
        found = self.schemas.get(number)
        body = json.dumps(found or {}).encode()
        self.send_response(302 if number == 6 else 200 if found else 404)
        self.send_header("Location", "/schemas/ids/1")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Nothing."""


def test_avro_is_decoded_by_the_registry() -> None:
    tags = {"type": "array", "items": "string"}
    fields = [{"name": "id", "type": "long"}, {"name": "tags", "type": tags}]
    order = {"type": "record", "name": "Order", "fields": fields}
    Registry.schemas = {
        1: {"schema": json.dumps(order)},
        2: {"schema": json.dumps({"type": "array", "items": "null"})},
        3: {"schema": "{}", "schemaType": "PROTOBUF"},
    }
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Registry)
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, daemon=True).start()
    settings = {
        "ottla_console_schema_registry_url": f"http://127.0.0.1:{server.server_port}/api/",
        "ottla_console_schema_registry_user_info": "me:secret",
    }
    try:
        with Broker(
            ottla_console_enable=True, ottla_metrics_address="127.0.0.1:0", **settings
        ) as own:
            producer = Producer({"bootstrap.servers": own.bootstrap})
            data = io.BytesIO()
            fastavro.schemaless_writer(data, order, {"id": 7, "tags": ["ü"]})
            framed = [(number).to_bytes(5) + data.getvalue() for number in range(1, 7)]
            for value in [*framed, (1).to_bytes(5) + b"\xff", b"text"]:
                producer.produce("avro", value)
            producer.flush(SECONDS)
            page = ConsoleClient(own.server.metrics_port)
            found = page.get("messages?topic=avro&offset=0")
            values = [row["value"] for row in found["records"]]
            assert values[0]["kind"] == "Avro, schema 1"
            assert json.loads(values[0]["text"]) == {"id": 7, "tags": ["ü"]}
            assert [each["kind"].split(" ")[0] for each in values[1:]] == [
                *["bytes"] * 6, "text"
            ]  # fmt: skip
            # It may be any bytes that begin so: no reason to call the page incomplete.
            assert values[3]["note"] == "not decoded: the registry has no schema 4"
            said = " ".join(found["problems"])
            assert "schema 4" not in said
            for text in (
                "schema 2 is not decoded: it has an array of items without bytes",
                "schema 3 is not decoded: it is of the type PROTOBUF",
                "schema 5 is not decoded: the registry did not respond in 2 s",
                "schema 1 is not decoded: a record does not have this schema",
            ):
                assert text in said, said
            assert ("/api/schemas/ids/1", "Basic bWU6c2VjcmV0") in Registry.asked
            before = len(Registry.asked)
            assert page.get("messages?topic=avro&offset=0&view=text")["problems"] == []
            page.get("messages?topic=avro&offset=0&partition=0")
            assert len(Registry.asked) == before  # kept, the failures for a while
    finally:
        server.shutdown()
        server.server_close()


@pytest.mark.parametrize(
    "url", ["registry:8081", "ftp://registry", "http://", "http://me:secret@registry", "http://a:b"]
)
def test_a_registry_without_a_good_url_does_not_start(url: str) -> None:
    with (
        pytest.raises(Exception, match=r"ottla\.console\.schema\.registry\.url"),
        Broker(
            ottla_console_enable=True,
            ottla_metrics_address="127.0.0.1:0",
            ottla_console_schema_registry_url=url,
        ),
    ):
        pass
