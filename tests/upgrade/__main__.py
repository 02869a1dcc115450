"""Writes the archive of an older state, or goes up and back between two states by git.

    python -m tests.upgrade archive COMMIT    writes tests/upgrade/state.tar.gz with that commit
    python -m tests.upgrade back [COMMIT]     old -> this tree -> old -> this tree, on one directory

The default commit is the one that wrote the archive.
"""

from __future__ import annotations

import argparse
import subprocess
import tarfile
import tempfile
from pathlib import Path

from tests.upgrade.state import broker, check, transact, write

ROOT = Path(__file__).resolve().parents[2]
ARCHIVE = Path(__file__).with_name("state.tar.gz")
WRITER = Path(__file__).with_name("state.commit")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", choices=("archive", "back"))
    parser.add_argument("commit", nargs="?", default=WRITER.read_text().strip())
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="ottla-upgrade-") as folder:
        old, data = Path(folder) / "old", Path(folder) / "data"
        commit = export(options.commit, old)
        with broker(old, data) as running:
            write(running)
            check(running, ["before"])
        if options.what == "archive":
            pack(data)
            WRITER.write_text(f"{commit}\n")
            return
        go_and_return(old, data)
    print(f"went up from {commit}, back and up again")


def export(commit: str, target: Path) -> str:
    """Extracts the sources of a commit; returns its full name."""
    name = subprocess.run(
        ["git", "rev-parse", f"{commit}^{{commit}}"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    ).stdout.strip()
    target.mkdir()
    tarball = subprocess.run(
        ["git", "archive", name], cwd=ROOT, capture_output=True, check=True
    ).stdout
    subprocess.run(["tar", "-x", "-C", str(target)], input=tarball, check=True)
    return name


def go_and_return(old: Path, data: Path) -> None:
    """Each state finds what the others wrote, and adds a transaction of the same id."""
    words = ["before"]
    for tree, word in ((ROOT, "up"), (old, "back"), (ROOT, "again")):
        with broker(tree, data) as running:
            check(running, words)
            transact(running, word)
            words.append(word)
            check(running, words)


def pack(data: Path) -> None:
    """The archive: without owners and times, so that the same data are the same bytes."""

    def plain(info: tarfile.TarInfo) -> tarfile.TarInfo:
        info.uid = info.gid = 0
        info.uname = info.gname = ""
        info.mtime = 0
        return info

    with tarfile.open(ARCHIVE, "w:gz") as target:
        for path in sorted(data.iterdir()):
            target.add(path, path.name, filter=plain)


if __name__ == "__main__":
    main()
