"""The cores that the process may use: the least of its affinity mask and its control groups."""

from __future__ import annotations

import os
from pathlib import Path

from ottla.broker.runtime.control_groups import Group, groups


def usable_cores(root: Path = Path("/")) -> int:
    """At least 1. A quota of one and a half cores counts as two. `root` is for tests."""
    cores = len(allowed_cores()) or os.cpu_count() or 1
    quotas = [quota for group in groups("cpu", root) if (quota := _quota(group)) is not None]
    return max(1, min([cores, *(-int(-quota // 1) for quota in quotas)]))


def allowed_cores() -> list[int]:
    """The numbers of the cores of the affinity mask; empty where the system has none."""
    get = getattr(os, "sched_getaffinity", None)
    return [] if get is None else sorted(get(0))


def _quota(group: Group) -> float | None:
    """In cores; None without one."""
    try:
        if group.version == 2:
            quota, period = (group.directory / "cpu.max").read_text().split()
        else:
            quota = (group.directory / "cpu.cfs_quota_us").read_text()
            period = (group.directory / "cpu.cfs_period_us").read_text()
        cores = int(quota) / int(period)
    except (OSError, ValueError, ZeroDivisionError):  # no such group, or "max"
        return None
    return cores if cores > 0 else None  # -1 in version 1
