"""How much the deletion of a replica does in its broker: it does not grow with what is deleted."""

from __future__ import annotations

import asyncio
import math
import sys
from collections.abc import Iterator
from typing import Any

import pytest

from ottla.protocol.topics import TopicPartition
from ottla.storage.files.deletions import Deletions
from tests.doubles.eventually import DEADLINE_SECONDS, eventually
from tests.doubles.memory_file_system import MemoryFileSystem
from tests.hostile.turns import measured_broker

SMALL, LARGE = 50, 400
TOLERANCE = 0.15


class Replicas(dict[TopicPartition, Any]):
    """The replicas of a broker; counts how many of them were looked at in a loop."""

    looked_at = 0

    def __iter__(self) -> Iterator[TopicPartition]:
        for key in super().__iter__():
            self.looked_at += 1
            yield key


def deleted(monkeypatch: pytest.MonkeyPatch, partitions: int) -> tuple[int, int]:
    """The calls of a broker that deletes a topic, and the replicas that were looked at."""
    with measured_broker(monkeypatch) as (broker, meter):
        broker.create_topic("t", partitions)
        manager = broker.server.parts.replica_manager
        manager.partitions = replicas = Replicas(manager.partitions)
        meter.reset()
        assert broker._loop is not None
        deletion = broker.server.parts.controller.delete_topics(["t"], timeout_ms=1)
        asyncio.run_coroutine_threadsafe(deletion, broker._loop).result(DEADLINE_SECONDS)
        eventually(lambda: not replicas, "the replicas are still there")
        return meter.all_calls, replicas.looked_at


def test_growth_with_the_partitions_of_a_topic(monkeypatch: pytest.MonkeyPatch) -> None:
    small, _ = deleted(monkeypatch, SMALL)
    large, looked_at = deleted(monkeypatch, LARGE)
    assert math.log(large / small, LARGE / SMALL) <= 1 + TOLERANCE, (small, large)
    assert looked_at <= 2 * LARGE, "replicas that were looked at, of all deletions"


def test_growth_with_the_directories_that_wait_for_their_deletion() -> None:
    def calls(directories: int) -> int:
        deletions = Deletions(MemoryFileSystem())
        counted = 0

        def count(frame: object, event: str, argument: object) -> None:
            nonlocal counted
            counted += event in ("call", "c_call")

        sys.setprofile(count)
        try:
            for number in range(directories):
                deletions.add(f"/d/{number}/a", 0)
                deletions.rename_under(f"/d/{number}", f"/d/{number}-delete")
            assert deletions.purge(0) == directories
        finally:
            sys.setprofile(None)
        return counted

    growth = math.log(calls(LARGE) / calls(SMALL), LARGE / SMALL)
    assert growth <= 1 + TOLERANCE
