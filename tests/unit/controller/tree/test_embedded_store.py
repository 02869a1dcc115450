"""The tree in a file: what survives, and what goes wrong."""

from __future__ import annotations

import asyncio
import os
import random
import signal
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest

from ottla.broker.runtime.tasks import spawn
from ottla.controller.tree.embedded_store import EmbeddedStore
from ottla.controller.tree.store import (
    MAX_DATA_BYTES,
    CheckOp,
    ConnectionLost,
    CreateOp,
    Op,
    SetOp,
    StoreError,
    TooLarge,
    make_paths,
)
from ottla.controller.tree.tree_file import ZXID_BLOCK
from tests.doubles.pace import steps_per_turn

REPOSITORY = Path(__file__).resolve().parents[3]

WRITER = """
import asyncio, sys
from ottla.controller.tree.embedded_store import EmbeddedStore
from ottla.controller.tree.store import CreateOp, SetOp

async def main():
    store = EmbeddedStore(sys.argv[1])
    await store.connect()
    await store.create("/n")
    await store.create("/gone")
    await store.delete("/gone")
    await store.create("/mine", ephemeral=True)
    for number in range(10_000_000):
        made = await store.create("/n/x_", b"%d" % number, sequential=True)
        _, stat = await store.get(made)
        await store.multi([SetOp("/n", b"%d" % number), CreateOp(made + "/child")])
        print(made, stat.czxid, flush=True)

asyncio.run(main())
"""


def write_and_kill(path: Path) -> list[list[bytes]]:
    """Names and zxids that a process said it had written before it was killed."""
    writer = subprocess.Popen(
        [sys.executable, "-c", WRITER, str(path)],
        stdout=subprocess.PIPE,
        cwd=REPOSITORY,
        env={**os.environ, "PYTHONPATH": str(REPOSITORY)},
    )
    assert writer.stdout is not None
    try:
        promised = [writer.stdout.readline().split() for _ in range(50)]
    finally:
        writer.send_signal(signal.SIGKILL)
        rest = writer.stdout.readlines()
        writer.wait()
        writer.stdout.close()
    return promised + [line.split() for line in rest if line.endswith(b"\n")]


async def test_what_returned_survives_kill_9(tmp_path: Path) -> None:
    path = tmp_path / "znodes.db"
    promised = write_and_kill(path)
    store = EmbeddedStore(str(path))
    await store.connect()
    highest = 0
    for name, czxid in promised:
        _, stat = await store.get(name.decode())
        assert stat.czxid == int(czxid)
        assert await store.exists(f"{name.decode()}/child") is not None
        highest = max(highest, stat.czxid)
    assert int((await store.get("/n"))[0]) >= len(promised) - 1
    assert await store.exists("/gone") is None
    assert await store.exists("/mine") is None  # its session died with the process
    await store.create("/later")
    _, made = await store.get("/later")
    assert made.czxid > highest
    next_name = await store.create("/n/x_", sequential=True)
    assert next_name > promised[-1][0].decode()
    await store.close()


async def test_everything_is_there_after_a_restart(tmp_path: Path) -> None:
    path = str(tmp_path / "znodes.db")
    store = EmbeddedStore(path)
    await store.connect()
    await make_paths(store, ["/a/b/c", "/a/d"])
    await store.set("/a/b", b"data")
    await store.delete("/a/d")
    await store.create("/a/mine", ephemeral=True)
    before = {name: await store.get(name) for name in ("/a/b", "/a/b/c")}
    zxid = store.tree.zxid
    await store.close()
    again = EmbeddedStore(path)
    await again.connect()
    assert {name: await again.get(name) for name in ("/a/b", "/a/b/c")} == before
    assert await again.children("/a") == ["b"]
    assert again.tree.zxid > zxid
    await again.close()


