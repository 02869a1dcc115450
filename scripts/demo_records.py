"""Real text for the demo: the source lines of Python's own standard library, in a fixed order.

Every Python has it, nothing is downloaded, and it resembles real data: long, short and empty
values, keys of very different frequency, text that is not ASCII.
"""

from __future__ import annotations

import hashlib
import sysconfig
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

RECORDS_MIN = 100_000
# Enough to take seconds, not minutes, on two cores.
RECORDS_MAX = 200_000
# Some systems omit the tests and add packages.
LEFT_OUT = {"site-packages", "dist-packages", "__pycache__", "test", "tests", "idle_test"}


class TextRecord(NamedTuple):
    """One line: the file as the key, the line as the value, its number and package as headers."""

    key: bytes
    value: bytes
    headers: list[tuple[str, bytes]]


class PackageTotals(NamedTuple):
    """The result of the Spark job for each package; compared with the demo's own count."""

    lines: int
    modules: int
    text_bytes: int
    longest: int


def source_files() -> Iterator[tuple[str, Path]]:
    """(name, path) of every module of the standard library, by name."""
    root = Path(sysconfig.get_paths()["stdlib"])
    for path in sorted(root.rglob("*.py")):
        relative = path.relative_to(root)
        if LEFT_OUT.isdisjoint(relative.parts):
            yield relative.as_posix(), path


def text_records() -> list[TextRecord]:
    """At most RECORDS_MAX lines; the same list whenever the same Python runs it."""
    records: list[TextRecord] = []
    for name, path in source_files():
        package = name.split("/", maxsplit=1)[0].removesuffix(".py").encode()
        key = name.encode()
        for number, line in enumerate(path.read_bytes().splitlines(), 1):
            headers = [("line", b"%d" % number), ("package", package)]
            records.append(TextRecord(key, line, headers))
            if len(records) == RECORDS_MAX:
                return records
    return records


def digest(records: list[TextRecord]) -> dict[bytes, str]:
    """A digest of each key's records in order: one partition keeps the order of one key."""
    digests: dict[bytes, hashlib.blake2b] = {}
    for record in records:
        running = digests.setdefault(record.key, hashlib.blake2b(digest_size=16))
        update(running, record.value, record.headers)
    return {key: running.hexdigest() for key, running in digests.items()}


def update(running: hashlib.blake2b, value: bytes, headers: list[tuple[str, bytes]]) -> None:
    running.update(b"%d:" % len(value) + value)
    for name, content in headers:
        running.update(name.encode() + b"=" + content + b";")


def totals(records: list[TextRecord]) -> dict[str, PackageTotals]:
    """The aggregation of the Spark job in plain Python."""
    found: dict[str, PackageTotals] = {}
    modules: dict[str, set[bytes]] = {}
    for record in records:
        package = record.headers[1][1].decode()
        modules.setdefault(package, set()).add(record.key)
        old = found.get(package, PackageTotals(0, 0, 0, 0))
        found[package] = PackageTotals(
            old.lines + 1,
            len(modules[package]),
            old.text_bytes + len(record.value),
            max(old.longest, len(record.value)),
        )
    return found
