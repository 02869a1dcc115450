"""The kept runs of each lane: a JSON file, with a list of runs in their order."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

KEPT = Path(__file__).resolve().parent / "kept"
LANES = ("kafka", "ottla", "control", "mixed")
#: The name of the time before the first trouble.
QUIET = "no trouble"

#: What `run_lane` returns; `notes` are written by hand, for the page.
Run = dict[str, Any]


def load(folder: Path = KEPT) -> dict[str, list[Run]]:
    """The runs of each lane that has any."""
    found = {lane: folder / f"{lane}.json" for lane in LANES}
    return {lane: json.loads(path.read_text()) for lane, path in found.items() if path.exists()}


def save(lane: str, run: Run, whole: bool, folder: Path = KEPT) -> None:
    """Keeps a run: a whole one alone, one of some troubles beside those of the others."""
    older = [] if whole else load(folder).get(lane, [])
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{lane}.json").write_text(json.dumps(merge(older, run), indent=1) + "\n")


def merge(older: list[Run], run: Run) -> list[Run]:
    """The older runs without the troubles of this one, and this one."""
    played = {row["trouble"] for row in run["rows"]} | {each["trouble"] for each in run["failed"]}
    kept = []
    for each in older:
        rows = [row for row in each["rows"] if row["trouble"] not in played - {QUIET}]
        failed = [row for row in each["failed"] if row["trouble"] not in played]
        if failed or any(row["trouble"] != QUIET for row in rows):
            kept.append({**each, "rows": rows, "failed": failed})
    return [*kept, run]


def troubles(runs: list[Run]) -> dict[str, list[dict[str, int]]]:
    """The pauses of each trouble, as often as it was played."""
    found: dict[str, list[dict[str, int]]] = {}
    for run in runs:
        for row in run["rows"]:
            found.setdefault(row["trouble"], []).append(row)
    return found
