"""Full runs of the garbage collector that read what is new."""

from __future__ import annotations

import asyncio
import gc
import weakref
from collections.abc import Iterator

import pytest

from ottla.broker.runtime.garbage import LONG_SECONDS, MEMORY_PARTS, ShortFullRuns

MEMORY = 800 << 20
PART = MEMORY // MEMORY_PARTS


class Node:
    """A part of a cycle."""

    def __init__(self) -> None:
        self.itself = self


class Scene:
    def __init__(self) -> None:
        self.resident = 100 << 20
        self.run_seconds = 2 * LONG_SECONDS
        self._now = 0.0
        self.loop = asyncio.new_event_loop()
        self.runs = ShortFullRuns(
            self.loop, lambda: self.resident, lambda: MEMORY, self.processor_seconds
        )

    def processor_seconds(self) -> float:
        """Each reading is later than the one before by a run."""
        self._now += self.run_seconds
        return self._now


@pytest.fixture
def scene() -> Iterator[Scene]:
    thresholds, enabled = gc.get_threshold(), gc.isenabled()
    scene = Scene()
    scene.runs.start()
    gc.disable()  # the test says when
    yield scene
    scene.runs.stop()
    scene.loop.close()
    gc.unfreeze()
    gc.set_threshold(*thresholds)
    if enabled:
        gc.enable()


def is_aside(scene: Scene, found: object) -> bool:
    return not any(each is found for each in gc.get_objects())


def test_what_survives_a_long_run_is_not_read_again(scene: Scene) -> None:
    kept = [Node() for _ in range(100)]
    assert not is_aside(scene, kept[0])
    gc.collect()
    assert all(is_aside(scene, each) for each in kept)
    freed = weakref.ref(kept[0])
    kept[0].itself = None  # type: ignore[assignment]
    del kept[0]
    assert freed() is None  # by its reference count, as before


def test_a_short_run_sets_nothing_aside(scene: Scene) -> None:
    scene.run_seconds = LONG_SECONDS / 2
    kept = Node()
    gc.collect()
    assert not is_aside(scene, kept)


def test_a_run_of_young_objects_sets_nothing_aside(scene: Scene) -> None:
    kept = Node()
    gc.collect(1)
    assert not is_aside(scene, kept)


def test_a_cycle_that_is_aside_is_found_when_the_process_has_grown(scene: Scene) -> None:
    node = Node()
    found = weakref.ref(node)
    gc.collect()
    del node
    gc.collect()
    scene.resident += PART
    scene.runs.look()
    assert found() is not None
    scene.resident += 1
    scene.runs.look()
    assert found() is None
    assert scene.runs.reviews == 1
    scene.runs.look()  # no growth since
    scene.resident += PART
    scene.runs.look()
    assert scene.runs.reviews == 1


def test_growth_is_counted_from_the_least_since_the_last_review(scene: Scene) -> None:
    gc.collect()
    scene.resident -= 50 << 20
    scene.runs.look()
    scene.resident += PART + 1
    scene.runs.look()
    assert scene.runs.reviews == 1


def test_nothing_is_read_again_where_no_run_was_long(scene: Scene) -> None:
    scene.resident += 2 * PART
    scene.runs.look()
    assert scene.runs.reviews == 0


def test_the_next_run_follows_from_what_is_new(scene: Scene) -> None:
    """A full run is due when a quarter of what the last one left is new: that is little now."""
    kept = [Node() for _ in range(1000)]
    gc.collect()
    scene.run_seconds = 0.0
    before = gc.get_stats()[2]["collections"]
    scene.loop.run_until_complete(asyncio.sleep(0))
    assert gc.get_stats()[2]["collections"] == before + 1
    assert is_aside(scene, kept[0])
