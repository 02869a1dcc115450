"""The manifest of a segment: JSON, version 1 of Aiven's tiered storage plugin.

It says how the log object is cut into chunks and transformed, and where in the indexes object each
index is. The plugin writes what it knows of the segment into `remoteLogSegmentMetadata`, and skips
that object when it reads. Ottla keeps its checksums there, so that both read the same manifests.
"""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ottla.protocol.records.crc32c import crc32c
from ottla.storage.remote import object_keys as kafka_uuid
from ottla.storage.remote.chunk_index import (
    MAX_ENCODED_SIZES,
    MAX_INT32,
    ChunkIndex,
    compress,
    decode_sizes,
    decompress,
    encode_sizes,
)
from ottla.storage.remote.remote_storage import RemoteIndexType, RemoteObjectCorruptError
from ottla.storage.remote.segments import RemoteLogSegmentMetadata

# The sizes and checksums of 2 million chunks in Base64, with room for the rest.
MAX_MANIFEST_BYTES = 32 * 1024 * 1024

_VERSION = "1"
_METADATA = "remoteLogSegmentMetadata"
_CHECKSUMS = "checksums"
_MANIFEST_CHECKSUM = "manifest"
#: In the order of the indexes in the indexes object.
INDEX_NAMES = {
    RemoteIndexType.OFFSET: "offset",
    RemoteIndexType.TIMESTAMP: "timestamp",
    RemoteIndexType.PRODUCER_SNAPSHOT: "producerSnapshot",
    RemoteIndexType.LEADER_EPOCH: "leaderEpoch",
    RemoteIndexType.TRANSACTION: "transaction",
}


@dataclass(frozen=True, slots=True)
class IndexRange:
    """Where an index is in the indexes object, in bytes."""

    position: int
    size: int


@dataclass(frozen=True, slots=True)
class Checksums:
    """CRC-32C of each chunk as it is in the log object, and of each index that is there."""

    chunks: Sequence[int]
    indexes: Mapping[RemoteIndexType, int]


@dataclass(frozen=True, slots=True)
class SegmentManifest:
    """`checksums` is None for a segment that the plugin copied."""

    chunk_index: ChunkIndex
    indexes: Mapping[RemoteIndexType, IndexRange]
    compression: bool
    checksums: Checksums | None

    @property
    def indexes_size(self) -> int:
        """The size of the indexes object in bytes."""
        return max(index.position + index.size for index in self.indexes.values())

    def encode(self, metadata: RemoteLogSegmentMetadata) -> bytes:
        document: dict[str, object] = {
            "version": _VERSION,
            "chunkIndex": _encode_chunk_index(self.chunk_index),
            "segmentIndexes": {
                name: _encode_range(self.indexes.get(index_type))
                for index_type, name in INDEX_NAMES.items()
            },
            "compression": self.compression,
        }
        described = _encode_metadata(metadata)
        document[_METADATA] = described
        if self.checksums is not None:
            checksums: dict[str, object] = {
                "algorithm": "crc32c",
                "chunks": _encode_checksums(self.checksums.chunks),
                "indexes": {
                    INDEX_NAMES[index_type]: checksum
                    for index_type, checksum in self.checksums.indexes.items()
                },
            }
            described[_CHECKSUMS] = checksums
            checksums[_MANIFEST_CHECKSUM] = crc32c(_json(document))
        return _json(document)

    @staticmethod
    def decode(data: bytes, key: str) -> SegmentManifest:
        """Raise RemoteObjectCorruptError with the key. A manifest of an encrypted segment raises
        it too: Ottla has no keys."""
        try:
            return _decode(data)
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            raise RemoteObjectCorruptError(f"The manifest {key} is invalid: {error}") from None


def _json(document: Mapping[str, object]) -> bytes:
    return json.dumps(document, separators=(",", ":"), ensure_ascii=False).encode()


def _encode_range(index: IndexRange | None) -> dict[str, int] | None:
    return None if index is None else {"position": index.position, "size": index.size}


def _encode_chunk_index(index: ChunkIndex) -> dict[str, object]:
    sizes: dict[str, object] = {
        "originalChunkSize": index.original_chunk_size,
        "originalFileSize": index.original_file_size,
    }
    if index.fixed_size is None:
        encoded = base64.b64encode(compress(encode_sizes(index.sizes))).decode()
        return {"type": "variable", **sizes, "transformedChunks": encoded}
    return {
        "type": "fixed",
        **sizes,
        "transformedChunkSize": index.fixed_size,
        "finalTransformedChunkSize": index.sizes[-1],
    }


