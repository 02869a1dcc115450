"""What a user does first: write records with a real client and read the same ones back."""

import pytest

from tests.compat.clients.model import Client, Outgoing

PARTITIONS = 3


def records(count: int) -> list[Outgoing]:
    """Keys, values and headers with every awkward case: null, empty, non-ASCII, repeated."""
    made = []
    for number in range(count):
        key = None if number % 5 == 0 else f"key-{number % 7}".encode()
        value = None if key is not None and number % 11 == 0 else b"v%d-" % number + b"x" * 40
        headers = [("n", b"%d" % number), ("n", b"again"), ("empty", b""), ("grüße", b"\x00\xff")]
        made.append(Outgoing(key, value, headers if number % 3 else [], number % PARTITIONS))
    return made


def check_round_trip(
    client: Client, bootstrap: str, topic: str, count: int, **options: object
) -> None:
    client.create_topic(bootstrap, topic, PARTITIONS)
    sent = records(count)
    client.produce(bootstrap, topic, sent, **options)  # type: ignore[arg-type]
    rows = client.consume(bootstrap, topic, PARTITIONS, count)
    for partition in range(PARTITIONS):
        expected = [record for record in sent if record.partition == partition]
        got = sorted(
            (row for row in rows if row.partition == partition), key=lambda row: row.offset
        )
        assert [row.offset for row in got] == list(range(len(expected)))
        assert [(row.key, row.value, row.headers) for row in got] == [
            (record.key, record.value, record.headers) for record in expected
        ]


@pytest.mark.parametrize("acks", ["0", "1", "all"])
def test_acks(client: Client, bootstrap: str, topic: str, acks: str) -> None:
    check_round_trip(client, bootstrap, topic, 120, acks=acks)


@pytest.mark.parametrize("codec", ["gzip", "snappy", "lz4", "zstd"])
def test_codec(client: Client, bootstrap: str, topic: str, codec: str) -> None:
    check_round_trip(client, bootstrap, topic, 600, compression=codec)


def test_idempotent_producer(client: Client, bootstrap: str, topic: str) -> None:
    check_round_trip(client, bootstrap, topic, 600, idempotent=True)


def test_topic_created_by_the_first_record(client: Client, bootstrap: str, topic: str) -> None:
    client.produce(bootstrap, topic, [Outgoing(b"k", b"v", [])])
    rows = client.consume(bootstrap, topic, 1, 1)
    assert [(row.key, row.value, row.offset) for row in rows] == [(b"k", b"v", 0)]


def test_large_record(client: Client, bootstrap: str, topic: str) -> None:
    client.create_topic(bootstrap, topic, 1)
    value = bytes(range(256)) * 3000  # 768,000 bytes: under every client's and broker's default
    client.produce(bootstrap, topic, [Outgoing(None, value, [])])
    rows = client.consume(bootstrap, topic, 1, 1)
    assert rows[0].value == value
