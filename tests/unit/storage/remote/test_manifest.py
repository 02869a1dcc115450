from __future__ import annotations

import base64
import json
from dataclasses import replace

import pytest

from ottla.storage.remote import object_keys as kafka_uuid
from ottla.storage.remote.chunk_index import ChunkIndex
from ottla.storage.remote.manifest import Checksums, IndexRange, SegmentManifest
from ottla.storage.remote.remote_storage import RemoteIndexType, RemoteObjectCorruptError
from ottla.storage.remote.segments import (
    RemoteLogSegmentId,
    RemoteLogSegmentMetadata,
    TopicIdPartition,
)

METADATA = RemoteLogSegmentMetadata(
    RemoteLogSegmentId(
        TopicIdPartition(kafka_uuid.from_text("lZ6vvmajTWKDBUTV6SQAtQ"), "topic1", 42),
        kafka_uuid.from_text("adh9f8BMS4anaUnD8KWfWg"),
    ),
    start_offset=0,
    end_offset=1000,
    max_timestamp_ms=1000000000,
    broker_id=2,
    event_timestamp_ms=2000000000,
    size_bytes=1000,
    leader_epochs={0: 100, 1: 200, 2: 300},
)
FOUR = {
    RemoteIndexType.OFFSET: IndexRange(0, 1),
    RemoteIndexType.TIMESTAMP: IndexRange(1, 1),
    RemoteIndexType.PRODUCER_SNAPSHOT: IndexRange(2, 1),
    RemoteIndexType.LEADER_EPOCH: IndexRange(3, 1),
}
FIVE = {**FOUR, RemoteIndexType.TRANSACTION: IndexRange(4, 1)}
PLAIN = SegmentManifest(ChunkIndex.fixed(100, 1000, 100, 100), FIVE, False, None)

# What the plugin writes for such a segment, key by key and in its order.
EXPECTED = {
    "version": "1",
    "chunkIndex": {
        "type": "fixed",
        "originalChunkSize": 100,
        "originalFileSize": 1000,
        "transformedChunkSize": 100,
        "finalTransformedChunkSize": 100,
    },
    "segmentIndexes": {
        "offset": {"position": 0, "size": 1},
        "timestamp": {"position": 1, "size": 1},
        "producerSnapshot": {"position": 2, "size": 1},
        "leaderEpoch": {"position": 3, "size": 1},
        "transaction": {"position": 4, "size": 1},
    },
    "compression": False,
    "remoteLogSegmentMetadata": {
        "remoteLogSegmentId": {
            "topicIdPartition": {
                "topicId": "lZ6vvmajTWKDBUTV6SQAtQ",
                "topicPartition": {"topic": "topic1", "partition": 42},
            },
            "id": "adh9f8BMS4anaUnD8KWfWg",
        },
        "startOffset": 0,
        "endOffset": 1000,
        "maxTimestampMs": 1000000000,
        "brokerId": 2,
        "eventTimestampMs": 2000000000,
        "segmentLeaderEpochs": {"0": 100, "1": 200, "2": 300},
    },
}


def decode(document: object) -> SegmentManifest:
    return SegmentManifest.decode(json.dumps(document).encode(), "key")


def test_the_json_of_the_plugin() -> None:
    assert PLAIN.encode(METADATA).decode() == json.dumps(EXPECTED, separators=(",", ":"))


def test_without_a_transaction_index() -> None:
    manifest = replace(PLAIN, indexes=FOUR)
    document = json.loads(manifest.encode(METADATA))
    assert document["segmentIndexes"]["transaction"] is None
    assert decode(document).indexes == FOUR


def test_a_manifest_of_the_plugin_is_read() -> None:
    manifest = decode(EXPECTED)
    assert manifest.checksums is None
    assert manifest.indexes == FIVE
    assert not manifest.compression
    assert manifest.indexes_size == 5
    assert len(manifest.chunk_index) == 10
    # The plugin does not need this part either.
    needed = {name: value for name, value in EXPECTED.items() if "Metadata" not in name}
    assert decode(needed).indexes == FIVE


def test_compressed_chunks() -> None:
    index = ChunkIndex(100, 250, [30, 20, 10], None)
    manifest = SegmentManifest(index, FOUR, True, None)
    read = SegmentManifest.decode(manifest.encode(METADATA), "key")
    assert read.compression
    assert read.chunk_index.sizes == [30, 20, 10]
    # From the plugin: Base64 of a Zstandard frame.
    text = json.loads(manifest.encode(METADATA))["chunkIndex"]["transformedChunks"]
    assert base64.b64decode(text)[:4] == b"\x28\xb5\x2f\xfd"


def with_checksums() -> bytes:
    checksums = Checksums([0, 1, 0xFFFFFFFF, *range(7)], dict.fromkeys(FIVE, 7))
    return replace(PLAIN, checksums=checksums).encode(METADATA)


def test_checksums_are_in_what_the_plugin_skips() -> None:
    document = json.loads(with_checksums())
    assert set(document) == set(json.loads(PLAIN.encode(METADATA)))
    read = decode(document)
    assert read.checksums is not None
    assert read.checksums.chunks == [0, 1, 0xFFFFFFFF, *range(7)]
    assert read.checksums.indexes == dict.fromkeys(FIVE, 7)


def test_a_changed_manifest_is_corrupt() -> None:
    changed = with_checksums().replace(b'"position":3', b'"position":2')
    with pytest.raises(RemoteObjectCorruptError, match="checksum of the manifest is wrong"):
        SegmentManifest.decode(changed, "key")


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (["version"], "2"),
        (["compression"], "no"),
        (["encryption"], {"dataKey": "k:AAAA", "aad": "AAAA"}),
        (["chunkIndex"], None),
        (["chunkIndex", "type"], "other"),
        (["chunkIndex", "originalChunkSize"], 0),
        (["chunkIndex", "originalChunkSize"], 1.5),
        (["chunkIndex", "originalFileSize"], -1),
        (["chunkIndex", "originalFileSize"], 1 << 31),
        (["chunkIndex", "finalTransformedChunkSize"], 99),
        (["chunkIndex", "finalTransformedChunkSize"], True),
        (["segmentIndexes"], []),
        (["segmentIndexes", "offset"], None),
        (["segmentIndexes", "offset", "size"], "1"),
        (["segmentIndexes", "leaderEpoch", "position"], -1),
    ],
)
def test_invalid_values_are_corrupt(path: list[str], value: object) -> None:
    document = json.loads(PLAIN.encode(METADATA))
    target = document
    for name in path[:-1]:
        target = target[name]
    target[path[-1]] = value
    with pytest.raises(RemoteObjectCorruptError, match="The manifest key is invalid"):
        decode(document)


@pytest.mark.parametrize("data", [b"", b"{", b"[]", b"null", b"\xff", b"[" * 100_000])
def test_other_bytes_are_corrupt(data: bytes) -> None:
    with pytest.raises(RemoteObjectCorruptError, match="The manifest key is invalid"):
        SegmentManifest.decode(data, "key")
