"""`ottla produce`: writes lines as records."""

from __future__ import annotations

import sys
import time
from collections import defaultdict
from collections.abc import Iterator
from typing import Annotated, BinaryIO

import typer

from ottla.cli.app import family
from ottla.cli.completion import complete_topics
from ottla.cli.output import Failure, note, print_json, usage
from ottla.cli.session import Session, check, connected, explain
from ottla.cli.values import CODEC_NAMES, codec_id, parse_settings, typed_bytes
from ottla.protocol.client.errors import UnsupportedApiError
from ottla.protocol.client.operations import LeaderOf
from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages.init_producer_id import InitProducerIdRequest, InitProducerIdResponse
from ottla.protocol.messages.produce import (
    PartitionProduceData,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
)
from ottla.protocol.partitioner import DefaultPartitioner
from ottla.protocol.records.builder import build_batch
from ottla.protocol.records.record import Headers, NewRecord
from ottla.protocol.topics import TopicPartition

app = family("Write lines of standard input or a file to a topic.")

# The capacity of a pipe. A batch has the lines of one read, so that a typed line is sent at once
# and a file in large batches.
READ_BYTES = 64 * 1024
# The bound of a line; the default of max.message.bytes is 1 MiB.
MAX_LINE_BYTES = 64 * 1024 * 1024

# Kafka's delivery.timeout.ms is 120 s, its request.timeout.ms 30 s: a broker that fails is replaced
# within that, by its restart or by an election.
_REQUESTS_PER_DELIVERY = 4

_ACKS = {"all": -1, "-1": -1, "1": 1, "0": 0}


@app.command(context_settings={"allow_extra_args": True})
@connected
def produce(
    session: Session,
    context: typer.Context,
    topic: Annotated[str, typer.Argument(show_default=False, autocompletion=complete_topics)],
    file: Annotated[
        str, typer.Option("--file", help="Read this file instead of standard input.")
    ] = "",
    key_separator: Annotated[
        str, typer.Option("--key-separator", "-k", help="The part of a line before it is the key.")
    ] = "",
    key: Annotated[str | None, typer.Option("--key", help="One key for all records.")] = None,
    header: Annotated[
        list[str] | None,
        typer.Option("--header", "-H", help="Header name=value of every record; repeatable."),
    ] = None,
    null_value: Annotated[
        str | None,
        typer.Option("--null", help="The text that stands for a null value (tombstone)."),
    ] = None,
    whole: Annotated[bool, typer.Option("--whole", help="The input is one record.")] = False,
    json_lines: Annotated[
        bool,
        typer.Option("--json-lines", help="Lines in the format of `ottla consume --json`."),
    ] = False,
    partition: Annotated[
        int | None, typer.Option("--partition", "-p", help="Write to this partition.")
    ] = None,
    codec: Annotated[
        str, typer.Option("--codec", help=f"One of {', '.join(CODEC_NAMES)}.")
    ] = "none",
    acks: Annotated[str, typer.Option("--acks", help="all, 1 or 0.")] = "all",
    quiet: Annotated[
        bool, typer.Option("--quiet", "-q", help="Do not print the number of records.")
    ] = False,
) -> None:
    """Write each line of the input as a record.

    \b
    Examples:
      echo hello | ottla produce greetings
      ottla produce orders --key-separator : < orders.txt
      ottla produce orders --file all.json --whole --codec zstd -H from=shop
      ottla consume a --format json | ottla produce b --json-lines
    """
    if context.args:
        raise usage(f"{context.args[0]} is not read: name the file by --file {context.args[0]}.")
    if acks not in _ACKS:
        raise usage(f"--acks {acks} is not one of all, 1, 0.")
    if json_lines and (key is not None or key_separator or header or null_value is not None):
        raise usage(
            "--json-lines has keys, headers and null values in the lines; leave out --key, "
            "--key-separator, --header and --null."
        )
    if key is not None and key_separator:
        raise usage("--key is one key for all records; leave out --key-separator.")
    headers = _headers(header)
    parser = _LineParser(key, key_separator, headers, null_value, json_lines)
    writer = Writer(session, topic, codec_id(codec), _ACKS[acks], partition)
    source = _open(file)
    try:
        for lines in [[source.read()]] if whole else read_lines(source):
            writer.write([parser.record(line) for line in lines])
    except KeyboardInterrupt:
        note("")
    except Exception:
        # A second try with the same input would write these twice.
        if writer.count:
            _report(session, writer, topic)
        raise
    finally:
        if source is not sys.stdin.buffer:
            source.close()
    if session.json or not quiet:
        _report(session, writer, topic)


