"""One log directory with two names, and with two brokers: Kafka's check and Kafka's lock."""

from __future__ import annotations

from pathlib import Path

import pytest

from ottla.storage.directories.log_directories import DirectoryLock
from ottla.storage.directories.same_directory import check_distinct
from ottla.storage.errors import DirectoryInUse, OverlappingDirectories
from ottla.storage.files.fs import RealFileSystem
from tests.doubles.apache_kafka import start_kafka, start_zookeeper

pytestmark = pytest.mark.kafka


def test_what_kafka_refuses_is_refused(tmp_path: Path) -> None:
    data, link = tmp_path / "data", tmp_path / "link"
    data.mkdir()
    link.symlink_to(data)
    with start_zookeeper(tmp_path / "zookeeper") as zookeeper:
        for other in (data, link):
            names = [str(data), str(other)]
            with (
                pytest.raises(AssertionError, match="Duplicate log directory found"),
                start_kafka(tmp_path, zookeeper=zookeeper, log_dirs=",".join(names)),
            ):
                pass
            with pytest.raises(OverlappingDirectories):
                check_distinct(RealFileSystem(), names)


def test_a_directory_has_one_broker_whatever_its_kind_and_the_name_that_it_uses(
    tmp_path: Path,
) -> None:
    data, link = tmp_path / "data", tmp_path / "link"
    data.mkdir()
    link.symlink_to(data)
    with start_zookeeper(tmp_path / "zookeeper") as zookeeper:
        with start_kafka(tmp_path, zookeeper=zookeeper, log_dirs=data):
            for name in (data, link):
                with pytest.raises(DirectoryInUse):
                    DirectoryLock(str(name))
        lock = DirectoryLock(str(data))
        with pytest.raises(DirectoryInUse):  # a second one must not release the first one
            DirectoryLock(str(link))
        with (
            pytest.raises(AssertionError, match="Failed to acquire lock on file"),
            start_kafka(tmp_path, zookeeper=zookeeper, log_dirs=link),
        ):
            pass
        lock.release()