def _encode_metadata(metadata: RemoteLogSegmentMetadata) -> dict[str, object]:
    partition = metadata.segment_id.topic_id_partition
    return {
        "remoteLogSegmentId": {
            "topicIdPartition": {
                "topicId": kafka_uuid.to_text(partition.topic_id),
                "topicPartition": {"topic": partition.topic, "partition": partition.partition},
            },
            "id": kafka_uuid.to_text(metadata.segment_id.id),
        },
        "startOffset": metadata.start_offset,
        "endOffset": metadata.end_offset,
        "maxTimestampMs": metadata.max_timestamp_ms,
        "brokerId": metadata.broker_id,
        "eventTimestampMs": metadata.event_timestamp_ms,
        "segmentLeaderEpochs": {
            str(epoch): offset for epoch, offset in sorted(metadata.leader_epochs.items())
        },
    }


def _encode_checksums(checksums: Sequence[int]) -> str:
    return base64.b64encode(b"".join(value.to_bytes(4, "big") for value in checksums)).decode()


def _decode(data: bytes) -> SegmentManifest:
    document = json.loads(data)
    if document["version"] != _VERSION:
        raise ValueError(f"version {document['version']!r}, expected {_VERSION!r}")
    if document.get("encryption") is not None:
        raise ValueError("the segment is encrypted, and encryption is not supported")
    compression = document["compression"]
    if not isinstance(compression, bool):
        raise ValueError("compression is neither true nor false")
    chunk_index = _decode_chunk_index(document["chunkIndex"])
    if chunk_index.fixed_size is None and not compression:
        raise ValueError("chunks of variable size that are not compressed")
    if not compression and chunk_index.object_size != chunk_index.original_file_size:
        raise ValueError("chunks that are not compressed have another size than the file")
    indexes = _decode_indexes(document["segmentIndexes"])
    checksums = _decode_checksums(document, len(chunk_index), indexes)
    return SegmentManifest(chunk_index, indexes, compression, checksums)


def _integer(document: Mapping[str, object], name: str, maximum: int = MAX_INT32) -> int:
    value = document[name]
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= maximum:
        raise ValueError(f"{name} is {value!r}, expected 0 to {maximum}")
    return value


def _base64(text: object) -> bytes:
    if not isinstance(text, str):
        raise ValueError(f"{text!r} is no Base64 text")
    try:
        return base64.b64decode(text, validate=True)
    except binascii.Error as error:
        raise ValueError(f"invalid Base64: {error}") from None


def _decode_chunk_index(document: Mapping[str, object]) -> ChunkIndex:
    chunk_size = _integer(document, "originalChunkSize")
    file_size = _integer(document, "originalFileSize")
    if document["type"] == "fixed":
        return ChunkIndex.fixed(
            chunk_size,
            file_size,
            _integer(document, "transformedChunkSize"),
            _integer(document, "finalTransformedChunkSize"),
        )
    if document["type"] != "variable":
        raise ValueError(f"chunk index of type {document['type']!r}")
    encoded = decompress(_base64(document["transformedChunks"]), MAX_ENCODED_SIZES)
    return ChunkIndex(chunk_size, file_size, decode_sizes(encoded), None)


def _decode_indexes(document: Mapping[str, object]) -> dict[RemoteIndexType, IndexRange]:
    indexes = {}
    for index_type, name in INDEX_NAMES.items():
        index = document[name]
        if index is None and index_type is RemoteIndexType.TRANSACTION:
            continue
        if not isinstance(index, dict):
            raise ValueError(f"the index {name} is {index!r}")
        indexes[index_type] = IndexRange(_integer(index, "position"), _integer(index, "size"))
    return indexes


def _decode_checksums(
    document: dict[str, object], chunk_count: int, indexes: Mapping[RemoteIndexType, IndexRange]
) -> Checksums | None:
    metadata = document.get(_METADATA)
    checksums = metadata.get(_CHECKSUMS) if isinstance(metadata, dict) else None
    if checksums is None:
        return None
    if checksums["algorithm"] != "crc32c":
        raise ValueError(f"checksums of algorithm {checksums['algorithm']!r}")
    expected = checksums.pop(_MANIFEST_CHECKSUM)
    if crc32c(_json(document)) != expected:
        raise ValueError("the checksum of the manifest is wrong")
    content = _base64(checksums["chunks"])
    if len(content) != 4 * chunk_count:
        raise ValueError(f"{len(content)} bytes of checksums for {chunk_count} chunks")
    return Checksums(
        [int.from_bytes(content[at : at + 4], "big") for at in range(0, len(content), 4)],
        {
            index_type: _integer(checksums["indexes"], INDEX_NAMES[index_type], 0xFFFFFFFF)
            for index_type in indexes
        },
    )
