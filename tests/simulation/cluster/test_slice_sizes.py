"""Every constant that bounds a slice is found, and the seed changes it in a simulation."""

import subprocess
import sys

PROGRAM = """
from ottla.broker.server import broker_server
from tests.simulation.cluster.slice_sizes import draw_slice_sizes, slice_sizes
print(sorted(slice_sizes()))
drawn = [draw_slice_sizes(seed) for seed in range(30)]
print(sorted({each["steps_per_reading"] for each in drawn}))
"""


def test_the_slices_of_all_rooms_are_found_and_drawn() -> None:
    found = subprocess.run(
        [sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True
    )
    names, drawn = found.stdout.splitlines()
    for name in ("SLICE_SECONDS", "_BATCHES_PER_STEP", "RECORDS_PER_STEP"):
        assert f"'{name}'" in names
    assert drawn == "[1, 2, 8]"
