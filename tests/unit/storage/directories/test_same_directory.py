"""Directories with more than one name: in `log.dirs`, and of partitions."""

import os
from pathlib import Path

import pytest

from ottla.storage.config import LogConfig
from ottla.storage.directories.log_manager import LogManager
from ottla.storage.directories.same_directory import check_distinct, check_not_a_partition
from ottla.storage.errors import OverlappingDirectories
from ottla.storage.files.fs import RealFileSystem
from tests.doubles.memory_file_system import MemoryFileSystem
from tests.doubles.storage_logs import NOW_MS, append, fetched, manager_on

FS = RealFileSystem()


def refused(*names: str) -> str:
    with pytest.raises(OverlappingDirectories) as error:
        check_distinct(FS, names)
    for name in names[:2]:
        assert name in str(error.value)
    return str(error.value)


@pytest.mark.parametrize("exists", [True, False])
def test_one_directory_by_two_spellings(tmp_path: Path, exists: bool) -> None:
    one = tmp_path / "one"
    if exists:
        one.mkdir()
    for other in (f"{one}", f"{one}/", f"{one}/.", f"{tmp_path}/x/../one", f"{tmp_path}//one"):
        assert "are one directory: remove one of the two entries" in refused(str(one), other)
    assert os.listdir(tmp_path) == (["one"] if exists else [])


def test_a_relative_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    refused("one", str(tmp_path / "one"))
    refused("./one", "one")


def test_a_symbolic_link(tmp_path: Path) -> None:
    one, link = tmp_path / "one", tmp_path / "link"
    one.mkdir()
    link.symlink_to(one)
    assert "(one is a symbolic link)" in refused(str(one), str(link))
    above = tmp_path / "above"
    above.symlink_to(tmp_path)
    refused(str(one), f"{above}/one")
    # Neither of the two exists yet, and the directory above is a link.
    refused(f"{tmp_path}/new", f"{above}/new")


def test_a_link_to_a_directory_that_does_not_exist(tmp_path: Path) -> None:
    link = tmp_path / "link"
    link.symlink_to(tmp_path / "new")
    refused(str(tmp_path / "new"), str(link))


def test_another_mount_of_a_directory() -> None:
    fs = MemoryFileSystem()
    for path in ("/one/x", "/mount/new"):
        fs.make_directory(path)
    fs.mounts["/mount"] = "/one"
    with pytest.raises(OverlappingDirectories, match="as after a bind mount"):
        check_distinct(fs, ["/one", "/mount"])
    with pytest.raises(OverlappingDirectories, match="as after a bind mount"):
        check_distinct(fs, ["/one/new", "/mount/new"])
    with pytest.raises(OverlappingDirectories, match="/mount/x is inside /one"):
        check_distinct(fs, ["/one", "/mount/x"])
    fs.mounts["/mount"] = "/one/x"
    with pytest.raises(OverlappingDirectories, match="/mount is inside /one"):
        check_distinct(fs, ["/one", "/mount"])


@pytest.mark.parametrize("exists", [True, False])
def test_one_inside_another_one(tmp_path: Path, exists: bool) -> None:
    outer, inner = tmp_path / "outer", tmp_path / "outer" / "x" / "inner"
    if exists:
        inner.mkdir(parents=True)
    text = "is inside {outer}, and one log directory cannot contain another one"
    assert text.format(outer=outer) in refused(str(outer), str(inner))
    assert text.format(outer=outer) in refused(str(inner), str(outer))


def test_neighbours_are_not_nested(tmp_path: Path) -> None:
    names = [str(tmp_path / name) for name in ("a", "ab", "a-b", "b")]
    check_distinct(FS, names)
    for name in names:
        os.mkdir(name)
    check_distinct(FS, names)
    check_distinct(FS, names[:1])


def test_the_directory_above_the_log_directories_of_brokers(tmp_path: Path) -> None:
    """`broker-1` would be partition 1 of a topic, and be set aside while its broker runs."""
    own = tmp_path / "broker-1"
    own.mkdir()
    check_distinct(FS, [str(tmp_path)])
    (own / "meta.properties").write_text("version=0\n")
    assert f"contains {own}, which is the log directory of a broker" in refused(str(tmp_path))
    own.rename(tmp_path / "broker")
    check_distinct(FS, [str(tmp_path)])


def test_the_log_directory_of_another_broker_is_not_opened(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """A broker was started there before its neighbours."""
    fs = MemoryFileSystem()
    manager_on(fs, ("/d",)).write_meta_properties(9, "c")
    other = manager_on(fs, ("/d/broker-1",))
    other.write_meta_properties(1, "c")
    before = fs.paths()
    assert manager_on(fs, ("/d",)).logs() == []
    assert fs.paths() == before
    assert "Ignoring /d/broker-1" in caplog.text


def test_the_directory_of_the_remote_storage(tmp_path: Path) -> None:
    logs = [str(tmp_path / "a"), str(tmp_path / "b")]
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
    for other in (tmp_path, tmp_path / "remote", tmp_path / "a" / "remote", tmp_path / "t-1"):
        check_not_a_partition(FS, logs, str(other))
    with pytest.raises(OverlappingDirectories, match="is the directory of the remote storage"):
        check_not_a_partition(FS, logs, f"{tmp_path}/b/")
    with pytest.raises(OverlappingDirectories, match="has the name of a partition"):
        check_not_a_partition(FS, logs, f"{tmp_path}/b/tier-1")


# --- partitions ----------------------------------------------------------------------------------


@pytest.mark.parametrize("order", ["ab", "ba"])
def test_a_link_to_a_partition_in_another_directory(
    tmp_path: Path, order: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Somebody moved a partition to another disk, and left a link where it was."""
    paths = [str(tmp_path / name) for name in order]
    manager = LogManager([tmp_path / "b"], LogConfig())
    manager.load(NOW_MS)
    append(manager.get_or_create("t", 0, topic_id=b"i" * 16, now_ms=NOW_MS), 5)
    manager.shutdown(NOW_MS)
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "t-0").symlink_to(tmp_path / "b" / "t-0")
    for _ in range(2):
        manager = LogManager(paths, LogConfig())
        manager.load(NOW_MS)
        (log,) = manager.logs()
        assert log.path == f"{tmp_path}/b/t-0"
        assert len(fetched(log)) == 5
        assert [item for d in manager.directories.all for item in d.set_aside] == []
        assert f"Ignoring {tmp_path}/a/t-0: it is the same directory as {log.path}" in caplog.text
        manager.purge(NOW_MS * 2)
        manager.shutdown(NOW_MS)
    assert os.listdir(tmp_path / "b" / "t-0")


def test_a_directory_that_is_used_is_not_deleted_by_another_name() -> None:
    """What an earlier version did with the second name: it renamed it to -delete."""
    fs = MemoryFileSystem()
    manager = manager_on(fs, ("/a", "/b"))
    append(manager.get_or_create("t", 0, now_ms=NOW_MS), 5)
    manager.shutdown(NOW_MS)
    deleted = f"/b/t-0.{1:032}-delete"
    fs.make_directory(deleted)
    fs.mounts[deleted] = "/a/t-0"
    manager = manager_on(fs, ("/b", "/a"))
    manager.purge(NOW_MS * 2)
    assert ("remove_tree", deleted) not in fs.calls
    (log,) = manager.logs()
    assert len(fetched(log)) == 5
