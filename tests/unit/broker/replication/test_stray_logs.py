"""What is done with logs that the tree does not give to this broker."""

from __future__ import annotations

import pytest

from ottla.broker.replication.stray_logs import rename_stray_logs
from ottla.controller.model import ReplicaAssignment, TopicState
from ottla.controller.tree import znodes
from ottla.controller.tree.embedded_store import EmbeddedStore
from ottla.protocol.uuids import random_uuid
from ottla.storage.directories.log_manager import LogManager
from tests.doubles.memory_file_system import MemoryFileSystem
from tests.doubles.storage_logs import NOW_MS, append, manager_on

US = 1
TOPIC_ID = random_uuid()


async def after_start(topic: bytes | None, topic_id: bytes | None = TOPIC_ID) -> list[str]:
    """The directories of a broker that had t-0 with three records, and finds this in the tree."""
    fs = MemoryFileSystem()
    manager = manager_on(fs)
    append(manager.get_or_create("t", 0, topic_id=topic_id, now_ms=NOW_MS), 3)
    store = EmbeddedStore()
    await store.connect()
    try:
        if topic is not None:
            await store.create(znodes.topic_path("t"), topic, make_parents=True)
        count = await rename_stray_logs(manager, store, US)
    finally:
        await store.close()
    assert count == 1 - len(manager.logs())
    return fs.list_directories("/disk")


def assigned(*replicas: int, topic_id: bytes | None = TOPIC_ID, index: int = 0) -> bytes:
    return znodes.encode_topic(TopicState(topic_id, {index: ReplicaAssignment(replicas)}))


@pytest.mark.parametrize(
    ("topic", "topic_id"),
    [
        (assigned(2, US), TOPIC_ID),
        (assigned(2, US), None),  # made before topics had ids
        (assigned(2, US, topic_id=None), TOPIC_ID),
        (None, None),
        (b"not JSON", TOPIC_ID),
    ],
)
async def test_what_is_ours_or_may_be_stays(topic: bytes | None, topic_id: bytes | None) -> None:
    assert await after_start(topic, topic_id) == ["t-0"]


@pytest.mark.parametrize(
    ("topic", "reason"),
    [
        (assigned(2, 3), "the partition is not assigned to this broker any more"),
        (assigned(US, index=1), "the partition is not assigned to this broker any more"),
        (assigned(US, topic_id=random_uuid()), "the topic was deleted and created again"),
        (None, "the topic does not exist any more"),
    ],
)
async def test_strays_are_renamed_and_kept(
    topic: bytes | None, reason: str, caplog: pytest.LogCaptureFixture
) -> None:
    (name,) = await after_start(topic)
    assert name.startswith("t-0.")
    assert name.endswith("-stray")
    assert f"Renamed stray log t-0 to /disk/{name}: {reason}" in caplog.text


async def test_a_disk_that_fails_meanwhile_is_said(caplog: pytest.LogCaptureFixture) -> None:
    manager: LogManager = manager_on(MemoryFileSystem())
    log = manager.get_or_create("t", 0, topic_id=TOPIC_ID, now_ms=NOW_MS)
    log.log_directory.fail(OSError("broken"))
    store = EmbeddedStore()
    await store.connect()
    try:
        assert await rename_stray_logs(manager, store, US) == 0
    finally:
        await store.close()
    assert "Failed to rename stray log t-0" in caplog.text


def test_nothing_is_requested_for_an_empty_disk() -> None:
    """Not even whether the tree can be reached: this is on the way of every first start."""
    coroutine = rename_stray_logs(manager_on(MemoryFileSystem()), EmbeddedStore(), US)
    with pytest.raises(StopIteration) as stopped:
        coroutine.send(None)
    assert stopped.value.value == 0
