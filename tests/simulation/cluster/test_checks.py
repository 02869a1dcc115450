"""The checks of a simulation meet no trouble of the disks that they read, and do not end unseen."""

from __future__ import annotations

import asyncio
import errno
import os
import struct
from contextvars import copy_context
from random import Random
from types import SimpleNamespace
from typing import Any

import pytest

from ottla.protocol.messages.fetch import (
    FetchableTopicResponse,
    FetchRequest,
    FetchResponse,
    PartitionData,
)
from ottla.protocol.topics import TopicPartition
from tests.doubles.storage_logs import batch_of
from tests.simulation.cluster import tiered_checks
from tests.simulation.cluster.disk import READING, Death, Disk, Faults
from tests.simulation.cluster.operator_troubles import is_superseded
from tests.simulation.cluster.watch import Watch


def test_what_a_check_reads_meets_no_trouble() -> None:
    counter = SimpleNamespace(steps=0)
    disk = Disk(Random(1), counter)
    fs = disk.mount()
    descriptor = fs.open("/file", os.O_CREAT | os.O_RDWR)
    fs.pwrite(descriptor, b"content", 0)
    steps = counter.steps
    disk.faults = Faults({errno.EMFILE: 1_000_000}, READING)
    disk.death = Death("pread", "", 0, lambda: pytest.fail("the process died in a check"))
    with disk.checked():
        assert fs.pread(fs.open("/file", os.O_RDONLY), 7, 0) == b"content"
    assert counter.steps == steps
    disk.death = None
    with pytest.raises(OSError, match="Too many open files"):
        fs.pread(descriptor, 7, 0)


async def test_a_check_that_fails_is_a_complaint(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tests.simulation.cluster.watch.SECONDS", 0)
    complaints: list[str] = []
    tree = SimpleNamespace(apply=None)
    world: Any = SimpleNamespace(
        complaints=complaints,
        complain=complaints.append,
        ensemble=SimpleNamespace(tree=tree),
        nodes={},
        seed=1,
    )
    watch = Watch(world)
    monkeypatch.setattr(watch, "look", lambda: {}["missing"])
    with pytest.raises(KeyError):
        await watch.run()
    assert complaints == ["the checks ended with KeyError('missing')"]


LEADER_EPOCH_AT = 12


def stored(base_offset: int, epoch: int, count: int = 1) -> bytes:
    batch = batch_of(count, base_offset=base_offset)
    struct.pack_into(">i", batch, LEADER_EPOCH_AT, epoch)
    return bytes(batch)


@pytest.mark.parametrize(
    ("live", "committed", "expected"),
    [
        ([stored(0, 1), stored(1, 2, 9)], {0: stored(0, 1)}, True),
        ([stored(0, 1), stored(1, 2, 9)], {1: stored(1, 1, 2)}, False),
        ([stored(0, 1), stored(1, 1, 9)], {}, False),
        ([stored(0, 1), stored(3, 2, 9)], {}, False),
        ([stored(0, 1)], {}, False),
    ],
    ids=["a later leader", "it was committed", "the same leader", "a gap", "nothing instead"],
)
def test_only_an_uncommitted_end_is_superseded_by_a_later_leader(
    live: list[bytes], committed: dict[int, bytes], expected: bool
) -> None:
    before = stored(0, 1) + stored(1, 1, 2)
    assert is_superseded(before, {"0.log": b"".join(live)}, committed) is expected


class ThrottledClient:
    """Each record costs two fetches: the first one is throttled. From `silent_from` on, all are."""

    silent_from = -1

    def __init__(self, *_arguments: object, **_options: object) -> None:
        self.calls = 0

    async def call(self, request: FetchRequest, *_route: object, **_options: object) -> Any:
        self.calls += 1
        offset = request.topics[0].partitions[0].fetch_offset
        if self.calls % 2 or offset == self.silent_from:
            return FetchResponse(throttle_time_ms=1000)
        records = bytes(batch_of(1, base_offset=offset))
        rows = [PartitionData(0, 0, offset, records=records)]
        return FetchResponse(responses=[FetchableTopicResponse("t", partitions=rows)])

    def close(self) -> None:
        """Nothing to close."""


@pytest.mark.parametrize(
    ("silent_from", "expected"),
    [(-1, []), (7, ["t-0 cannot be read at 7 of 300: throttled for 1000 ms"])],
    ids=["slowly", "never"],
)
async def test_the_last_read_may_be_slow_but_has_to_get_on(
    silent_from: int, expected: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ThrottledClient, "silent_from", silent_from)
    monkeypatch.setattr(tiered_checks, "AsyncClient", ThrottledClient)
    monkeypatch.setattr(tiered_checks.asyncio, "sleep", no_time)
    complaints: list[str] = []
    compared: list[int] = []
    world: Any = SimpleNamespace(
        bootstrap="",
        clients=SimpleNamespace(context=copy_context()),
        complain=complaints.append,
        deleted_before={},
        loop=asyncio.get_running_loop(),
        watch=SimpleNamespace(compare=lambda _where, found: compared.extend(found)),
    )
    checks = tiered_checks.TieredChecks(world, SimpleNamespace())  # type: ignore[arg-type]
    leader = SimpleNamespace(log_start_offset=0, high_watermark=300)
    monkeypatch.setattr(checks, "_leader", lambda _where: leader)
    await checks._read(TopicPartition("t", 0))
    assert complaints == expected
    assert compared == list(range(300 if silent_from < 0 else silent_from))


async def no_time(_seconds: float) -> None:
    """Instead of a throttle time."""
