"""Damages log directories at random, by seed, and checks what a start makes of them."""

from __future__ import annotations

import argparse
import logging
import shutil
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable
from itertools import count
from pathlib import Path
from random import Random
from typing import NamedTuple

from ottla.storage.files.layout import offset_of_file
from tests.damage import tree_files
from tests.damage.checks import Required, change, check_derived, check_lookups, check_served
from tests.damage.damages import Damage, damage_partition, damage_root
from tests.damage.directories import Written, load, write
from tests.doubles.storage_logs import NOW_MS

# Every so many directories one has a damaged checkpoint instead.
_ROOT_EVERY = 6


class Template(NamedTuple):
    """An intact directory, which is copied and damaged."""

    path: Path
    written: Written
    clean: bool


def templates(scratch: Path) -> list[Template]:
    """A directory that was stopped cleanly, and one that was not."""
    found = []
    for clean in (True, False):
        path = scratch / f"template-{'clean' if clean else 'unclean'}"
        found.append(Template(path, write(path, clean=clean), clean))
    return found


class _Lines(logging.Handler):
    """Finds tracebacks, and directories that went offline."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.wrong: list[str] = []
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        line = record.getMessage()
        self.lines.append(line)
        is_disk = line.startswith("Log dir ") and " is offline: " in line
        if record.exc_info or is_disk or "Traceback" in line:
            self.wrong.append(line)


class Failure(Exception):
    """An invariant that did not hold, with what reproduces it."""


def damage_one_directory(template: Template, scratch: Path, seed: int) -> list[Damage]:
    """One copy of the template with a damage in each partition. Returns the damages.

    Raises Failure.
    """
    random = Random(seed)
    root = scratch / f"damaged-{seed}"
    shutil.rmtree(root, ignore_errors=True)
    shutil.copytree(template.path, root)
    lines = _Lines()
    logger = logging.getLogger("ottla")
    logger.addHandler(lines)
    propagates, logger.propagate = logger.propagate, False
    damages: list[Damage] = []
    try:
        _play(template, root, random, damages)
        if lines.wrong:
            raise AssertionError(lines.wrong)
    except Exception as error:
        told = "\n  ".join(
            [*map(str, damages), f"clean stop: {template.clean}", "log:", *lines.lines[-30:]]
        )
        told += "\n  " + "".join(traceback.format_exception(error)[-4:])
        raise Failure(f"seed {seed}: {type(error).__name__}: {error}\n  {told}") from error
    finally:
        logger.propagate = propagates
        logger.removeHandler(lines)
    shutil.rmtree(root, ignore_errors=True)
    return damages


def _play(template: Template, root: Path, random: Random, damages: list[Damage]) -> None:
    running = random.random() < 0.3
    in_root = not running and random.randrange(_ROOT_EVERY) == 0
    required = {t: Required(p, template.clean) for t, p in template.written.items()}
    manager = load(root) if running else None
    away: set[str] = set()
    if in_root:
        damages.append(damage_root(random, root))
        for each in required.values():
            each.apply(damages[-1], running=False)
    else:
        for topic in template.written:
            damages.append(damage_partition(random, root / f"{topic}-0", running=running))
            required[topic].apply(damages[-1], running=running)
    if manager is None:
        away = _without_a_segment(root)
        manager = load(root)
    for number in range(2):
        assert not manager.offline_directories
        for topic in template.written:
            log = manager.get(topic, 0)
            path = f"{root}/{topic}-0"
            assert (log is None, path in manager.unusable_logs) == (path in away, path in away)
            if log is None:
                continue
            log.update_high_watermark(log.log_end_offset)
            when = f"start {number}"
            check_served(log, required[topic], 1 << 20, when)
            check_served(log, required[topic], random.choice((1, 200, 700)), when)
            check_lookups(random, log, required[topic])
            if number == 0:
                check_derived(log, required[topic])
                change(random, manager, log, required[topic])
                check_served(log, required[topic], 1 << 20, "after changes")
        assert not manager.offline_directories
        if random.random() < 0.5:
            manager.shutdown(NOW_MS)
        else:
            manager.checkpoint_all()
            manager.abandon()
        if number == 0:
            away = _without_a_segment(root)
            manager = load(root)


def _without_a_segment(root: Path) -> set[str]:
    """The logs of which a segment is a link that leads nowhere. Its records are elsewhere, so the
    log is not opened, rather than read without them."""
    return {
        str(each.parent)
        for each in root.glob("*-0/*.log")
        if each.is_symlink() and offset_of_file(each.name) is not None
    }


def run(
    scratch: Path, seed: int, damages: int, failed: Callable[[Exception], None]
) -> Counter[str]:
    """At least so many damages, from `seed` on: their number for each kind of file.

    `failed` is called with a Failure, or AssertionError of a store.
    """
    made: Counter[str] = Counter()
    prepared = templates(scratch)
    store = scratch / "template-store"
    tree_files.write(store)
    for number in count(seed):
        try:
            made.update(d.kind for d in damage_one_directory(prepared[number % 2], scratch, number))
        except Failure as failure:
            failed(failure)
        try:
            made[f"store {tree_files.damage_one(store, scratch, number)}"] += 1
        except AssertionError as failure:
            failed(failure)
        if made.total() >= damages:
            return made
    raise AssertionError("not reached")


def main() -> None:
    """`python -m tests.damage`."""
    parser = argparse.ArgumentParser(prog="python -m tests.damage", description=__doc__)
    parser.add_argument("--damages", type=int, default=10_000, help="number of damages")
    parser.add_argument("--seed", type=int, default=1, help="first seed")
    parser.add_argument("--keep-going", action="store_true", help="report all failures")
    arguments = parser.parse_args()
    failures: list[Exception] = []

    def failed(failure: Exception) -> None:
        failures.append(failure)
        print(failure, flush=True)
        if not arguments.keep_going:
            raise SystemExit(1)

    with tempfile.TemporaryDirectory(prefix="damage-") as name:
        started = time.process_time()
        made = run(Path(name), arguments.seed, arguments.damages, failed)
    spent = time.process_time() - started
    print(
        f"{made.total()} damages from seed {arguments.seed} on, {len(failures)} failures,", end=" "
    )
    print(f"{spent:.0f} s of processor time: {dict(made.most_common())}")
    raise SystemExit(len(failures) > 0)