def _report(session: Session, writer: Writer, topic: str) -> None:
    if session.json:
        print_json({"topic": topic, "records": writer.count, "bytes": writer.bytes})
    else:
        note(f"{writer.count} record(s) written to {topic}.")


def _headers(texts: list[str] | None) -> Headers:
    # One by one: a record can have several headers of one name.
    given = [item for text in texts or () for item in parse_settings([text]).items()]
    try:
        "".join(name for name, _ in given).encode()
    except UnicodeEncodeError:
        raise usage("the name of a header is not UTF-8 text.") from None
    return [(name, typed_bytes(text)) for name, text in given]


def _open(path: str) -> BinaryIO:
    if not path or path == "-":
        return sys.stdin.buffer
    try:
        return open(path, "rb")
    except OSError as error:
        raise usage(f"{path}: {error.strerror}.") from None


def read_lines(source: BinaryIO) -> Iterator[list[bytes]]:
    """The complete lines of each read, without line ends."""
    read = getattr(source, "read1", source.read)
    rest = b""
    while piece := read(READ_BYTES):
        *lines, rest = (rest + piece).split(b"\n")
        if len(rest) > MAX_LINE_BYTES:
            raise usage(
                f"a line is longer than {MAX_LINE_BYTES} bytes; use --whole for one record."
            )
        if lines:
            yield [line.removesuffix(b"\r") for line in lines]
    if rest:
        yield [rest]


class _LineParser:
    """Parses a line to a record."""

    def __init__(
        self,
        key: str | None,
        separator: str,
        headers: Headers,
        null_value: str | None,
        json_lines: bool,
    ) -> None:
        self._key = None if key is None else typed_bytes(key)
        self._separator = typed_bytes(separator.replace("\\t", "\t"))
        self._headers = headers
        self._null = None if null_value is None else typed_bytes(null_value)
        self._json = json_lines

    def record(self, line: bytes) -> NewRecord:
        now_ms = time.time_ns() // 1_000_000
        if self._json:
            return self._from_json(line, now_ms)
        key, value = self._key, line
        if self._separator:
            key, found, value = line.partition(self._separator)
            if not found:
                raise usage(
                    f"no {_shown(self._separator)} in the line {_shown(line)}: "
                    "with --key-separator every line needs a key."
                )
        return now_ms, key, None if value == self._null else value, self._headers

    def _from_json(self, line: bytes, now_ms: int) -> NewRecord:
        import json

        try:
            row = json.loads(line)
            pairs = row.get("headers") or []
            pairs = list(pairs.items()) if isinstance(pairs, dict) else pairs
            # A name can be half of a surrogate pair, which no encoding takes.
            headers = [(str(name).encode().decode(), _bytes_of(value)) for name, value in pairs]
            given = row.get("timestamp")
            timestamp = now_ms if given is None else int(given)
            if not -(1 << 63) <= timestamp < 1 << 63:
                raise ValueError(timestamp)
            return timestamp, _bytes_of(row.get("key")), _bytes_of(row.get("value")), headers
        except (ValueError, TypeError, AttributeError, OverflowError, RecursionError):
            raise usage(
                f"the line {_shown(line)} is not a JSON object with key, value and headers."
            ) from None


def _shown(line: bytes) -> str:
    return repr(line[:60].decode(errors="replace"))


def _bytes_of(value: object) -> bytes | None:
    if value is None:
        return None
    if isinstance(value, str):
        return value.encode()
    if isinstance(value, dict) and set(value) == {"base64"}:
        from base64 import b64decode

        return b64decode(value["base64"])
    import json

    return json.dumps(value, ensure_ascii=False).encode()


