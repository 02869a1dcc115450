"""`ottla tiered` with records of `__remote_log_metadata` and a store in a folder."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from uuid import UUID

import pytest
from confluent_kafka import Producer

from ottla.protocol.uuids import uuid_from_string, uuid_to_string
from ottla.storage.remote.metadata_records import (
    REMOTE_LOG_METADATA_TOPIC,
    RemoteLogSegmentMetadataUpdate,
    RemotePartitionDeleteMetadata,
    RemotePartitionDeleteState,
    encode_metadata,
)
from ottla.storage.remote.open_remote_storage import open_remote_storage
from ottla.storage.remote.segments import RemoteLogSegmentState
from tests.doubles.broker_process import BrokerProcess, start_broker
from tests.doubles.command_line import CommandLine
from tests.doubles.remote_segments import segment_content, segment_files, segment_metadata

CONTENT = segment_content(5000)
SEGMENTS = [
    segment_metadata(5000, start_offset=0, segment_id=UUID(int=1)),
    segment_metadata(5000, start_offset=100, segment_id=UUID(int=2)),
]
# Without a record: what a crash leaves.
ORPHAN = segment_metadata(5000, start_offset=200, segment_id=UUID(int=3))


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    with start_broker(tmp_path_factory.mktemp("tiered")) as broker:
        yield broker


@pytest.fixture(scope="module")
def ottla(broker: BrokerProcess) -> CommandLine:
    command = CommandLine(broker.bootstrap)
    missing = command("tiered", "status")
    assert missing.code == 1
    assert "__remote_log_metadata" in missing.errors
    command.done("topics", "create", REMOTE_LOG_METADATA_TOPIC, "--partitions", "3")
    empty = command.done("tiered", "status")
    assert "No segments in remote storage." in empty.output
    producer = Producer({"bootstrap.servers": broker.bootstrap})
    for metadata in SEGMENTS:
        finished = RemoteLogSegmentMetadataUpdate(
            metadata.segment_id, 3000, None, RemoteLogSegmentState.COPY_SEGMENT_FINISHED, 1
        )
        for record in (metadata, finished):
            producer.produce(REMOTE_LOG_METADATA_TOPIC, encode_metadata(record), partition=1)
    assert producer.flush(30) == 0
    return command


@pytest.fixture
def root(tmp_path: Path) -> Path:
    (tmp_path / "remote").mkdir()
    settings = {
        "storage.backend.class": "filesystem",
        "storage.root": str(tmp_path / "remote"),
        "chunk.size": "1024",
    }
    (tmp_path / "server.properties").write_text(
        "".join(f"rsm.config.{name}={value}\n" for name, value in settings.items())
        + "broker.id=1\n"
    )
    storage = open_remote_storage(settings)
    for metadata in (*SEGMENTS, ORPHAN):
        storage.copy_log_segment(metadata, segment_files(tmp_path / "log", CONTENT))
    for path in (tmp_path / "remote").rglob("*.*"):
        os.utime(path, (1000, 1000))
    return tmp_path


def test_status(ottla: CommandLine) -> None:
    assert ottla.done("tiered", "status", "--json").value == [
        {
            "topic": "topic",
            "partition": 7,
            "segments": 2,
            "size": 10_000,
            "start_offset": 0,
            "end_offset": 199,
            "copying": 0,
            "deleting": 0,
        }
    ]
    assert ottla.done("tiered", "status").lines[1][:3] == ["topic", "7", "2"]
    assert "No segments" in ottla.done("tiered", "status", "other").output


def test_verify(ottla: CommandLine, root: Path) -> None:
    config = ("--config", str(root / "server.properties"))
    assert ottla.done("tiered", "verify", *config).output == "2 segments are intact.\n"
    [log] = (root / "remote").rglob("00000000000000000100-*.log")
    content = bytearray(log.read_bytes())
    content[7] ^= 1
    log.write_bytes(content)
    ottla.done("tiered", "verify", *config)  # the size is right
    outcome = ottla("tiered", "verify", "--content", *config)
    assert outcome.code == 1
    assert "wrong checksum from 0 to 1024" in outcome.output
    assert "1 problems in 2 segments" in outcome.errors


def test_gc(ottla: CommandLine, root: Path) -> None:
    config = ("--config", str(root / "server.properties"))
    kept = ottla.done("tiered", "gc", "--execute", *config)
    assert "3 objects of segments that __remote_log_metadata never had." in kept.errors
    config = ("--unrecorded", *config)
    listed = ottla.done("tiered", "gc", *config)
    assert listed.output.count("00000000000000000200") == 3
    assert "3 objects can be deleted; add --execute" in listed.errors
    assert ottla.done("tiered", "gc", "--json", *config).value["live_objects"] == 6
    ottla.done("tiered", "gc", "--execute", *config)
    config = config[1:]
    assert "No orphans." in ottla.done("tiered", "gc", *config).output
    assert ottla.done("tiered", "verify", "--content", *config).output == "2 segments are intact.\n"


def test_adopt(ottla: CommandLine, root: Path) -> None:
    config = ("--config", str(root / "server.properties"))
    looked = ottla.done("tiered", "adopt", *config)
    assert looked.output == "2 of 2 segments in use are in the store.\n"
    assert "add --execute" in looked.errors
    assert list((root / "remote").glob("ottla-store-*")) == []
    adopted = ottla.done("tiered", "adopt", "--execute", "--json", *config).value
    assert adopted == {"segments": 2, "present": 2, "adopted": True}
    assert len(list((root / "remote").glob("ottla-store-*"))) == 1
    assert ottla.done("tiered", "gc", "--json", *config).value["foreign"] == 0


def test_gc_keeps_topics_of_other_clusters(ottla: CommandLine, root: Path) -> None:
    config = ("--config", str(root / "server.properties"))
    [directory] = list((root / "remote").iterdir())
    directory.rename(directory.with_name("topic-AAAAAAAAAAAAAAAAAAAAAQ"))
    kept = ottla.done("tiered", "gc", "--execute", *config)
    assert "No orphans." in kept.output
    assert "9 objects of unknown topics" in kept.errors
    assert len(list((root / "remote").rglob("*.log"))) == 3
    ottla.done("tiered", "gc", "--execute", "--unknown-topics", *config)
    assert list((root / "remote").rglob("*.log")) == []


def test_gc_collects_a_topic_that_the_operator_says_is_deleted(
    ottla: CommandLine, root: Path
) -> None:
    """Its leader stopped before it wrote that the deletion begins."""
    config = ("--config", str(root / "server.properties"))
    topic_id = uuid_to_string(SEGMENTS[0].segment_id.topic_id_partition.topic_id.bytes)
    listed = ottla.done("tiered", "gc", *config)
    assert f"If it is deleted, add --deleted-topic {topic_id}." in listed.errors
    as_json = ottla.done("tiered", "gc", "--json", *config).value
    assert as_json["unlisted_topics"] == {topic_id: "topic"}
    ottla.done("tiered", "gc", "--execute", "--deleted-topic", topic_id, *config)
    assert list((root / "remote").rglob("*.log")) == []


def test_gc_does_not_take_a_listed_topic_for_deleted(
    ottla: CommandLine, broker: BrokerProcess, root: Path
) -> None:
    config = ("--config", str(root / "server.properties"))
    ottla.done("topics", "create", "listed")
    topics = ottla.done("topics", "list", "--json").value
    [listed] = [row for row in topics if row["name"] == "listed"]
    metadata = segment_metadata(
        5000,
        start_offset=0,
        segment_id=UUID(int=4),
        topic_id=UUID(bytes=uuid_from_string(listed["id"])),
    )
    producer = Producer({"bootstrap.servers": broker.bootstrap})
    producer.produce(REMOTE_LOG_METADATA_TOPIC, encode_metadata(metadata), partition=2)
    assert producer.flush(30) == 0
    refused = ottla("tiered", "gc", "--execute", "--deleted-topic", listed["id"], *config)
    assert refused.code == 1
    assert "the cluster lists the topic" in refused.errors
    wrong = ottla("tiered", "gc", "--deleted-topic", "listed", *config)
    assert wrong.code == 2


def test_wrong_usage(ottla: CommandLine, tmp_path: Path) -> None:
    missing = ottla("tiered", "gc", "--config", str(tmp_path / "none"))
    assert missing.code == 2
    assert "Cannot read the settings file" in missing.errors
    (tmp_path / "server.properties").write_text("rsm.config.storage.backend.class=other\n")
    wrong = ottla("tiered", "verify", "--config", str(tmp_path / "server.properties"))
    assert wrong.code == 2
    assert "storage.backend.class is 'other'" in wrong.errors


def test_gc_collects_a_topic_whose_deletion_was_interrupted(
    ottla: CommandLine, broker: BrokerProcess, root: Path
) -> None:
    """The last test: the deletion stays."""
    config = ("--config", str(root / "server.properties"))
    partition = SEGMENTS[0].segment_id.topic_id_partition
    started = RemotePartitionDeleteState.DELETE_PARTITION_STARTED
    record = RemotePartitionDeleteMetadata(partition, started, 5000, 1)
    producer = Producer({"bootstrap.servers": broker.bootstrap})
    producer.produce(REMOTE_LOG_METADATA_TOPIC, encode_metadata(record), partition=1)
    assert producer.flush(30) == 0
    assert ottla.done("tiered", "verify", *config).output == "0 segments are intact.\n"
    ottla.done("tiered", "gc", "--execute", *config)
    assert list((root / "remote").rglob("*.log")) == []
