"""A group of the new protocol (KIP-848) under every kind of trouble, by seed.

See `consumer_group_world` for the rules.
"""

import logging

import pytest

from tests.simulation.consumer_group_world import World

STEPS = 300


@pytest.mark.parametrize("seed", range(30))
def test_a_group_keeps_its_rules(seed: int, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.ERROR)
    world = World(seed)
    for _ in range(STEPS):
        world.step()
    world.finish()
