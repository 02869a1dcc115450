"""`make test-scale`: the counts of the controller up to 100,000 partitions (minutes)."""

from __future__ import annotations

from tests.hostile.turns import TurnMeter
from tests.scale.test_controller_counts import PARTITIONS, check_partitions, meter

__all__ = ["meter"]


async def test_growth_to_very_many_partitions(meter: TurnMeter) -> None:
    await check_partitions(meter, (PARTITIONS[-1], 10 * PARTITIONS[-1]))
