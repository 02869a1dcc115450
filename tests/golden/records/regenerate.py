"""Makes `records.jsonl.gz` anew, and lets Kafka read what we write: called by `make golden`.

Needs a JDK and the jars that `tests.golden.regenerate` fetches. The file comes out the same, byte
for byte, as long as the Java program stays the same.
"""

import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from ottla.protocol.records.builder import build_batch
from ottla.protocol.records.compression import CODEC_NAMES, ZSTD
from ottla.protocol.records.control import end_transaction_marker
from ottla.protocol.records.convert import down_convert
from ottla.protocol.records.legacy import build_message_set
from ottla.protocol.records.reader import read_records
from ottla.protocol.records.record import NewRecord, Record

HERE = Path(__file__).resolve().parent
PROGRAM = HERE / "GoldenRecords.java"
VECTORS = HERE / "records.jsonl.gz"


def our_records() -> list[NewRecord]:
    """Every kind of field, and more than one block of each codec."""
    records: list[NewRecord] = [
        (1_700_000_000_000, b"key", b"value", [("name", b"\x00\xff"), ("empty", b""), ("n", None)]),
        (1_600_000_000_000, None, b"earlier", None),
        (1_700_000_000_001, b"tombstone", None, None),
        (9_999_999_999_999, b"", b"", [("\u00fc\U0001f600", b"x" * 300)]),
    ]
    for index in range(400):
        pattern = bytes((index * 7 + step) % 251 for step in range(97))
        records.append((1_700_000_000_000 + index, b"%d" % index, pattern * (index % 9), None))
    return records


def our_buffers() -> dict[str, bytes]:
    """What we write, by a name for messages."""
    buffers: dict[str, bytes] = {}
    for codec, name in enumerate(CODEC_NAMES):
        batch = build_batch(our_records(), codec=codec, base_offset=1 << 33)
        buffers[f"magic 2, {name}"] = batch
        if codec == ZSTD:
            continue
        rows = list(read_records(batch))
        for magic in (0, 1):
            buffers[f"magic {magic}, {name}"] = build_message_set(rows, magic=magic, codec=codec)
            buffers[f"down to {magic}, {name}"] = b"".join(down_convert(batch, magic))
    buffers["log append time"] = build_batch(
        our_records(), timestamp_type=1, log_append_time=1_800_000_000_000
    )
    buffers["transactional"] = build_batch(
        our_records(), producer_id=9, producer_epoch=1, base_sequence=3, transactional=True
    )
    buffers["commit marker"] = end_transaction_marker(
        committed=True, coordinator_epoch=5, producer_id=9, producer_epoch=1, timestamp_ms=77
    )
    return buffers


def row_of(record: Record) -> list[Any]:
    """The JSON form that the Java program prints."""
    offset, timestamp, timestamp_type, key, value, headers = record
    pairs = [
        [name.encode().hex(), None if content is None else content.hex()]
        for name, content in headers
    ]
    return [
        offset,
        timestamp,
        timestamp_type,
        None if key is None else key.hex(),
        None if value is None else value.hex(),
        pairs,
    ]


def check_that_kafka_reads_ours(java: list[str]) -> None:
    buffers = our_buffers()
    with tempfile.TemporaryDirectory() as directory:
        lines = Path(directory) / "ours.txt"
        lines.write_text("".join(f"{buffer.hex()}\n" for buffer in buffers.values()))
        command = [*java, "read", str(lines)]
        done = subprocess.run(command, check=True, capture_output=True, text=True)
    responses = done.stdout.splitlines()
    assert len(responses) == len(buffers), done.stderr
    for (name, buffer), response in zip(buffers.items(), responses, strict=True):
        wanted = [row_of(record) for record in read_records(buffer, include_control=True)]
        assert json.loads(response) == wanted, f"Kafka reads something else from ours: {name}"
    print(f"golden: Kafka reads our {len(buffers)} buffers as we do", file=sys.stderr)


def main(library: Path) -> None:
    java = ["java", "-Xmx512m", "-cp", f"{library}/*", str(PROGRAM)]
    subprocess.run([*java, "write", str(VECTORS)], check=True)
    print(f"golden: {VECTORS.name} has {VECTORS.stat().st_size} bytes", file=sys.stderr)
    check_that_kafka_reads_ours(java)
