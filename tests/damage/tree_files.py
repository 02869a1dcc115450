"""A damaged file of the embedded store: it is loaded, or one sentence names it and the fix."""

from __future__ import annotations

import asyncio
import shutil
from pathlib import Path
from random import Random

from ottla.controller.tree.embedded_store import EmbeddedStore
from ottla.controller.tree.store import StoreError
from tests.damage.damages import damage_file

_TOPICS = 40


def write(directory: Path) -> None:
    """A store with a few hundred znodes, as a kill leaves it: with a journal."""
    directory.mkdir()

    async def fill() -> None:
        store = EmbeddedStore(str(directory / "live.db"))
        await store.connect()
        for number in range(_TOPICS):
            path = f"/brokers/topics/topic-{number}/partitions/0/state"
            await store.create(path, b'{"leader":%d}' % number, make_parents=True)
        for name in ("live.db", "live.db-wal"):
            shutil.copy(directory / name, directory / name.replace("live", "znodes"))
        await store.close()
        shutil.copy(directory / "live.db", directory / "closed.db")

    asyncio.run(fill())


def damage_one(template: Path, scratch: Path, seed: int) -> str:
    """Damages a copy and opens it: "loaded", or "refused". Raises AssertionError."""
    random = Random(seed)
    directory = scratch / f"store-{seed}"
    directory.mkdir()
    path = directory / "znodes.db"
    victim = path
    if random.random() < 0.5:
        shutil.copy(template / "closed.db", path)
    else:
        shutil.copy(template / "znodes.db", path)
        shutil.copy(template / "znodes.db-wal", directory)
        victim = directory / random.choice(("znodes.db", "znodes.db-wal"))
    actions = ("flip", "zeros", "garbage", "truncate", "extend", "flip", "zeros", "remove", "empty")
    damage = damage_file(random, victim, victim.name, random.choice(actions), running=False)
    try:
        outcome = asyncio.run(_open(path))
    except StoreError as error:
        text = str(error)
        assert str(path) in text, f"seed {seed}: {damage}: {text}"
        assert "\n" not in text, f"seed {seed}: {damage}: {text}"
        outcome = "refused"
    except Exception as error:
        raise AssertionError(f"seed {seed}: {damage}: {type(error).__name__}: {error}") from error
    shutil.rmtree(directory)
    return outcome


async def _open(path: Path) -> str:
    """Loads it, writes to it, and loads it again."""
    for _ in range(2):
        store = EmbeddedStore(str(path), synchronous="OFF")
        try:
            await store.connect()
            for name in list(store.tree.nodes):
                await store.get(name)
                await store.children(name)
            if await store.exists("/new") is None:
                await store.create("/new", b"x")
        finally:
            await store.close()
    return "loaded"
