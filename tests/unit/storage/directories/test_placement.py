from __future__ import annotations

from dataclasses import dataclass
from typing import Any, cast

import pytest

from ottla.storage.directories.log_directories import LogDirectories
from ottla.storage.directories.placement import Placement
from ottla.storage.errors import LogDirectoryOffline
from ottla.storage.files.log_directory import LogDirectory
from tests.doubles.memory_file_system import MemoryFileSystem


@dataclass
class OneLog:
    log_directory: LogDirectory


class Scene:
    def __init__(self, *paths: str) -> None:
        self.directories = LogDirectories(MemoryFileSystem(), paths, 100)
        self.logs: list[OneLog] = []
        self.counted = 0
        self.placement = Placement(self.directories, self._every_log)

    def _every_log(self) -> Any:
        self.counted += 1
        return cast("Any", self.logs)

    def create(self, partition: int) -> str:
        directory = self.placement.choose(("t", partition))
        self.logs.append(OneLog(directory))
        self.placement.created(("t", partition), directory)
        return directory.path


def test_new_logs_are_spread_and_counted_once() -> None:
    scene = Scene("/a", "/b", "/c")
    assert [scene.create(each) for each in range(6)] == ["/a", "/b", "/c"] * 2
    assert scene.counted == 1


def test_they_are_counted_again_after_a_deletion() -> None:
    scene = Scene("/a", "/b")
    assert [scene.create(each) for each in range(4)] == ["/a", "/b"] * 2
    scene.logs = [each for each in scene.logs if each.log_directory.path == "/a"]
    scene.placement.changed()
    assert [scene.create(each) for each in range(2)] == ["/b", "/b"]


def test_one_directory_needs_no_count() -> None:
    scene = Scene("/a")
    assert [scene.create(each) for each in range(2)] == ["/a", "/a"]
    assert scene.counted == 0


def test_the_preferred_directory_is_for_one_creation() -> None:
    scene = Scene("/a", "/b")
    scene.placement.prefer(("t", 0), "/b")
    assert [scene.create(0), scene.create(1), scene.create(0)] == ["/b", "/a", "/a"]
    with pytest.raises(ValueError):
        scene.placement.prefer(("t", 0), "/elsewhere")


def test_a_directory_that_failed_gets_none() -> None:
    scene = Scene("/a", "/b")
    scene.directories.all[0].fail(OSError(5, "broken"))
    assert scene.create(0) == "/b"
    scene.directories.all[1].fail(OSError(5, "broken"))
    with pytest.raises(LogDirectoryOffline):
        scene.create(1)
