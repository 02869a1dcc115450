"""`make bench-protocol`, the records: ours beside kafka-python, kio and aiokafka.

All get the same batches. "rows" means objects with offset, timestamp, key, value and
headers; what a rival does not offer is left blank. aiokafka decodes in C. A figure is the least
processor time of several rounds: what else runs on the machine disturbs it little.
"""

import argparse
import sys
import timeit
from collections.abc import Callable
from time import process_time
from typing import Any, NamedTuple

from aiokafka.record.memory_records import MemoryRecords as AioKafkaRecords
from kafka.record.memory_records import MemoryRecords as KafkaPythonRecords
from kio.records.readers import read_batch as kio_read_batch
from rich.console import Console
from rich.table import Table

from benchmarks.machine import describe
from ottla.protocol.records.batch import check_crc, patch_base_offset, read_header
from ottla.protocol.records.builder import build_batch
from ottla.protocol.records.compression import CODEC_NAMES
from ottla.protocol.records.convert import down_convert
from ottla.protocol.records.reader import read_batch, read_records
from ottla.protocol.records.record import NewRecord
from ottla.protocol.records.section import decode_section
from ottla.protocol.records.spans import decode_spans

RECORD_COUNT = 10_000
ROUNDS = 9

Operation = Callable[[], object]


class Line(NamedTuple):
    """One line of the table; ``records`` is how many one call works on, 0 for whole batches."""

    name: str
    records: int
    ours: Operation
    kafka_python: Operation | None = None
    kio: Operation | None = None
    aiokafka: Operation | None = None


def records_of_100_bytes(count: int) -> list[NewRecord]:
    """Keys of 8 bytes, values of 92: as different as those of a real topic, and compressible."""
    return [
        (1_700_000_000_000 + index // 3, b"%08d" % index, (b"%d," % (index * 7919)) * 20, None)
        for index in range(count)
    ]


def cut(records: list[NewRecord]) -> list[NewRecord]:
    return [(stamp, key, (value or b"")[:92], None) for stamp, key, value, _ in records]


def kafka_python_rows(batch: bytes) -> list[Any]:
    reader = KafkaPythonRecords(batch)
    rows: list[Any] = []
    while reader.has_next():
        rows.extend(reader.next_batch())
    return rows


def aiokafka_rows(batch: bytes) -> list[Any]:
    reader = AioKafkaRecords(batch)
    rows: list[Any] = []
    while reader.has_next():
        rows.extend(reader.next_batch())
    return rows


def kio_rows(batch: bytes) -> object:
    return kio_read_batch(batch, 0)


def check_and_patch(batch: bytes) -> Operation:
    buffer = bytearray(batch)

    def work() -> None:
        header = read_header(buffer)
        check_crc(buffer, 0, header)
        patch_base_offset(buffer, 0, 12_345, 3)

    return work


def kafka_python_crc(batch: bytes) -> Operation:
    return lambda: KafkaPythonRecords(batch).next_batch().validate_crc()


def aiokafka_crc(batch: bytes) -> Operation:
    return lambda: AioKafkaRecords(batch).next_batch().validate_crc()


def broker_lines() -> list[Line]:
    lines = []
    for count in (1, 150, 10_000):
        batch = build_batch(cut(records_of_100_bytes(count)))
        size = f"{len(batch):,} bytes"
        lines.append(
            Line(
                f"batch header, CRC, patch ({size})",
                0,
                check_and_patch(batch),
                kafka_python_crc(batch),
                None,
                aiokafka_crc(batch),
            )
        )
    return lines


def row_lines() -> list[Line]:
    plain = cut(records_of_100_bytes(RECORD_COUNT))
    batch = build_batch(plain)
    assert len(kafka_python_rows(batch)) == len(aiokafka_rows(batch)) == RECORD_COUNT
    end = len(batch)

    def hidden(operation: Operation) -> Operation:
        """As in a process that has not imported numpy."""

        def work() -> object:
            numpy = sys.modules.pop("numpy", None)
            try:
                return operation()
            finally:
                if numpy is not None:
                    sys.modules["numpy"] = numpy

        return work

    lines = [
        Line(
            "rows, CRC not checked",
            RECORD_COUNT,
            hidden(lambda: read_batch(batch)),
            lambda: kafka_python_rows(batch),
            lambda: kio_rows(batch),
            lambda: aiokafka_rows(batch),
        ),
        Line("the loop alone", RECORD_COUNT, lambda: decode_section(batch, 61, end, RECORD_COUNT)),
        Line("rows with numpy", RECORD_COUNT, lambda: read_batch(batch)),
        Line(
            "positions with numpy",
            RECORD_COUNT,
            lambda: decode_spans(batch, 61, end, RECORD_COUNT),
        ),
        Line("build the batch", RECORD_COUNT, lambda: build_batch(plain)),
        Line("convert down to magic 1", RECORD_COUNT, lambda: list(down_convert(batch, 1))),
    ]
    for codec in range(1, 5):
        packed = build_batch(plain, codec=codec)
        rival: Callable[[bytes], object] = aiokafka_rows
        lines.append(
            Line(
                f"rows, {CODEC_NAMES[codec]} ({len(packed):,} bytes)",
                RECORD_COUNT,
                lambda packed=packed: list(read_records(packed)),
                lambda packed=packed: kafka_python_rows(packed),
                None,
                lambda packed=packed, rival=rival: rival(packed),
            )
        )
    return lines


def microseconds(operation: Operation | None, budget_s: float) -> float | None:
    """The least processor time of one call over several rounds that share the budget."""
    if operation is None:
        return None
    once = min(timeit.repeat(operation, number=1, repeat=3))
    number = max(1, int(budget_s / ROUNDS / max(once, 1e-7)))
    rounds = timeit.repeat(operation, timer=process_time, number=number, repeat=ROUNDS)
    return min(rounds) / number * 1e6


def cell(value: float | None, line: Line) -> str:
    if value is None:
        return "-"
    if not line.records:
        return f"{value:,.2f} µs"
    return f"{line.records / value:,.2f} M/s"


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    arguments.add_argument("--seconds", type=float, default=0.5, help="time for each figure")
    arguments.add_argument("--only", default="", help="lines whose name contains this")
    options = arguments.parse_args()
    title = f"{RECORD_COUNT:,} records of 100 bytes"
    table = Table("", "Ottla", "kafka-python", "kio", "aiokafka (C)", title=title)
    try:
        import numpy  # noqa: F401 - lines "with numpy" need it loaded
    except ImportError:
        print("numpy is not installed: the lines with numpy show the plain loop")
    for line in (*broker_lines(), *row_lines()):
        if options.only in line.name:
            operations = (line.ours, line.kafka_python, line.kio, line.aiokafka)
            figures = [microseconds(operation, options.seconds) for operation in operations]
            table.add_row(line.name, *(cell(figure, line) for figure in figures))
    console = Console(width=110)
    console.print(table)
    console.print(describe())


if __name__ == "__main__":
    main()
