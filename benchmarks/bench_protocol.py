"""`make bench-protocol`, the messages: our codecs beside those of kio and kafka-python.

Every rival decodes the same bytes and encodes the object that it decoded from them, so all do the
same work. A figure is the best of several rounds: on a shared machine the fastest round is the one
that was disturbed least. A line is one `Comparison`; add more to `comparisons()`.
"""

import argparse
import io
import timeit
from collections.abc import Callable
from pkgutil import resolve_name
from typing import Any, NamedTuple

from kafka.protocol.consumer import FetchResponse as KafkaPythonFetchResponse
from kafka.protocol.metadata import MetadataResponse as KafkaPythonMetadataResponse
from kafka.protocol.producer import ProduceRequest as KafkaPythonProduceRequest
from kio.schema.index import schema_name_map
from kio.serial import entity_reader, entity_writer
from kio.static.constants import EntityType
from rich.console import Console
from rich.table import Table

from ottla.protocol import codec
from ottla.protocol.headers import decode_request, encode_request, encode_response
from ottla.protocol.message import Message
from ottla.protocol.messages.fetch import FetchableTopicResponse, FetchResponse, PartitionData
from ottla.protocol.messages.metadata import (
    MetadataResponse,
    MetadataResponseBroker,
    MetadataResponsePartition,
    MetadataResponseTopic,
)
from ottla.protocol.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from ottla.protocol.registry import ApiKey

TOPIC_ID = bytes(range(16))
RECORDS = bytes(1000)
ROUNDS = 7

Operation = Callable[[], object]


class Comparison(NamedTuple):
    """One line of the table; an operation is None where a library has nothing like it."""

    name: str
    ours: Operation
    kio: Operation | None
    kafka_python: Operation | None


class FilePart:
    """Stands for a part of a log segment, which the encoder passes on."""

    def __len__(self) -> int:
        return len(RECORDS)


def produce_request() -> ProduceRequest:
    partition = PartitionProduceData(0, RECORDS)
    return ProduceRequest(None, -1, 30_000, [TopicProduceData("orders", [partition])])


def fetch_response(version: int, partitions: int, records: Any = RECORDS) -> FetchResponse:
    rows = [
        PartitionData(index, 0, 1000, 1000, 0, aborted_transactions=None, records=records)
        for index in range(partitions)
    ]
    topic = FetchableTopicResponse(partitions=rows)
    if version >= 13:
        topic.topic_id = TOPIC_ID
    else:
        topic.topic = "orders"
    return FetchResponse(session_id=7, responses=[topic])


def metadata_response(partitions: int) -> MetadataResponse:
    brokers = [MetadataResponseBroker(node, f"broker-{node}", 9092) for node in range(3)]
    rows = [
        MetadataResponsePartition(0, index, index % 3, 5, [0, 1, 2], [0, 1, 2], [])
        for index in range(partitions)
    ]
    topic = MetadataResponseTopic(0, "orders", TOPIC_ID, partitions=rows)
    return MetadataResponse(0, brokers, "cluster", 1, [topic])


def kio_class(name: str, version: int, kind: EntityType) -> Any:
    return resolve_name(schema_name_map[name][version][kind])


def decode_line(message: Message, version: int, kio_name: str, rival: Any) -> Comparison:
    cls = type(message)
    data = codec.encoder(cls, version)(message)
    buffer = bytearray(data)  # what the network hands over
    decode = codec.decoder(cls, version)
    kio_read = entity_reader(kio_class(kio_name, version, EntityType.request))
    view = memoryview(data)
    return Comparison(
        f"{message.NAME} v{version} decode, 1 topic and partition",
        lambda: decode(buffer, 0),
        lambda: kio_read(data, 0),
        (lambda: rival.decode(view, version=version)) if version <= rival.max_version else None,
    )


def encode_line(message: Message, version: int, kio_name: str, rival: Any, what: str) -> Comparison:
    cls = type(message)
    encode = codec.encoder(cls, version)
    data = encode(message)
    kio_type = kio_class(kio_name, version, EntityType.response)
    entity, _ = entity_reader(kio_type)(data, 0)
    kio_write = entity_writer(kio_type)

    def kio_encode() -> bytes:
        out = io.BytesIO()
        kio_write(out, entity)
        return out.getvalue()

    assert kio_encode() == data
    kafka_python: Operation | None = None
    if version <= rival.max_version:
        rival_object = rival.decode(data, version=version)
        rival_object._header = None  # decoding leaves it out, encoding reads it
        assert bytes(rival_object.encode(version=version)) == data

        def kafka_python() -> object:
            return rival_object.encode(version=version)

    return Comparison(
        f"{message.NAME} v{version} encode, {what}",
        lambda: encode(message),
        kio_encode,
        kafka_python,
    )


def whole_frames() -> list[Comparison]:
    """What the broker does for a request and its response, headers and sizes included."""
    frame = memoryview(bytearray(encode_request(1, "client", produce_request(), 9)))[4:]
    response = fetch_response(12, 1, FilePart())
    return [
        Comparison("frame to Produce v9 request", lambda: decode_request(frame), None, None),
        Comparison(
            "Fetch v12 response to parts for sendfile",
            lambda: encode_response(ApiKey.FETCH, 12, 1, response),
            None,
            None,
        ),
    ]


def comparisons() -> list[Comparison]:
    lines = [
        decode_line(produce_request(), version, "produce", KafkaPythonProduceRequest)
        for version in (9, 10, 11)
    ]
    for partitions, what in ((1, "1 partition"), (100, "100 partitions")):
        lines += [
            encode_line(
                fetch_response(version, partitions),
                version,
                "fetch",
                KafkaPythonFetchResponse,
                what,
            )
            for version in range(12, 18)
        ]
    lines.append(
        encode_line(
            metadata_response(1000), 12, "metadata", KafkaPythonMetadataResponse, "1,000 partitions"
        )
    )
    return lines + whole_frames()


def microseconds(operation: Operation | None, budget_s: float) -> float | None:
    """The best time of one call over several rounds that share the budget."""
    if operation is None:
        return None
    once = min(timeit.repeat(operation, number=1, repeat=3))
    number = max(1, int(budget_s / ROUNDS / max(once, 1e-7)))
    return min(timeit.repeat(operation, number=number, repeat=ROUNDS)) / number * 1e6


def cell(value: float | None, ours: float) -> str:
    return "-" if value is None else f"{value:,.1f} ({value / ours:.1f}x)"


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    arguments.add_argument("--seconds", type=float, default=0.3, help="time for each figure")
    arguments.add_argument("--only", default="", help="lines whose name contains this")
    options = arguments.parse_args()
    table = Table("microseconds (times ours)", "Ottla", "kio", "kafka-python")
    for line in comparisons():
        if options.only not in line.name:
            continue
        ours = microseconds(line.ours, options.seconds)
        assert ours is not None
        others = [microseconds(rival, options.seconds) for rival in (line.kio, line.kafka_python)]
        table.add_row(line.name, f"{ours:,.2f}", *(cell(value, ours) for value in others))
    Console(width=110).print(table)


if __name__ == "__main__":
    main()
