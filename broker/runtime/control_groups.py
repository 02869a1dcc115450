"""The control groups of this process, of version 1 and 2, from the innermost to the root.

In a container the path of a group may be that of the host, which does not exist there: its own
group is then the root that it sees.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

# Deeper nesting than any container engine makes; the names come from the kernel.
_MAX_DEPTH = 32


class Group(NamedTuple):
    """A directory whose files have the limits of a group; they may be missing."""

    version: int
    directory: Path


def groups(controller: str, root: Path = Path("/")) -> Iterator[Group]:
    """Those that limit this process by a controller, such as "memory" or "cpu"; none on other
    systems than Linux. `root` is for tests."""
    try:
        lines = (root / "proc/self/cgroup").read_text().splitlines()
    except OSError:
        return
    for line in lines:
        number, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if number == "0":
            version, place = 2, root / "sys/fs/cgroup"
        elif controller in controllers.split(","):
            version, place = 1, root / "sys/fs/cgroup" / controller
        else:
            continue
        parts = [part for part in path.split("/") if part and part != ".."][:_MAX_DEPTH]
        for depth in range(len(parts), -1, -1):
            yield Group(version, place.joinpath(*parts[:depth]))
