"""The cores that a container or a unit of systemd leaves to the process."""

from __future__ import annotations

from pathlib import Path

import pytest

from ottla.broker.runtime.usable_cores import allowed_cores, usable_cores

ALL = len(allowed_cores())


def lay_out(root: Path, cgroup: str, files: dict[str, str]) -> None:
    (root / "proc/self").mkdir(parents=True)
    (root / "proc/self/cgroup").write_text(cgroup)
    for name, text in files.items():
        path = root / "sys/fs/cgroup" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


@pytest.mark.parametrize(
    ("cgroup", "files", "cores"),
    [
        ("0::/\n", {"cpu.max": "100000 100000\n"}, 1),
        ("0::/\n", {"cpu.max": "150000 100000\n"}, 2),
        ("0::/\n", {"cpu.max": "10000 100000\n"}, 1),
        ("0::/\n", {"cpu.max": "max 100000\n"}, ALL),
        # A unit of systemd has no limit at the root, and its slice may have one.
        ("0::/system.slice/ottla.service\n", {"system.slice/cpu.max": "100000 100000\n"}, 1),
        (
            "0::/system.slice/ottla.service\n",
            {"system.slice/ottla.service/cpu.max": "50000 100000\n"},
            1,
        ),
        # Version 1, in a container that sees its own group as the root.
        (
            "4:cpu,cpuacct:/docker/0123\n",
            {"cpu/cpu.cfs_quota_us": "100000\n", "cpu/cpu.cfs_period_us": "100000\n"},
            1,
        ),
        (
            "4:cpu,cpuacct:/\n",
            {"cpu/cpu.cfs_quota_us": "-1\n", "cpu/cpu.cfs_period_us": "100000\n"},
            ALL,
        ),
        ("4:memory:/\n", {}, ALL),
        ("0::/\n", {"cpu.max": "garbage\n"}, ALL),
    ],
)
def test_quotas(cgroup: str, files: dict[str, str], cores: int, tmp_path: Path) -> None:
    lay_out(tmp_path, cgroup, files)
    assert usable_cores(tmp_path) == min(cores, ALL)


def test_without_groups_the_affinity_mask_counts(tmp_path: Path) -> None:
    assert usable_cores(tmp_path) == ALL
