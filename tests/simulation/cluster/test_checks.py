"""The checks of a simulation meet no trouble of the disks that they read, and do not end unseen."""

from __future__ import annotations

import errno
import os
from random import Random
from types import SimpleNamespace
from typing import Any

import pytest

from tests.simulation.cluster.disk import READING, Death, Disk, Faults
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
