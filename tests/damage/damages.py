"""One random damage of one file: what bad disks, crashes, tools and people do."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from random import Random
from typing import NamedTuple

from ottla.storage.files.layout import offset_of_file

CHECKPOINTS = (
    "recovery-point-offset-checkpoint",
    "replication-offset-checkpoint",
    "log-start-offset-checkpoint",
    "cleaner-offset-checkpoint",
    ".kafka_cleanshutdown",
)
# Which kinds of files are damaged how often. An index is damaged more often than there are bugs in
# it only because there are many ways to use one.
_WEIGHTS = {
    ".log": 4,
    ".index": 5,
    ".timeindex": 5,
    ".txnindex": 3,
    ".snapshot": 3,
    "leader-epoch-checkpoint": 2,
    "partition.metadata": 1,
    "unknown": 2,
}
_CONTENT = ("flip", "zeros", "garbage", "truncate", "extend", "extend-zeros", "sign")
_WHOLE = ("swap", "foreign", "remove", "empty", "directory", "dangling", "loop")


class Damage(NamedTuple):
    """`position`: of the first byte that differs, None if the whole file is another one."""

    kind: str
    action: str
    path: str
    position: int | None

    def __str__(self) -> str:
        where = "" if self.position is None else f" at {self.position}"
        return f"{self.action} {self.path}{where}"

    @property
    def base_offset(self) -> int | None:
        """Of the segment whose file it is."""
        return offset_of_file(os.path.basename(self.path))


def damage_partition(random: Random, directory: Path, *, running: bool) -> Damage:
    """Damages one file of a partition. `running`: a log has it open."""
    by_kind: dict[str, list[Path]] = {"unknown": [directory]}
    for path in sorted(directory.iterdir()):
        kind = path.name if path.suffix not in _WEIGHTS else path.suffix
        if kind in _WEIGHTS and path.is_file():
            by_kind.setdefault(kind, []).append(path)
    kinds = sorted(by_kind)
    kind = random.choices(kinds, [_WEIGHTS[each] for each in kinds])[0]
    if kind == "unknown":
        return _add_unknown(random, directory)
    path = random.choice(by_kind[kind])
    actions = _CONTENT if random.random() < 0.7 else _WHOLE
    if running and kind == ".log":
        actions = _CONTENT  # the broker keeps it open
    return damage_file(random, path, kind, random.choice(actions), running=running)


def damage_root(random: Random, root: Path) -> Damage:
    """Damages one file of the log directory."""
    names = [name for name in CHECKPOINTS if (root / name).exists()]
    path = root / random.choice(names)
    actions = _CONTENT if random.random() < 0.7 else ("swap", "remove", "empty", "directory")
    return damage_file(random, path, path.name, random.choice(actions), running=False)


def damage_file(random: Random, path: Path, kind: str, action: str, *, running: bool) -> Damage:
    """Applies `action` to a file."""
    content = bytearray(path.read_bytes())
    size = len(content)
    others = _others(path)
    if action in _CONTENT and (size or action.startswith("extend")):
        position = _change(random, content, action)
        if running:
            _write_in_place(path, bytes(content))
        else:
            path.write_bytes(content)
        return Damage(kind, action, str(path), position)
    if action == "swap" and others:
        other = random.choice(others)
        mine, theirs = path.read_bytes(), other.read_bytes()
        path.write_bytes(theirs)
        if other.parent == path.parent and kind != ".log":
            other.write_bytes(mine)  # else only one partition is damaged
        return Damage(kind, action, str(path), None)
    if action == "foreign" and others:
        shutil.copy(random.choice(others), path)
        return Damage(kind, action, str(path), None)
    if action == "empty" or (running and kind == ".log"):
        path.write_bytes(b"")
        return Damage(kind, "empty", str(path), None)
    path.unlink()
    if action == "directory":
        path.mkdir()
        (path / "something").write_bytes(b"x")
    elif action == "dangling":
        path.symlink_to("/nowhere/at/all")
    elif action == "loop":
        path.symlink_to(path.name)
    else:
        action = "remove"
    return Damage(kind, action, str(path), None)


def _others(path: Path) -> list[Path]:
    """Files of the same kind, of this partition and of others."""
    if path.name in CHECKPOINTS:
        return [path.parent / name for name in CHECKPOINTS if (path.parent / name).is_file()]
    pattern = f"*/*{path.suffix}" if path.suffix else f"*/{path.name}"
    found = [each for each in path.parent.parent.glob(pattern) if each.is_file()]
    return sorted(each for each in found if each != path)


def _change(random: Random, content: bytearray, action: str) -> int:
    size = len(content)
    if action == "extend":
        content += random.randbytes(random.randint(1, 100))
        return size
    if action == "extend-zeros":
        content += bytes(random.choice((1, 8, 12, 34, 100, 1000)))
        return size
    at = random.randrange(size)
    if action == "truncate":
        del content[at:]
    elif action == "flip":
        content[at] ^= 1 << random.randrange(8)
    elif action == "sign":
        # Of a number at the end of the file: the most common victim is what was written last.
        at = max(0, size - random.choice((4, 8, 12, 16)))
        content[at] ^= 0x80
    else:
        length = random.randint(1, min(64, size - at))
        new = bytes(length) if action == "zeros" else random.randbytes(length)
        content[at : at + length] = new
    return at


def _write_in_place(path: Path, content: bytes) -> None:
    """As bytes on a disk change, under a file that is open."""
    descriptor = os.open(path, os.O_RDWR)
    os.ftruncate(descriptor, len(content))
    os.pwrite(descriptor, content, 0)
    os.close(descriptor)


def _add_unknown(random: Random, directory: Path) -> Damage:
    """A file or a directory that no broker writes."""
    offset = random.choice((3, 10_000, 10**17))
    name, content = random.choice(
        [
            ("99999999999999999999.log", b""),
            ("99999999999999999999.log", b"garbage"),
            ("09223372036854775808.log", b""),
            ("09223372036854775808.index", bytes(8)),
            ("99999999999999999999.snapshot", b"garbage"),
            (f"{offset:020d}.snapshot", b"garbage"),
            (f"{offset:020d}.index", bytes(16)),
            (f"{offset:020d}.timeindex", b""),
            (f"{offset:020d}.txnindex", bytes(34)),
            ("notes.txt", b"hello"),
            ("x.log", b"hello"),
            (".log", b"hello"),
            ("00000000000000000000.log.swp", b"hello"),
            ("core", random.randbytes(100)),
        ]
    )
    path = directory / name
    if path.exists():
        path = directory / "lost+found"
    if random.random() < 0.3:
        path.mkdir()
        (path / "something").write_bytes(content)
    else:
        path.write_bytes(content)
    return Damage("unknown", "add", str(path), 0)
