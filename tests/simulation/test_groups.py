"""A consumer group under every kind of trouble, by seed. See `group_world` for the rules."""

import logging

import pytest

from tests.simulation.group_world import World

STEPS = 600


@pytest.mark.parametrize("seed", range(50))
def test_a_group_keeps_its_rules(seed: int, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.ERROR)
    world = World(seed)
    for _ in range(STEPS):
        world.step()
    world.finish()
