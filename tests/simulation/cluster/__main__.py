"""Plays simulations: `python -m tests.simulation.cluster SEED [COUNT]`.

Exits with 1 when a simulation complains; the seed and its history are printed.
"""

import os
import sys

if os.environ.get("PYTHONHASHSEED") != "0":
    # Sets of strings must have the same order in every run.
    os.environ["PYTHONHASHSEED"] = "0"
    os.execv(sys.executable, [sys.executable, "-m", "tests.simulation.cluster", *sys.argv[1:]])

from tests.simulation.cluster import seams

seams.install()

from tests.simulation.cluster.player import main  # noqa: E402  # after the seams are in

main()
