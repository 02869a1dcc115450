"""Compactions without the tasks of the broker."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ottla.protocol.steps import run_at_once

if TYPE_CHECKING:
    from ottla.storage.cleaner.cleaner import Cleaner
    from ottla.storage.cleaner.compaction import Compaction


def next_compaction(cleaner: Cleaner, now_ms: int) -> Compaction | None:
    """A compaction of the dirtiest log; None if none needs it."""
    for log in run_at_once(cleaner.dirty_logs(now_ms)):
        compaction = cleaner.begin(log, now_ms)
        if compaction is not None:
            return compaction
    return None