async def test_transaction_ids_outgrow_their_block(tmp_path: Path) -> None:
    path = str(tmp_path / "znodes.db")
    store = EmbeddedStore(path)
    await store.connect()
    store.tree.zxid += ZXID_BLOCK
    await store.create("/mine", ephemeral=True)  # moves the bound although unwritten
    _, ephemeral = await store.get("/mine")
    await store.close()
    again = EmbeddedStore(path)
    await again.connect()
    await again.create("/later")
    _, later = await again.get("/later")
    assert later.czxid > ephemeral.czxid
    await again.close()


async def test_second_process_learns_who_is_there(tmp_path: Path) -> None:
    path = str(tmp_path / "znodes.db")
    store = EmbeddedStore(path)
    await store.connect()
    with pytest.raises(StoreError, match="in use by another broker process"):
        await EmbeddedStore(path).connect()
    await store.close()


async def test_file_that_is_no_database(tmp_path: Path) -> None:
    path = tmp_path / "znodes.db"
    path.write_bytes(b"something else entirely" * 100)
    with pytest.raises(StoreError, match=r"znodes\.db"):
        await EmbeddedStore(str(path)).connect()
    with pytest.raises(StoreError, match="cannot be opened"):
        await EmbeddedStore(str(tmp_path / "missing" / "znodes.db")).connect()


@pytest.mark.parametrize("name", ["znodes.db", "znodes.db-wal"])
async def test_what_is_no_file_is_named(tmp_path: Path, name: str) -> None:
    """The directory that it is in is there, and can be written."""
    path = tmp_path / "znodes.db"
    store = EmbeddedStore(str(path))
    await store.connect()
    await store.close()
    (tmp_path / name).unlink(missing_ok=True)
    (tmp_path / name).mkdir()
    with pytest.raises(StoreError, match=rf"/{name} is no file; move it away"):
        await EmbeddedStore(str(path)).connect()


async def test_writes_that_come_together_share_a_commit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = EmbeddedStore(str(tmp_path / "znodes.db"))
    await store.connect()
    assert store._commits is not None
    commits = 0
    original = store._commits.file.commit

    def count(*arguments: object) -> None:
        nonlocal commits
        commits += 1
        original(*arguments)  # type: ignore[arg-type] # passed through

    monkeypatch.setattr(store._commits.file, "commit", count)
    await asyncio.gather(*(store.create(f"/n{number}") for number in range(100)))
    assert commits <= 3
    assert len(await store.children("/")) == 100
    await store.close()


async def test_disk_that_fails_fails_writes_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = EmbeddedStore(str(tmp_path / "znodes.db"))
    await store.connect()
    assert store._commits is not None

    def full(*_: object) -> None:
        raise sqlite3.OperationalError("database or disk is full")

    monkeypatch.setattr(store._commits.file, "commit", full)
    responses = await asyncio.gather(
        store.create("/a"),
        store.create("/b"),
        store.multi([CreateOp("/c")]),
        return_exceptions=True,
    )
    assert {type(response) for response in responses} == {ConnectionLost}
    with pytest.raises(ConnectionLost, match="disk is full"):
        await store.create("/d")  # memory and file differ: no more promises
    assert await store.exists("/d") is None
    assert await store.children("/") == ["a", "b", "c"]
    await store.close()


async def test_expired_session_of_a_test(tmp_path: Path) -> None:
    store = EmbeddedStore(str(tmp_path / "znodes.db"))
    await store.connect()
    await store.create("/mine", ephemeral=True)
    store.lose_session()
    with pytest.raises(StoreError):
        await store.set("/mine", b"")
    store.expire_session()
    assert await store.exists("/mine") is None
    await store.multi([CreateOp("/kept"), SetOp("/kept", b"x")])
    await store.close()


