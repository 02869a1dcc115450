"""A consumer group under every kind of trouble, by seed. See `group_world` for the rules."""

import logging
from contextlib import nullcontext

import pytest

from tests.doubles.pace import steps_per_turn
from tests.simulation.group_world import World

STEPS = 600


@pytest.mark.parametrize("seed", range(50))
def test_a_group_keeps_its_rules(seed: int, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.ERROR)
    # Every other seed pauses after each step of the work on all members.
    with steps_per_turn(1) if seed % 2 else nullcontext():
        world = World(seed)
        for _ in range(STEPS):
            world.step()
        world.finish()
