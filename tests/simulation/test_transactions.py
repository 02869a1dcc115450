"""Transactions under every kind of trouble, by seed. See `transaction_world` for the rules."""

import logging

import pytest

from ottla.broker.transactions import state
from tests.simulation.transaction_world import World

STEPS = 600


@pytest.mark.parametrize("seed", range(50))
def test_transactions_keep_their_rules(
    seed: int, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    if seed % 2:  # few epochs: producer ids are exhausted
        monkeypatch.setattr(state, "MAX_EPOCH", 6)
        monkeypatch.setattr(state, "LAST_USABLE_EPOCH", 5)
    caplog.set_level(logging.ERROR)
    world = World(seed)
    for _ in range(STEPS):
        world.step()
    world.finish()
