"""Looks for partitions that are gone follow each other at once."""

import pytest

from pyspark_ottla.read import stream


@pytest.fixture(autouse=True)
def no_pause_between_looks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Production pauses, so that a broker that starts has time to learn of topics."""
    monkeypatch.setattr(stream, "GONE_PAUSE_SECONDS", 0.0)
