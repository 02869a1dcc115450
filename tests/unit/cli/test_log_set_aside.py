"""`ottla log set-aside`: arguments, refusals, what it prints, and the locks."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from ottla.storage.config import LogConfig
from ottla.storage.directories.log_directories import DirectoryLock
from ottla.storage.directories.log_manager import LogManager
from ottla.storage.files.fs import RealFileSystem
from ottla.storage.files.set_aside import Note, Reason, set_file_aside
from tests.doubles.command_line import CommandLine, Outcome
from tests.doubles.storage_logs import NOW_MS, append, plain

SEGMENT_BYTES = 720


def opened(root: Path) -> LogManager:
    manager = LogManager([root], LogConfig(segment_bytes=SEGMENT_BYTES))
    manager.load(NOW_MS)
    return manager


def end_of(root: Path, topic: str) -> int:
    manager = opened(root)
    log = manager.get(topic, 0)
    manager.shutdown(NOW_MS)
    return -1 if log is None else log.log_end_offset


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """`a` and `b` are set aside as a whole; the last segment of `c`, too."""
    root = tmp_path / "data"
    manager = LogManager([root], LogConfig(segment_bytes=SEGMENT_BYTES))
    manager.lock()
    manager.load(NOW_MS)
    manager.write_meta_properties(1, "c")
    for topic in "abc":
        log = manager.get_or_create(topic, 0, topic_id=topic.encode() * 16, now_ms=NOW_MS)
        for _ in range(4):
            append(log, plain(10))
    for topic, reason in (("a", Reason.TOPIC_GONE), ("b", Reason.NOT_ASSIGNED)):
        note = Note(reason, f"the detail of {topic}", topic == "a", NOW_MS)
        manager.delete_async(topic, 0, NOW_MS, note)
    manager.shutdown(NOW_MS)
    set_file_aside(RealFileSystem(), f"{root}/c-0/{20:020d}.log", Reason.DAMAGED)
    return root


def run(*arguments: object, text: str = "") -> Outcome:
    return CommandLine("127.0.0.1:1")("log", "set-aside", *map(str, arguments), text=text)


def paths(root: Path, topic: str = "") -> list[str]:
    found = [str(each["path"]) for each in run("list", root, "--json").value]
    return [path for path in found if f"/{topic}" in path]


def test_list_shows_everything_and_changes_nothing(root: Path) -> None:
    before = {path: path.stat().st_mtime_ns for path in root.rglob("*")}
    with_broker = DirectoryLock(str(root))
    rows = run("list", root, "--json").value
    with_broker.release()
    assert [(row["topic"], row["partition"], row["reason"]) for row in rows] == [
        ("a", 0, "topic-gone"),
        ("b", 0, "not-assigned"),
        ("c", 0, "damaged"),
    ]
    assert [row["needs_attention"] for row in rows] == [True, False, True]
    assert [(row["first_offset"], row["next_offset"]) for row in rows] == [
        (0, 40),
        (0, 40),
        (20, 40),
    ]
    assert rows[0]["detail"] == "the detail of a"
    assert rows[0]["topic_id"] == "YWFhYWFhYWFhYWFhYWFhYQ"
    assert str(rows[0]["set_aside"]).startswith("2023-11-1")
    assert rows[2]["bytes"] == 702
    after = {path: path.stat().st_mtime_ns for path in root.rglob("*")}
    assert {path: after[path] for path in before} == before
    table = run("list", root)
    assert table.code == 0
    assert "the detail of a" in table.output
    assert run("list", root, "--topic", "b").output.count("/b-0.") == 2
    assert run("list", root, "--topic", "x").output == "Nothing is set aside.\n"


def test_restore_and_discard_by_topic(root: Path) -> None:
    done = run("restore", "--topic", "a", root)
    assert (done.code, done.output.splitlines()) == (
        0,
        [f"restored {root}/a-0 (offsets 0 to 40, 1404 bytes)"],
    )
    assert run("discard", "--topic", "b", root, "--yes").output.startswith("deleted ")
    assert run("restore", "--all", root).code == 0
    assert [end_of(root, topic) for topic in "abc"] == [40, -1, 40]
    assert run("restore", "--all", root).output == "Nothing is set aside.\n"


def test_restore_and_discard_by_path(root: Path, tmp_path: Path) -> None:
    a, b, c = paths(root)
    assert run("restore", a, c).code == 0
    again = run("restore", a)
    assert (again.code, "does not exist" in again.errors) == (1, True)
    asked = run("discard", b, text="n\n")
    assert (asked.code, "offsets 0 to 40" in asked.errors) == (1, True)
    assert "nothing was deleted" in asked.errors
    assert run("discard", b, text="y\n").code == 0
    assert paths(root) == []
    config = tmp_path / "server.properties"
    config.write_text(f"broker.id=1\nlog.dirs={root}\n")
    assert run("list", "--config", config).output == "Nothing is set aside.\n"


def test_a_broker_has_to_be_stopped_for_restore_only(root: Path) -> None:
    lock = DirectoryLock(str(root))
    a, b, _ = paths(root)

    # This process has the lock of the broker; another one does not get it.
    def other(*arguments: str) -> tuple[int, str]:
        program = [sys.executable, "-m", "ottla.cli.main", "log", "set-aside", *arguments]
        done = subprocess.run(program, capture_output=True, text=True, check=False)
        return done.returncode, done.stderr

    code, errors = other("restore", a)
    assert (code, errors) == (
        1,
        f"ottla: a broker uses log directory {root}; stop the broker first.\n",
    )
    assert other("discard", b, "--yes")[0] == 0
    lock.release()
    assert other("restore", a)[0] == 0


def test_what_is_not_restored_is_named_and_the_rest_is(root: Path) -> None:
    manager = opened(root)
    append(manager.get_or_create("a", 0, now_ms=NOW_MS), plain(3))
    manager.shutdown(NOW_MS)
    done = run("restore", "--all", root)
    assert done.code == 1
    assert "1 of 3 were not restored." in done.errors
    assert f"{root}/a-0 (offsets 0 to 3, " in done.errors
    assert "--replace" in done.errors
    assert [end_of(root, topic) for topic in "abc"] == [3, 40, 40]
    assert run("restore", "--all", root, "--replace").code == 0
    assert end_of(root, "a") == 40
    (item,) = run("list", root, "--json").value
    assert (item["reason"], item["needs_attention"]) == ("replaced", False)


def test_two_logs_of_a_partition_are_not_both_restored(root: Path) -> None:
    (a,) = paths(root, "a-0")
    second = Path(a[: -len("-stray") - 1] + ("e" if a[-7] == "f" else "f") + "-stray")
    second.mkdir()
    done = run("restore", "--all", root)
    assert (done.code, "name the one to restore" in done.errors) == (1, True)


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ((), "name what is set aside"),
        (("ROOT",), "add --topic or --all"),
        (("--all",), "name log directories, or --config"),
        (("A", "--all"), "leave out --all"),
        (("ROOT/../data", "--all"), "without `..`"),
        (("ROOT/c-0",), "is not set aside"),
        (("ROOT/c-0/00000000000000000000.log",), "is not set aside"),
        (("ROOT/none", "--yes"), "does not exist"),
        (("ELSEWHERE",), "is not set aside"),
        (("LINK",), "is a symbolic link"),
        (("LINKED-PARTITION",), "is a symbolic link"),
    ],
)
@pytest.mark.parametrize("command", ["restore", "discard"])
def test_other_paths_are_refused(
    root: Path, tmp_path: Path, command: str, arguments: tuple[str, ...], text: str
) -> None:
    (a,) = paths(root, "a-0")
    (tmp_path / "home").mkdir()
    target = tmp_path / "home" / f"t-0.{'1' * 32}-stray"
    target.mkdir()
    (target / "thesis.txt").write_text("x")
    link = root / f"d-0.{'2' * 32}-stray"
    link.symlink_to(target)
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "00000000000000000000.log.damaged.set-aside").write_text("x")
    (root / "e-0").symlink_to(tmp_path / "elsewhere")
    known = {
        "ROOT": str(root),
        "A": a,
        "ELSEWHERE": str(target),
        "LINK": str(link),
        "LINKED-PARTITION": f"{root}/e-0/00000000000000000000.log.damaged.set-aside",
    }
    words = []
    for word in arguments:
        if word == "--yes" and command == "restore":
            continue
        name, slash, rest = word.partition("/")
        words.append(known.get(name, name) + slash + rest)
    before = sorted(tmp_path.rglob("*"))
    done = run(command, *words, *(["--yes"] if command == "discard" else []))
    assert done.code in (1, 2), done
    assert text in done.errors
    assert sorted(tmp_path.rglob("*")) == before


def test_what_root_writes_belongs_to_the_broker(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else a broker that does not run as root could not read its checkpoints any more."""
    given: dict[str, tuple[int, int]] = {}

    def chown(file: str | int, user: int, group: int) -> None:
        path = file if isinstance(file, str) else os.readlink(f"/proc/self/fd/{file}")
        given[Path(path).name] = user, group

    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setattr(os, "chown", chown)
    owner = root.stat()
    (root / "log-start-offset-checkpoint").write_text("0\n1\nc 0 30\n")
    assert run("restore", "--topic", "c", root).code == 0
    assert given == dict.fromkeys(
        (".lock", "log-start-offset-checkpoint.tmp"), (owner.st_uid, owner.st_gid)
    )


def test_a_log_directory_with_two_names_is_one(root: Path, tmp_path: Path) -> None:
    link = tmp_path / "link"
    link.symlink_to(root)
    assert len(run("list", link, root, "--json").value) == 3
    manager = opened(root)
    append(manager.get_or_create("a", 0, now_ms=NOW_MS), plain(3))
    manager.shutdown(NOW_MS)
    done = run("restore", "--topic", "a", link, "--log-dir", root, "--replace")
    assert done.code == 0, done
    assert end_of(root, "a") == 40
