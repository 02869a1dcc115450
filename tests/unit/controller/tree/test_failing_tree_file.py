"""An embedded store whose file cannot be written for a while: reads go on, writes fail with an
error that clients retry, and the store writes again by itself."""

from __future__ import annotations

import asyncio
import errno
import os
import resource
import shutil
import sqlite3
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

from ottla.controller.tree import embedded_store, tree_file
from ottla.controller.tree.embedded_store import EmbeddedStore
from ottla.controller.tree.store import ConnectionLost, CreateOp, SetOp, StoreError
from ottla.controller.tree.tree_file import TreeFile
from ottla.controller.zookeeper_server.server import ZooKeeperServer

DEADLINE_SECONDS = 30.0
BIG = bytes(1_000_000)


@pytest.fixture
async def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[EmbeddedStore]:
    monkeypatch.setattr(embedded_store, "RETRY_SECONDS", 0.01)
    monkeypatch.setattr(embedded_store, "VERIFY_SECONDS", 0.01)
    store = EmbeddedStore(str(tmp_path / "znodes.db"))
    await store.connect()
    yield store
    await store.close()


def file_of(store: EmbeddedStore) -> TreeFile:
    assert store._commits is not None
    return store._commits.file


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(DEADLINE_SECONDS):
        while not condition():  # noqa: ASYNC110 - the product has no event for a test
            await asyncio.sleep(0.005)


def is_writable(store: EmbeddedStore) -> bool:
    return store.write_problem is None


async def stored(path: Path, *names: str) -> list[bytes | None]:
    """What a start would find, in a copy of the file: its process may still run."""
    copy = path.with_name("copy")
    copy.mkdir()
    for each in path.parent.glob(f"{path.name}*"):
        shutil.copy(each, copy)
    again = EmbeddedStore(str(copy / path.name))
    await again.connect()
    found = [None if entry is None else entry[0] for entry in await again.get_many(names)]
    await again.close()
    return found


class FullDisk:
    """A database that gets no more pages, as on a disk without space."""

    def __init__(self, store: EmbeddedStore, monkeypatch: pytest.MonkeyPatch) -> None:
        self.pages = 0
        self._monkeypatch = monkeypatch
        original = TreeFile._open

        def open_limited(file: TreeFile) -> None:
            original(file)
            file.connection.execute(f"PRAGMA max_page_count={self.pages or 1 << 30}")

        monkeypatch.setattr(TreeFile, "_open", open_limited)
        self._file = file_of(store)

    def fill(self) -> None:
        (self.pages,) = self._file.connection.execute("PRAGMA page_count").fetchone()
        self._file.connection.execute(f"PRAGMA max_page_count={self.pages}")

    def free(self) -> None:
        self.pages = 0


