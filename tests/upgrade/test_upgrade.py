"""This state starts on the data directory that an earlier state of the project wrote.

The commit in `state.commit` wrote `state.tar.gz`: `python -m tests.upgrade archive COMMIT`. The way
back needs git and an older tree: `make test-downgrade`.
"""

from __future__ import annotations

import tarfile
from pathlib import Path

from tests.upgrade.state import broker, check, transact

ROOT = Path(__file__).resolve().parents[2]
ARCHIVE = Path(__file__).with_name("state.tar.gz")


def test_the_data_of_an_earlier_state_are_complete(tmp_path: Path) -> None:
    with tarfile.open(ARCHIVE) as source:
        source.extractall(tmp_path, filter="data")
    with broker(ROOT, tmp_path) as running:
        check(running, ["before"])
        transact(running, "after")
    with broker(ROOT, tmp_path) as running:  # and what is written on top of it
        check(running, ["before", "after"])
