"""What Kafka writes to `__remote_log_metadata` is read and written byte for byte, and the metadata
cache has the answers of Kafka's own cache after each record of random histories."""

import gzip
import json
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from ottla.broker.remote.metadata_cache import RemoteLogMetadataCache
from ottla.protocol.uuids import uuid_from_string, uuid_to_string
from ottla.storage.remote.metadata_records import (
    RemoteLogSegmentMetadataUpdate,
    RemotePartitionDeleteMetadata,
    decode_metadata,
    encode_metadata,
    metadata_partition,
    topic_id_partition_of,
)
from ottla.storage.remote.remote_storage import RemoteResourceNotFoundError
from ottla.storage.remote.segments import RemoteLogSegmentMetadata, TopicIdPartition

VECTORS = Path(__file__).with_name("histories.jsonl.gz")
PARTITIONS = 50  # of the metadata topic, as in the Java program


def read_histories() -> list[dict[str, Any]]:
    with gzip.open(VECTORS, "rt", encoding="utf-8") as lines:
        return [json.loads(line) for line in lines]


HISTORIES = read_histories()


def partition_of(history: dict[str, Any]) -> TopicIdPartition:
    topic_id = UUID(bytes=uuid_from_string(history["topic_id"]))
    return TopicIdPartition(topic_id, "orders-é", history["partition"])


def test_records_have_the_bytes_of_kafka() -> None:
    for history in HISTORIES:
        for text in [step["bytes"] for step in history["steps"]] + [history["deletion"]]:
            value = bytes.fromhex(text)
            metadata = decode_metadata(value)
            assert topic_id_partition_of(metadata) == partition_of(history)
            assert encode_metadata(metadata) == value
        deletion = decode_metadata(bytes.fromhex(history["deletion"]))
        assert isinstance(deletion, RemotePartitionDeleteMetadata)
        assert deletion.state == history["deletion_state"]


def test_records_of_a_partition_are_in_the_metadata_partition_of_kafka() -> None:
    for history in HISTORIES:
        found = metadata_partition(partition_of(history), PARTITIONS)
        assert found == history["metadata_partition"]


def names(segments: list[RemoteLogSegmentMetadata]) -> set[str]:
    return {uuid_to_string(each.segment_id.id.bytes) for each in segments}


@pytest.mark.parametrize("number", range(len(HISTORIES)))
def test_the_cache_answers_as_kafkas(number: int) -> None:
    cache = RemoteLogMetadataCache()
    cache.is_initialized = True
    for step in HISTORIES[number]["steps"]:
        metadata = decode_metadata(bytes.fromhex(step["bytes"]))
        if isinstance(metadata, RemoteLogSegmentMetadata):
            cache.add(metadata)
        else:
            assert isinstance(metadata, RemoteLogSegmentMetadataUpdate)
            try:
                cache.update(metadata)
            except RemoteResourceNotFoundError:
                assert uuid_to_string(metadata.segment_id.id.bytes) not in step["all"]
        assert names(cache.segments()) == set(step["all"])
        for epoch, (highest, listed, at) in enumerate(
            zip(step["highest"], step["listed"], step["at"], strict=True)
        ):
            assert cache.highest_offset(epoch) == highest
            # Kafka does not list a copy that a later one with the same start offset replaced.
            assert names(cache.segments_of_epoch(epoch)) >= set(listed)
            for index, expected in enumerate(at):
                found = cache.segment_at(epoch, 3 * index)
                name = None if found is None else uuid_to_string(found.segment_id.id.bytes)
                assert name == expected, (epoch, 3 * index)
