"""Share groups under every kind of trouble, by seed. See `share_world` for the rules."""

from __future__ import annotations

import re

import pytest

from ottla.broker.share import share_partitions
from ottla.broker.share.coordinator import share_coordinator
from ottla.broker.share.coordinator.state import ShareState, combined
from ottla.broker.share.persister import StateUpdate
from tests.simulation.share_world import World

STEPS = 400
SEEDS = 20
RULES = "is delivered after|is confirmed twice|a member gets"


async def play(seed: int, steps: int = STEPS) -> World:
    world = World(seed)
    await world.start()
    try:
        for _ in range(steps):
            await world.step()
        await world.finish()
    finally:
        await world.stop()
    return world


@pytest.mark.parametrize("seed", range(SEEDS))
async def test_share_groups_keep_their_rules(seed: int) -> None:
    world = await play(seed)
    assert world.final
    assert max(world.deliveries.values()) > 1


async def finds() -> bool:
    """Whether a seed breaks a rule for deliveries or responses."""
    for seed in range(SEEDS):
        try:
            await play(seed)
        except AssertionError as problem:
            return bool(re.search(RULES, str(problem)))
    return False


async def test_a_coordinator_without_fencing_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """A write of a former leader that comes late is stored."""
    write = share_coordinator.ShareCoordinator.write

    async def unfenced(self: object, key: object, update: StateUpdate) -> None:
        await write(self, key, update._replace(leader_epoch=-1))  # type: ignore[arg-type]

    monkeypatch.setattr(share_coordinator.ShareCoordinator, "write", unfenced)
    assert await finds()


async def test_a_start_offset_that_decreases_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """A write that is repeated after a later one takes the start offset back."""

    def updated(self: ShareState, update: StateUpdate) -> ShareState:
        start_offset = update.start_offset
        return self._replace(
            leader_epoch=max(self.leader_epoch, update.leader_epoch),
            start_offset=start_offset,
            batches=combined(self.batches, update.batches, start_offset),
        )

    monkeypatch.setattr(ShareState, "updated", updated)
    assert await finds()


async def test_an_error_of_the_share_coordinator_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """A write is repeated as its response was lost, and a new leader has fenced it meanwhile: the
    member gets an error that its client does not know."""
    monkeypatch.setattr(share_partitions, "_WRITE_ERRORS", {})
    assert await finds()
