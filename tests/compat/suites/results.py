"""The last run of each suite on each kind of broker: a JSON file a suite, in the repository."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tests.compat.suites.model import FAILED, FOLDER, Result, Suite

KEPT = FOLDER / "kept"


def save(result: Result, kind: str, folder: Path = KEPT) -> None:
    """Keeps this run in place of the last one on this kind of broker.

    A suite that could not be run takes no result of the same version away.
    """
    suite = result.suite
    rows = _rows(suite, folder)
    earlier = rows.get(kind, {})
    if result.not_run is not None:
        if earlier.get("states") and earlier["version"] == suite.version:
            return
        rows[kind] = {"version": suite.version, "not_run": result.not_run}
    else:
        failed = {
            name: result.reasons.get(name, "")
            for name, state in result.states.items()
            if state == FAILED
        }
        rows[kind] = {
            "version": suite.version,
            "day": result.day,
            "states": result.states,
            "reasons": failed,
        }
    folder.mkdir(parents=True, exist_ok=True)
    text = json.dumps({each: rows[each] for each in sorted(rows)}, indent=1)
    (folder / f"{suite.name}.json").write_text(text + "\n")


def last_result(suite: Suite, kind: str, folder: Path = KEPT) -> Result:
    """The kept run of this suite at this version; "not run" with the reason without one."""
    row = _rows(suite, folder).get(kind, {})
    if row.get("version") != suite.version:
        return Result(suite, not_run="not tried yet at this version")
    if "not_run" in row:
        return Result(suite, not_run=row["not_run"])
    return Result(suite, states=row["states"], reasons=row["reasons"], day=row["day"])


def _rows(suite: Suite, folder: Path) -> dict[str, dict[str, Any]]:
    path = folder / f"{suite.name}.json"
    rows: dict[str, dict[str, Any]] = json.loads(path.read_text()) if path.exists() else {}
    return rows
