"""The memory that a process may use, from the files of the kernel."""

from __future__ import annotations

import os
import resource
import subprocess
import sys
from pathlib import Path

import pytest

from ottla.broker.runtime.memory_limit import memory_limit, resident_bytes

MACHINE = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
MIB = 1 << 20


def write(root: Path, path: str, text: str) -> None:
    file = root / path
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text)


def test_without_groups_it_is_the_machine(tmp_path: Path) -> None:
    assert memory_limit(tmp_path) == MACHINE


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ({"a/b/memory.max": "134217728\n"}, 128 * MIB),
        ({"a/b/memory.max": "max\n", "a/memory.max": "268435456\n"}, 256 * MIB),
        ({"a/b/memory.max": "268435456\n", "a/memory.max": "134217728\n"}, 128 * MIB),
        ({"a/b/memory.max": "268435456\n", "a/b/memory.high": "134217728\n"}, 128 * MIB),
        ({"memory.max": "134217728\n"}, 128 * MIB),  # in a container: the path is the host's
        ({"a/b/memory.max": "max\n"}, MACHINE),
        ({"a/b/memory.max": "garbage\n"}, MACHINE),
        ({}, MACHINE),
    ],
)
def test_version_2(tmp_path: Path, files: dict[str, str], expected: int) -> None:
    write(tmp_path, "proc/self/cgroup", "0::/a/b\n")
    for path, text in files.items():
        write(tmp_path, f"sys/fs/cgroup/{path}", text)
    assert memory_limit(tmp_path) == expected


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ({"a/memory.limit_in_bytes": "134217728\n"}, 128 * MIB),
        ({"a/memory.limit_in_bytes": "9223372036854771712\n"}, MACHINE),
        ({"memory.limit_in_bytes": "134217728\n"}, 128 * MIB),
    ],
)
def test_version_1(tmp_path: Path, files: dict[str, str], expected: int) -> None:
    write(tmp_path, "proc/self/cgroup", "4:cpu,memory:/a\n3:cpuset:/\n0::/\n")
    for path, text in files.items():
        write(tmp_path, f"sys/fs/cgroup/memory/{path}", text)
    assert memory_limit(tmp_path) == expected


@pytest.mark.parametrize("kind", ["RLIMIT_AS", "RLIMIT_DATA"])
def test_limits_of_the_process(kind: str) -> None:
    limit = 900 * MIB
    code = (
        "import resource; from ottla.broker.runtime.memory_limit import memory_limit; "
        f"resource.setrlimit(resource.{kind}, ({limit}, {limit})); print(memory_limit())"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert limit // 2 < int(done.stdout) <= min(limit, MACHINE)


def test_what_the_process_uses() -> None:
    used = resident_bytes()
    assert used % resource.getpagesize() == 0
    assert MIB < used < MACHINE
    assert resident_bytes(Path("/nonexistent")) == 0
