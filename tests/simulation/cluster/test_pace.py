"""The seed changes the pace of a simulation."""

import subprocess
import sys

PROGRAM = """
from tests.simulation.cluster.pace import draw_pace
drawn = [draw_pace(seed) for seed in range(30)]
for name in drawn[0]:
    print(sorted({each[name] for each in drawn}))
"""


def test_the_seed_draws_the_pace() -> None:
    found = subprocess.run(
        [sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True
    )
    steps, batches, segments, epochs = found.stdout.splitlines()
    assert steps == "[1, 2, 8]"
    assert epochs == "[5, 12, 32767]"
    for parts in (batches, segments):
        assert parts.startswith("[1, 2, 5")
