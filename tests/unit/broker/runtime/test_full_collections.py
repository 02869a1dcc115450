from __future__ import annotations

import gc

import pytest

from ottla.broker.requests.bulk_requests import GAP_SECONDS, HOLD_SECONDS, FullCollections


@pytest.fixture
def usual() -> tuple[int, int, int]:
    return gc.get_threshold()


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def test_only_full_runs_are_held_back_until_the_last_is_done(usual: tuple[int, int, int]) -> None:
    collections = FullCollections(Clock())
    collections.hold()
    assert gc.get_threshold()[:2] == usual[:2]
    assert gc.get_threshold()[2] > 1000 * usual[2]
    collections.hold()
    collections.release()
    assert gc.get_threshold() != usual
    collections.release()
    assert gc.get_threshold() == usual
    collections.hold()
    assert gc.get_threshold() != usual
    collections.release()


def test_not_for_ever(usual: tuple[int, int, int]) -> None:
    clock = Clock()
    collections = FullCollections(clock)
    collections.hold()
    clock.now += HOLD_SECONDS + 1
    collections.hold()  # work without a pause: it has been long enough
    assert gc.get_threshold() == usual
    collections.hold()
    assert gc.get_threshold() == usual
    clock.now += GAP_SECONDS
    collections.hold()
    assert gc.get_threshold() != usual
    for _ in range(4):
        collections.release()
    assert gc.get_threshold() == usual
