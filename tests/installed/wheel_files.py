"""The list of what a wheel may hold: `python -m tests.installed.wheel_files` writes it again.

One line is a folder's Python files (`ottla/cli/*.py`), or one other file; what is directly in
`ottla/` is public and named. A test compares: a new folder, a new kind of file or another name at
the top changes the list, which a review sees.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Iterable
from pathlib import Path

from tests.installed.builds import build, copy_checkout, files_of

LIST = Path(__file__).with_name("wheel_files.txt")
PUBLIC = "ottla"
COMMAND = "python -m tests.installed.wheel_files"


def patterns(files: Iterable[str]) -> list[str]:
    """The lines for these files. The metadata folder is written without its version."""
    lines = set()
    for name in files:
        folder, _, base = name.rpartition("/")
        if folder.split("/")[0].endswith(".dist-info"):
            folder = "/".join(["ottla.dist-info", *folder.split("/")[1:]])
        lines.add(
            f"{folder}/*.py" if base.endswith(".py") and folder != PUBLIC else f"{folder}/{base}"
        )
    return sorted(lines)


def main() -> int:
    with tempfile.TemporaryDirectory() as folder:
        source = copy_checkout(Path(folder) / "source")
        lines = patterns(files_of(build(source, "wheel", Path(folder) / "dist")))
    LIST.write_text("".join(f"{line}\n" for line in lines))
    print(f"{LIST.name}: {len(lines)} lines")
    return 0


if __name__ == "__main__":
    sys.exit(main())
