"""Transactions under every kind of trouble, by seed. See `transaction_world` for the rules."""

import logging

import pytest

from tests.simulation.transaction_world import World

STEPS = 600


@pytest.mark.parametrize("seed", range(50))
def test_transactions_keep_their_rules(seed: int, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.ERROR)
    world = World(seed)
    for _ in range(STEPS):
        world.step()
    world.finish()
