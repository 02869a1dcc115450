"""1,300 random damages of log directories and embedded stores; `make fuzz-damage` for more."""

from __future__ import annotations

import os
from pathlib import Path
from random import SystemRandom

from tests.damage import tree_files
from tests.damage.run import run

DAMAGES = 1300


def test_a_damaged_file_is_not_a_damaged_disk(tmp_path: Path) -> None:
    """The same ones each time; with OTTLA_EXPLORE=1 others, whose seed is printed."""
    seed = SystemRandom().randrange(10**6) if os.environ.get("OTTLA_EXPLORE") else 1
    print(f"seed {seed}")
    failures: list[Exception] = []
    made = run(tmp_path, seed, DAMAGES, failures.append)
    assert not failures, "\n".join(map(str, failures[:5]))
    assert made.total() >= DAMAGES
    for kind in (".log", ".index", ".timeindex", ".txnindex", ".snapshot", "store loaded"):
        assert made[kind] > 0, made


def test_a_schema_that_is_not_text(tmp_path: Path) -> None:
    """SQLite quotes it in its message, which Python cannot decode."""
    store = tmp_path / "store"
    tree_files.write(store)
    assert tree_files.damage_one(store, tmp_path, 41767) == "refused"