async def test_a_full_disk_heals_without_a_restart(
    store: EmbeddedStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = FullDisk(store, monkeypatch)
    await store.create("/before", b"1")
    await store.create("/mine", ephemeral=True)
    session_id = store.session_id
    disk.fill()
    with pytest.raises(ConnectionLost, match="full"):
        await store.create("/big", BIG)
    assert store.write_problem is not None
    assert "free disk space" in store.write_problem.fix
    assert (await store.get("/before"))[0] == b"1", "reads go on"
    zxid = store.tree.zxid
    for write in (
        store.create("/later"),
        store.set("/before", b"2"),
        store.delete("/before"),
        store.multi([CreateOp("/later")]),
        store.multi_many([[CreateOp("/later")], [SetOp("/before", b"3")]]),
    ):
        with pytest.raises(ConnectionLost, match="full"):
            await write
    assert store.tree.zxid == zxid, "what cannot be written is not applied"

    disk.free()
    await until(lambda: is_writable(store))
    await store.create("/later", b"4")
    assert store.session_id == session_id
    assert await store.exists("/mine") is not None
    names = ("/before", "/big", "/later", "/mine")
    assert await stored(tmp_path / "znodes.db", *names) == [b"1", BIG, b"4", None]


async def test_a_multi_is_written_whole_or_not_at_all(
    store: EmbeddedStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = FullDisk(store, monkeypatch)
    await store.create("/a", b"1")
    disk.fill()
    with pytest.raises(ConnectionLost):
        await store.multi([SetOp("/a", b"2"), CreateOp("/b", BIG), CreateOp("/c")])
    (found,) = await stored(tmp_path / "znodes.db", "/a")
    assert found == b"1"


async def test_a_journal_that_cannot_grow(store: EmbeddedStore, tmp_path: Path) -> None:
    """Part of the transaction is in the journal: that is our own change of the file."""
    await store.create("/a", b"1")
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    journal = tmp_path / "znodes.db-wal"
    resource.setrlimit(resource.RLIMIT_FSIZE, (journal.stat().st_size + len(BIG) // 2, hard))
    try:
        with pytest.raises(ConnectionLost, match="cannot be written"):
            await store.create("/big", BIG)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    await until(lambda: is_writable(store))
    await store.create("/b", b"2")
    names = ("/a", "/big", "/b")
    assert await stored(tmp_path / "znodes.db", *names) == [b"1", BIG, b"2"]
    assert not [name for name in os.listdir(tmp_path) if "replaced" in name], "a change of our own"


async def test_an_error_of_a_moment_is_not_seen_by_writers(
    store: EmbeddedStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file, commit = file_of(store), TreeFile.commit
    failures = [sqlite3.OperationalError("disk I/O error")]

    def fail_once(*arguments: object, **options: object) -> None:
        if failures:
            raise failures.pop()
        commit(file, *arguments, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(file, "commit", fail_once)
    await asyncio.gather(store.create("/a", b"1"), store.create("/b", b"2"))
    assert not failures
    assert store.write_problem is None
    assert await stored(tmp_path / "znodes.db", "/a", "/b") == [b"1", b"2"]


async def test_what_was_written_although_it_failed_is_written_again(
    store: EmbeddedStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The error of a flush after the write: nobody knows what the disk has."""
    file, commit = file_of(store), TreeFile.commit
    failures = [OSError(errno.EIO, "flush")]

    def fail_after(*arguments: object, **options: object) -> None:
        commit(file, *arguments, **options)  # type: ignore[arg-type]
        if failures:
            raise failures.pop()

    monkeypatch.setattr(file, "commit", fail_after)
    await store.create("/gone")
    failures += [OSError(errno.EIO, "flush"), OSError(errno.EIO, "flush")]
    with pytest.raises(ConnectionLost):
        await store.multi([CreateOp("/a", b"1")])
    await until(lambda: is_writable(store))
    await store.delete("/gone")
    assert await stored(tmp_path / "znodes.db", "/a", "/gone") == [b"1", None]


@pytest.mark.parametrize(
    ("number", "fix"),
    [
        (errno.EROFS, "read-write"),
        (errno.EDQUOT, "quota"),
        (errno.EACCES, "right to write"),
        (errno.EIO, "check the disk"),
    ],
)
async def test_the_problem_names_the_error_of_the_system_and_its_fix(
    store: EmbeddedStore, monkeypatch: pytest.MonkeyPatch, number: int, fix: str
) -> None:
    """SQLite calls most of them "disk I/O error"."""

    def fail(*_: object, **__: object) -> None:
        raise sqlite3.OperationalError("disk I/O error")

    monkeypatch.setattr(TreeFile, "commit", fail)
    monkeypatch.setattr(tree_file, "_system_error", lambda _: OSError(number, os.strerror(number)))
    with pytest.raises(ConnectionLost, match=os.strerror(number)):
        await store.create("/a")
    assert store.write_problem is not None
    assert fix in store.write_problem.fix
    monkeypatch.undo()
    await until(lambda: is_writable(store))


HOLD_LOCK = """
import sqlite3, sys
connection = sqlite3.connect(sys.argv[1], timeout=30, isolation_level=None)
connection.execute("PRAGMA locking_mode=EXCLUSIVE")
connection.execute("BEGIN EXCLUSIVE")
connection.execute("SELECT * FROM znodes").fetchall()
print("held", flush=True)
sys.stdin.read()
"""


async def test_a_lock_of_another_program(
    store: EmbeddedStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It can only come between a failure and the next open: the broker holds the file locked."""
    path = str(tmp_path / "znodes.db")
    await store.create("/a", b"1")
    holders: list[subprocess.Popen[str]] = []
    original = TreeFile._open

    def open_later(file: TreeFile) -> None:
        if not holders:
            holder = subprocess.Popen(
                [sys.executable, "-c", HOLD_LOCK, path],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
            )
            assert holder.stdout is not None
            holder.stdout.readline()
            holders.append(holder)
        original(file)

    def fail(*_: object, **__: object) -> None:
        raise sqlite3.OperationalError("disk I/O error")

    monkeypatch.setattr(TreeFile, "_open", open_later)
    monkeypatch.setattr(TreeFile, "commit", fail)
    with pytest.raises(ConnectionLost, match="locked"):
        await store.create("/b", b"2")
    assert store.write_problem is not None
    assert "end the other program" in store.write_problem.fix
    monkeypatch.undo()
    (holder,) = holders
    holder.communicate("")
    await until(lambda: is_writable(store))
    await store.create("/c", b"3")
    assert await stored(tmp_path / "znodes.db", "/a", "/b", "/c") == [b"1", b"2", b"3"]


class HangingFile:
    """Commits wait until they may go on, as on a network file system without a server."""

    def __init__(self, store: EmbeddedStore, monkeypatch: pytest.MonkeyPatch) -> None:
        self.may_go_on = threading.Event()
        file, commit = file_of(store), TreeFile.commit

        def hang(*arguments: object, **options: object) -> None:
            self.may_go_on.wait(DEADLINE_SECONDS)
            commit(file, *arguments, **options)  # type: ignore[arg-type]

        monkeypatch.setattr(file, "commit", hang)


async def test_a_file_system_that_hangs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(embedded_store, "RETRY_SECONDS", 0.01)
    store = EmbeddedStore(str(tmp_path / "znodes.db"), commit_seconds=0.05)
    await store.connect()
    await store.create("/before", b"1")
    hanging = HangingFile(store, monkeypatch)
    with pytest.raises(ConnectionLost, match="no response of the file system"):
        await store.create("/a", b"2")
    with pytest.raises(ConnectionLost, match="no response"):  # at once
        await store.create("/b")
    assert (await store.get("/before"))[0] == b"1"
    hanging.may_go_on.set()
    await until(lambda: is_writable(store))
    await store.create("/c", b"3")
    assert await stored(tmp_path / "znodes.db", "/a", "/b", "/c") == [b"2", None, b"3"]
    await store.close()


async def test_a_store_closes_although_its_file_system_hangs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tree_file.TreeCommits.finish, "__defaults__", (0.05,))
    store = EmbeddedStore(str(tmp_path / "znodes.db"), commit_seconds=0.05)
    await store.connect()
    hanging = HangingFile(store, monkeypatch)
    with pytest.raises(ConnectionLost):
        await store.create("/a")
    async with asyncio.timeout(DEADLINE_SECONDS):
        await store.close()
    hanging.may_go_on.set()


@pytest.mark.parametrize("serves", [False, True], ids=["store", "server"])
async def test_a_start_on_a_file_system_that_hangs(
    serves: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The loop goes on meanwhile: that of a supervisor has health and signals, too."""
    may_go_on = threading.Event()
    monkeypatch.setattr(tree_file, "OPEN_SECONDS", 0.05)
    monkeypatch.setattr(TreeFile, "_open", lambda _: may_go_on.wait(DEADLINE_SECONDS))
    path = str(tmp_path / "znodes.db")
    with pytest.raises(StoreError, match="no response of the file system"):
        await (ZooKeeperServer(path).start() if serves else EmbeddedStore(path).connect())
    may_go_on.set()


def delete_both(path: Path) -> None:
    path.unlink()
    path.with_name(f"{path.name}-wal").unlink()


def delete_file(path: Path) -> None:
    path.unlink()


def delete_journal(path: Path) -> None:
    path.with_name(f"{path.name}-wal").unlink()


def replace(path: Path) -> None:
    other = path.with_name("other")
    other.write_bytes(b"something else" * 1000)
    os.replace(other, path)


def overwrite(path: Path) -> None:
    path.write_bytes(b"something else" * 1000)


def empty(path: Path) -> None:
    path.write_bytes(b"")


def overwrite_journal(path: Path) -> None:
    path.with_name(f"{path.name}-wal").write_bytes(b"something else" * 1000)


KEPT = {replace: b"something else" * 1000, overwrite: b"something else" * 1000}


@pytest.mark.parametrize("is_idle", [True, False])
@pytest.mark.parametrize(
    "damage",
    [
        *(delete_both, delete_file, delete_journal, replace, overwrite, empty),
        overwrite_journal,
    ],
)
async def test_a_file_that_others_delete_or_replace_is_written_again(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    damage: Callable[[Path], None],
    is_idle: bool,
) -> None:
    monkeypatch.setattr(embedded_store, "VERIFY_SECONDS", 0.01 if is_idle else 3600.0)
    path = tmp_path / "znodes.db"
    store = EmbeddedStore(str(path))
    await store.connect()
    for number in range(100):
        await store.create(f"/{number}", bytes(1000))
    await store.delete("/3")
    before = file_of(store)._seen
    damage(path)
    if is_idle:
        await until(lambda: file_of(store)._seen not in (None, before))
        await until(lambda: store._commits is not None and store._commits._call is None)
    else:
        await store.create("/after", b"1")
    expected: list[bytes | None] = [bytes(1000)] * 100
    expected[3] = None
    if not is_idle:
        expected.append(b"1")
    names = [f"/{number}" for number in range(100)] + ["/after"] * (not is_idle)
    assert await stored(path, *names) == expected
    await store.close()
    if damage in KEPT:
        kept = tmp_path / "znodes.db.replaced-0"
        assert kept.read_bytes() == KEPT[damage]
    again = EmbeddedStore(str(path))
    await again.connect()
    assert [entry and entry[0] for entry in await again.get_many(names)] == expected
    await again.close()


async def test_a_new_file_takes_the_place_of_another_when_it_is_complete(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without space for it the old one stays, and is kept once."""
    monkeypatch.setattr(embedded_store, "RETRY_SECONDS", 0.01)
    path = tmp_path / "znodes.db"
    store = EmbeddedStore(str(path))
    await store.connect()
    await store.create("/a", b"1")
    os.utime(path, (1, 1))
    attempts: list[object] = []

    def fail(*arguments: object, **_: object) -> None:
        attempts.append(arguments)
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    for function in ("shutil.copyfile", "os.replace", "sqlite3.connect"):
        attempts.clear()
        with monkeypatch.context() as patch:
            patch.setattr(function, fail)
            with pytest.raises(ConnectionLost, match="No space left"):
                await store.create(f"/{function}", b"2")
            await until(lambda: len(attempts) > 3)
            found = await asyncio.to_thread(path.read_bytes)
            assert found.startswith(b"SQLite format 3")
        await until(lambda: is_writable(store))
        os.utime(path, (2, 2))
    await store.create("/b", b"3")
    kept = [name for name in os.listdir(tmp_path) if "replaced" in name]
    assert len(kept) == 3, kept
    assert not [name for name in os.listdir(tmp_path) if ".new" in name]
    assert await stored(path, "/a", "/b", "/os.replace") == [b"1", b"3", b"2"]
    await store.close()


async def test_a_file_system_that_changes_times_by_itself(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(embedded_store, "VERIFY_SECONDS", 3600.0)
    path = tmp_path / "znodes.db"
    store = EmbeddedStore(str(path))
    await store.connect()
    for number in range(20):
        os.utime(path, (number, number))
        await store.create(f"/{number}", b"1")
    kept = [name for name in os.listdir(tmp_path) if "replaced" in name]
    assert len(kept) == tree_file._MAX_TIME_CHANGES
    names = [f"/{number}" for number in range(20)]
    assert await stored(path, *names) == [b"1"] * 20
    await store.close()


async def test_a_program_that_replaces_the_file_again_and_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(embedded_store, "RETRY_SECONDS", 0.01)
    path = tmp_path / "znodes.db"
    store = EmbeddedStore(str(path))
    await store.connect()
    for number in range(tree_file._MAX_KEPT):
        replace(path)
        await store.create(f"/{number}", b"1")
    replace(path)
    with pytest.raises(ConnectionLost, match="another program replaces or changes it"):
        await store.create("/a", b"2")
    for number in range(tree_file._MAX_KEPT):
        (tmp_path / f"znodes.db.replaced-{number}").unlink()
    await until(lambda: is_writable(store))
    assert await stored(path, "/a", "/0") == [b"2", b"1"]
    await store.close()


async def test_damage_that_sqlite_finds_is_written_again(
    store: EmbeddedStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The time of the file does not tell it: the disk has lost a page."""
    await store.create("/a", b"1")
    failures = [sqlite3.DatabaseError("database disk image is malformed")]
    commit = TreeFile.commit

    def fail_once(file: TreeFile, *arguments: object, **options: object) -> None:
        if failures:
            raise failures.pop()
        commit(file, *arguments, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(TreeFile, "commit", fail_once)
    await store.create("/b", b"2")
    assert (tmp_path / "znodes.db.replaced-0").exists()
    assert await stored(tmp_path / "znodes.db", "/a", "/b") == [b"1", b"2"]


async def test_a_store_that_is_closed_while_it_cannot_write_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    store = EmbeddedStore(str(tmp_path / "znodes.db"))
    await store.connect()

    def fail(*_: object, **__: object) -> None:
        raise sqlite3.OperationalError("database or disk is full")

    monkeypatch.setattr(TreeFile, "commit", fail)
    with pytest.raises(ConnectionLost):
        await store.create("/a")
    await store.close()
    assert "The last changes of the znode tree are not in" in caplog.text


async def test_a_start_on_a_full_disk_names_it_and_the_fix(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    full = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    monkeypatch.setattr(tree_file, "_system_error", lambda _: full)

    def fail(*_: object, **__: object) -> None:
        raise sqlite3.OperationalError("database or disk is full")

    with monkeypatch.context() as patch:
        patch.setattr(TreeFile, "_add_columns", fail)
        with pytest.raises(StoreError, match=r"No space left on device.*free disk space"):
            await EmbeddedStore(str(tmp_path / "znodes.db")).connect()
    monkeypatch.setattr(TreeFile, "commit", fail)
    with pytest.raises(StoreError, match=r"No space left on device.*free disk space"):
        await EmbeddedStore(str(tmp_path / "znodes.db")).connect()