async def test_the_file_and_its_journals_are_for_the_owner_only(tmp_path: Path) -> None:
    """It has the credentials of users. A file of an earlier version is restricted, too."""
    path = tmp_path / "znodes.db"
    before = os.umask(0)
    try:
        for number in range(2):
            store = EmbeddedStore(str(path))
            await store.connect()
            await store.create(f"/a{number}", b"secret")
            names = os.listdir(tmp_path)
            assert "znodes.db-wal" in names
            assert {os.stat(tmp_path / name).st_mode & 0o777 for name in names} == {0o600}
            await store.close()
            path.chmod(0o644)
    finally:
        os.umask(before)


async def test_other_tasks_run_while_many_operations_are_applied() -> None:
    store = EmbeddedStore()
    await store.connect()
    turns = 0

    async def other() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    task = spawn(other(), name="other")
    batches = [[CreateOp(f"/{batch}-{op}") for op in range(100)] for batch in range(40)]
    with steps_per_turn(1):
        results = await store.multi_many(batches)
    task.cancel()
    assert [len(each) for each in results if isinstance(each, list)] == [100] * 40
    assert turns >= 40
    await store.close()


def damaged(content: bytes, rng: random.Random) -> bytes:
    """Bits that flipped, zeros, garbage, or the end is missing."""
    changed = bytearray(content)
    kind, at = rng.choice(["flips", "zeros", "garbage", "cut"]), rng.randrange(len(changed))
    end = min(at + rng.randint(1, 5000), len(changed))
    if kind == "flips":
        for _ in range(rng.randint(1, 8)):
            changed[rng.randrange(len(changed))] ^= 1 << rng.randrange(8)
    elif kind == "zeros":
        changed[at:end] = bytes(end - at)
    elif kind == "garbage":
        changed[at:end] = rng.randbytes(end - at)
    else:
        del changed[at:]
    return bytes(changed)


@pytest.mark.parametrize("suffix", ["", "-wal"])
async def test_a_start_on_a_damaged_file_loads_it_or_names_it(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / "znodes.db"
    store = EmbeddedStore(str(path))
    await store.connect()
    for number in range(60):
        await store.create(f"/n{number}", bytes(300))
    if not suffix:
        await store.close()
    whole = {
        name: (tmp_path / name).read_bytes()
        for name in ("znodes.db", "znodes.db-wal")
        if (tmp_path / name).exists()
    }
    if suffix:
        await store.close()
    refusals: list[str] = []
    for seed in range(100):
        directory = tmp_path / str(seed)
        directory.mkdir()
        for name, content in whole.items():
            is_it = name == f"znodes.db{suffix}"
            (directory / name).write_bytes(
                damaged(content, random.Random(seed)) if is_it else content
            )
        again = EmbeddedStore(str(directory / "znodes.db"))
        try:
            await again.connect()
        except StoreError as error:
            refusals.append(str(error))
            continue
        await again.close()
    assert all("znodes.db is not a readable znode file: " in each for each in refusals), refusals
    assert all("restore it from a backup" in each for each in refusals), refusals
    assert refusals or suffix, "a damaged journal ends at the last good transaction"


def test_the_settings_of_an_entity_have_the_size_that_zookeeper_accepts(tmp_path: Path) -> None:
    async def body() -> None:
        store = EmbeddedStore(str(tmp_path / "tree"))
        await store.connect()
        await store.create("/config/n", b"x" * MAX_DATA_BYTES, make_parents=True)
        longer = b"x" * (MAX_DATA_BYTES + 1)
        with pytest.raises(TooLarge, match="/config/n would have 1000001 bytes"):
            await store.set("/config/n", longer)
        with pytest.raises(TooLarge, match="/config/m would have"):
            await store.create("/config/m", longer)
        changes: list[Op] = [
            CheckOp("/config/n", 0),
            CreateOp("/config/m"),
            SetOp("/config/n", longer),
        ]
        (refused,) = await store.multi_many([changes])
        assert isinstance(refused, TooLarge)
        assert await store.exists("/config/m") is None
        await store.create("/topic", longer)  # of very many partitions
        await store.close()

    asyncio.run(body())
