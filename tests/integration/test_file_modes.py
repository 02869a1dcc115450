"""Who may read the files of a broker, whatever it did to them: roll, compact, move, delete."""

from __future__ import annotations

import os
from pathlib import Path

from confluent_kafka import Consumer
from confluent_kafka.admin import AdminClient, NewTopic

from ottla.protocol.messages.alter_replica_log_dirs import (
    AlterReplicaLogDir,
    AlterReplicaLogDirsRequest,
    AlterReplicaLogDirTopic,
)
from tests.doubles.broker_process import start_broker
from tests.doubles.eventually import eventually
from tests.doubles.producing import Outgoing, produce
from tests.doubles.wire import Wire

RECORDS = 60


def test_files_are_for_the_broker_and_its_group_only(tmp_path: Path) -> None:
    directories = [tmp_path / "a", tmp_path / "b"]
    before = os.umask(0)  # what the process allows does not decide
    try:
        with start_broker(
            tmp_path,
            log_dirs=",".join(map(str, directories)),
            offsets_topic_num_partitions=1,
            log_cleaner_backoff_ms=100,
            log_initial_task_delay_ms=100,
            log_retention_check_interval_ms=200,
        ) as broker:
            admin = AdminClient({"bootstrap.servers": broker.bootstrap})
            settings = {
                "cleanup.policy": "compact",
                "segment.bytes": "300",
                "min.cleanable.dirty.ratio": "0",
                "file.delete.delay.ms": "60000",
            }
            topics = [NewTopic(name, 1, 1, config=settings) for name in ("kept", "gone")]
            for future in admin.create_topics(topics).values():
                future.result(60)
            for name in ("kept", "gone"):
                # One batch each, so that segments roll; all have one key.
                produce(
                    broker.bootstrap,
                    name,
                    [Outgoing(b"x", b"key", 0)] * RECORDS,
                    batch_num_messages=1,
                    linger_ms=0,
                )
            consume(broker.bootstrap)
            place = eventually(lambda: log_of(directories, "kept-0", compacted=True), "no cleaning")
            assert place is not None
            target = directories[1 - directories.index(place.parent)]
            topic = AlterReplicaLogDirTopic("kept", [0])
            with Wire(broker.bootstrap) as wire:
                wire.ask(AlterReplicaLogDirsRequest([AlterReplicaLogDir(str(target), [topic])]), 2)
            eventually((target / "kept-0").is_dir, "no move")
            admin.delete_topics(["gone"])["gone"].result(60)
            eventually(lambda: not log_of(directories, "gone-0"), "no deletion")
            broker.stop()
            broker.start()
            check_modes(directories)
            broker.stop()
            check_modes(directories)
    finally:
        os.umask(before)


def log_of(directories: list[Path], name: str, *, compacted: bool = False) -> Path | None:
    """The directory of a partition; `compacted`: once its first records are gone."""
    for directory in directories:
        found = directory / name
        if found.is_dir() and (not compacted or list(found.glob("*.deleted"))):
            return found
    return None


def consume(bootstrap: str) -> None:
    """Makes a group, which has committed, and so the log of __consumer_offsets."""
    consumer = Consumer(
        {"bootstrap.servers": bootstrap, "group.id": "g", "auto.offset.reset": "earliest"}
    )
    consumer.subscribe(["kept"])
    try:
        eventually(lambda: consumer.poll(1), "no record")
        consumer.commit(asynchronous=False)
    finally:
        consumer.close()


def check_modes(directories: list[Path]) -> None:
    paths = [path for each in directories for path in (each, *each.rglob("*"))]
    kinds = {path.suffix for path in paths}
    assert {".log", ".index", ".timeindex", ".snapshot"} <= kinds
    for path in paths:
        private = path.name.startswith("ottla-znodes.db")
        expected = 0o750 if path.is_dir() else 0o600 if private else 0o640
        assert path.stat().st_mode & 0o777 == expected, path