class Writer:
    """Writes records to one topic, each batch acknowledged before the next is sent.

    It retries what Kafka's producer retries, for four times the request timeout. With acks=all it
    is an idempotent producer: it retries a batch whose response was lost, too, and the broker
    detects a duplicate by its sequence number.
    """

    def __init__(
        self, session: Session, topic: str, codec: int, acks: int, partition: int | None
    ) -> None:
        self._session = session
        self._topic = topic
        self._codec = codec
        self._acks = acks
        self._fixed = partition
        self._partitioner = DefaultPartitioner()
        self._partition_count = partition_count(session, topic)
        if partition is not None and not 0 <= partition < self._partition_count:
            raise Failure(
                f"{topic} has no partition {partition}; it has {self._partition_count}, "
                "counted from 0."
            )
        self._producer = _producer_id(session) if acks == _ACKS["all"] else None
        self._sequences: dict[int, int] = defaultdict(int)
        self.count = 0
        self.bytes = 0

    def write(self, records: list[NewRecord]) -> None:
        """Returns when they are acknowledged; raises Failure if the broker rejects them."""
        by_partition: dict[int, list[NewRecord]] = defaultdict(list)
        for record in records:
            by_partition[self._partition_of(record)].append(record)
        for number, chosen in by_partition.items():
            self._write(number, chosen)

    def _write(self, number: int, records: list[NewRecord]) -> None:
        """Halves a batch that is larger than max.message.bytes, as Kafka's producer splits it."""
        if self._send(number, self._batch(number, records), can_split=len(records) > 1):
            # Sequence numbers wrap around to 0.
            self._sequences[number] = (self._sequences[number] + len(records)) & 0x7FFFFFFF
            self.count += len(records)
            return
        middle = len(records) // 2
        self._write(number, records[:middle])
        self._write(number, records[middle:])

    def _batch(self, number: int, records: list[NewRecord]) -> bytes:
        if self._producer is None:
            return build_batch(records, codec=self._codec)
        producer_id, epoch = self._producer
        return build_batch(
            records,
            codec=self._codec,
            producer_id=producer_id,
            producer_epoch=epoch,
            base_sequence=self._sequences[number],
        )

    def _partition_of(self, record: NewRecord) -> int:
        if self._fixed is not None:
            return self._fixed
        size = len(record[1] or b"") + len(record[2] or b"")
        return self._partitioner.partition(self._topic, record[1], size, self._partition_count)

    def _send(self, number: int, batch: bytes, *, can_split: bool) -> bool:
        """False if the batch was not written because it `can_split` and is too large."""
        data = PartitionProduceData(index=number, records=batch)
        request = ProduceRequest(
            acks=self._acks,
            timeout_ms=self._session.timeout_ms,
            topic_data=[TopicProduceData(name=self._topic, partition_data=[data])],
        )
        partition = TopicPartition(self._topic, number)
        response = self._call(request, partition)
        for topic in response.responses:
            for row in topic.partition_responses:
                if can_split and row.error_code == ErrorCode.MESSAGE_TOO_LARGE:
                    return False
                if row.error_code != ErrorCode.DUPLICATE_SEQUENCE_NUMBER:
                    check(row.error_code, f"{partition}", row.error_message)
        self.bytes += len(batch)
        return True

    def _call(self, request: ProduceRequest, partition: TopicPartition) -> ProduceResponse:
        """Send until it is acknowledged, as Kafka's producer within `delivery.timeout.ms`.

        A batch whose response was lost may have been written: only an idempotent producer sends it
        again.
        """
        response = self._session.client.call(
            request,
            LeaderOf(partition),
            timeout_ms=_delivery_ms(self._session),
            resend=self._producer is not None,
        )
        assert isinstance(response, ProduceResponse)
        return response


def _delivery_ms(session: Session) -> int:
    return session.timeout_ms * _REQUESTS_PER_DELIVERY


def _producer_id(session: Session) -> tuple[int, int] | None:
    """Producer id and epoch; None if the broker returns none."""
    request = InitProducerIdRequest(None, 60_000)
    try:
        response = session.client.call(request, timeout_ms=_delivery_ms(session))
    except UnsupportedApiError:
        return None
    assert isinstance(response, InitProducerIdResponse)
    if response.error_code:
        note(f"Writing without idempotence: {explain(response.error_code)}")
        return None
    return response.producer_id, response.producer_epoch


def partition_count(session: Session, topic: str) -> int:
    """The number of partitions; the broker can create the topic (auto.create.topics.enable)."""
    client = session.client
    row = client.metadata([topic]).topics[0]
    if row.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
        deadline = time.monotonic() + session.timeout_ms / 1000
        creating = (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.LEADER_NOT_AVAILABLE)
        row = client.metadata([topic], allow_auto_topic_creation=True).topics[0]
        created = row.error_code != ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        while row.error_code in creating and created and time.monotonic() < deadline:
            time.sleep(0.05)
            row = client.metadata([topic]).topics[0]
        if row.error_code == ErrorCode.NONE:
            note(f"The broker created topic {topic}.")
    check(row.error_code, f"topic {topic}")
    return len(row.partitions)
