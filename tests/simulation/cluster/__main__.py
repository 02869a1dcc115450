"""Plays simulations: `python -m tests.simulation.cluster SEED [COUNT]`.

Exits with 1 when a simulation complains; the seed and its history are printed.
"""

import ctypes
import os
import sys

# So that addresses, by which Python hashes some objects (None is one), are those of the last run.
ADDR_NO_RANDOMIZE = 0x0040000
# Set in the process that simulates: PYTHONHASHSEED may be 0 before, with random addresses.
REPLACED = "OTTLA_SIMULATION_REPLACED"

if os.environ.get(REPLACED) != "1":
    # Sets must have the same order in every run.
    os.environ.update({"PYTHONHASHSEED": "0", REPLACED: "1"})
    ctypes.CDLL(None).personality(ADDR_NO_RANDOMIZE)
    os.execv(sys.executable, [sys.executable, "-m", "tests.simulation.cluster", *sys.argv[1:]])

from tests.simulation.cluster import seams  # noqa: E402  # not in the process that is replaced

seams.install()

from tests.simulation.cluster.command_line import main  # noqa: E402  # after the seams are in

main()
