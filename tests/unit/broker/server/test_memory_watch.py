"""The limits of the account follow the memory that the process may use."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from ottla.broker.requests.memory_budget import MemoryBudget
from ottla.broker.requests.memory_pool import UNLIMITED
from ottla.broker.server import memory_watch as module
from ottla.broker.server.memory_watch import MemoryWatch, Shares, trim_allocator
from tests.doubles.manual_timer import ManualTimer

MIB = 1 << 20


class Workers:
    """Runs what is posted at once."""

    def post(self, function: Callable[[], None]) -> None:
        function()


class Scene:
    """A watch over a process whose sizes the test says."""

    def __init__(self, available: int, own: int, **settings: int) -> None:
        self.available = available
        self.own = own
        self.trimmed = 0
        self.timer = ManualTimer()
        self.budget = MemoryBudget()
        workers: Any = Workers()
        self.watch = MemoryWatch(
            self.budget,
            self.timer,
            workers,
            available=lambda: self.available,
            resident=lambda: self.own,
            trim=self.trim,
            **settings,
        )
        self.watch.start()

    def trim(self) -> None:
        self.trimmed += 1

    def seconds(self, count: int) -> None:
        for _ in range(count):
            self.timer.advance(module.INTERVAL_MS + 1)


@pytest.mark.parametrize(
    ("available", "own", "requests", "responses", "records"),
    [
        (64, 50, 4, 2, 4),  # the least that clients need with their defaults
        (128, 50, 16, 8, 16),
        (128, 100, 7, 3, 7),  # many partitions: what is left is shared
        (256, 60, 32, 16, 32),
        (1024, 100, 128, 64, 128),
    ],
)
def test_shares(available: int, own: int, requests: int, responses: int, records: int) -> None:
    shares = Shares(available * MIB, own * MIB)
    found = (shares.requests >> 20, shares.responses >> 20, shares.records >> 20)
    assert found == (requests, responses, records)
    assert shares.frame >= MIB + MIB // 5, "what producers send by default gets through"


def test_the_longest_request_does_not_depend_on_what_the_broker_uses() -> None:
    assert Shares(128 * MIB, 50 * MIB).frame == Shares(128 * MIB, 120 * MIB).frame == 5 * MIB


def test_a_limit_that_changes_at_run_time_is_followed_both_ways() -> None:
    scene = Scene(1024 * MIB, 60 * MIB)
    assert scene.budget.request_limit == 128 * MIB
    scene.available = 128 * MIB
    scene.seconds(module.LIMIT_INTERVALS + 1)
    assert scene.budget.request_limit == 16 * MIB
    scene.available = 256 * MIB
    scene.seconds(module.LIMIT_INTERVALS + 1)
    assert scene.budget.request_limit == 32 * MIB
    scene.watch.stop()
    scene.available = 128 * MIB
    scene.seconds(module.LIMIT_INTERVALS + 1)
    assert scene.budget.request_limit == 32 * MIB


def test_what_the_broker_needs_for_itself_is_measured_while_it_is_idle() -> None:
    scene = Scene(128 * MIB, 50 * MIB)
    lease = scene.budget.responses.lease("a", 6 * MIB)
    assert lease is not None
    scene.own = 110 * MIB  # garbage of a load
    scene.seconds(2 * module.LIMIT_INTERVALS)
    assert scene.watch.own == 50 * MIB
    lease.release()
    scene.own = 100 * MIB  # its partitions
    scene.seconds(2 * module.LIMIT_INTERVALS)
    assert scene.watch.own == 100 * MIB
    assert scene.budget.request_limit < 8 * MIB


def test_memory_is_returned_once_a_load_has_ended() -> None:
    scene = Scene(256 * MIB, 50 * MIB)
    lease = scene.budget.responses.lease("a", 10 * MIB)
    assert lease is not None
    scene.seconds(3)
    assert scene.trimmed == 0
    lease.release()
    scene.seconds(3)
    assert scene.trimmed == scene.watch.trims == 1


def test_settings_come_first() -> None:
    scene = Scene(
        1024 * MIB, 60 * MIB, request_bytes=200 * MIB, client_bytes=MIB, memory_bytes=256 * MIB
    )
    assert scene.budget.request_limit == 200 * MIB
    assert scene.budget.max_frame_bytes == UNLIMITED
    assert scene.budget.large.client_limit == MIB
    assert scene.budget.responses.limit == 12 * MIB
    assert scene.budget.metadata.limit == 4 * MIB
    assert scene.watch.available == 256 * MIB


def test_workers_of_a_machine_share_its_memory() -> None:
    """Each of them with the shares of all of it would use twice what there is."""
    scene = Scene(1024 * MIB, 60 * MIB, processes=8)
    assert scene.watch.available == 128 * MIB
    assert scene.budget.request_limit == 16 * MIB
    scene.available = 2048 * MIB
    scene.seconds(module.LIMIT_INTERVALS + 1)
    assert scene.budget.request_limit == 32 * MIB
    assert Scene(1024 * MIB, 60 * MIB, processes=8, memory_bytes=64 * MIB).watch.available == (
        64 * MIB
    )


def test_the_allocator_can_be_trimmed() -> None:
    trim_allocator()
