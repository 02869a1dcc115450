"""A start on a damaged log directory: the right sentence, and no log in the place of another."""

from __future__ import annotations

import logging
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from ottla.broker.server.process import is_expected
from ottla.testing import Broker
from tests.doubles.command_line import CommandLine


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A broker that was stopped, with records in t-0 and t-1."""
    directory = tmp_path_factory.mktemp("template") / "data"
    with Broker(directory) as broker:
        broker.create_topic("t", 2)
        for partition in range(2):
            options = ("-p", str(partition), "-q")
            CommandLine(broker.bootstrap).done("produce", "t", *options, text="line\n" * 10)
    return directory


@pytest.fixture
def copy(data: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(data, tmp_path / "data"))


def refusal(directory: Path, **settings: object) -> str:
    with pytest.raises(Exception) as refused:  # one of these
        Broker(directory, **settings).start()
    assert is_expected(refused.value), type(refused.value)
    return str(refused.value)


@pytest.mark.parametrize("name", ["t-00", "t-01", "t-000000000000000000000"])
def test_a_directory_beside_a_log_does_not_take_its_place(copy: Path, name: str) -> None:
    (copy / name).mkdir()
    with Broker(copy) as broker:
        assert [broker.end_offset("t", partition) for partition in range(2)] == [10, 10]


@pytest.mark.parametrize("name", ["t-0", "t-7"])
def test_a_log_that_is_a_link_to_nowhere_is_one_replica(
    copy: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture, name: str
) -> None:
    if (copy / name).is_dir():
        shutil.rmtree(copy / name)
    (copy / name).symlink_to(tmp_path / "nowhere")
    with Broker(copy) as broker:
        assert broker.end_offset("t", 1) == 10
        assert f"Log {copy / name} cannot be opened, its replica is offline" in caplog.text
    assert (copy / name).is_symlink()


@pytest.mark.parametrize("name", [".kafka_cleanshutdown", "meta.properties"])
def test_a_link_that_leads_nowhere_is_named(copy: Path, tmp_path: Path, name: str) -> None:
    if (copy / name).is_dir():
        shutil.rmtree(copy / name)
    (copy / name).unlink(missing_ok=True)
    (copy / name).symlink_to(tmp_path / "nowhere")
    assert refusal(copy) == (
        f"{copy / name} is a symbolic link to {tmp_path / 'nowhere'}, which is not there: mount "
        f"the disk that has it, or remove the link."
    )


def test_an_empty_meta_properties_without_logs_is_written_again(tmp_path: Path) -> None:
    """As in Kafka 3.9. Beside logs the id of the broker is needed: the next test."""
    meta = tmp_path / "data" / "meta.properties"
    meta.parent.mkdir()
    meta.touch()
    with Broker(meta.parent):
        assert "\ncluster.id=" in meta.read_text()


def test_an_empty_meta_properties_beside_logs_is_named(copy: Path) -> None:
    (copy / "meta.properties").write_bytes(b"")
    assert "and no meta.properties" in refusal(copy)


def test_a_log_directory_that_is_a_link_to_nowhere_is_named(
    copy: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    link = tmp_path / "link"
    os.symlink(tmp_path / "nowhere", link)
    caplog.set_level(logging.ERROR, "ottla")
    with Broker(copy, log_dirs=f"{copy},{link}") as broker:
        assert broker.end_offset("t", 0) == 10
    named = f"a symbolic link to {tmp_path / 'nowhere'}, which is not there"
    assert named in caplog.text
    assert f"is {named}" in refusal(link)


def empty(path: Path) -> None:
    path.write_bytes(b"")


@pytest.mark.parametrize("damage", [empty, Path.unlink])
def test_logs_without_their_meta_properties_are_not_set_aside(
    copy: Path, damage: Callable[[Path], None]
) -> None:
    """The broker would get a new id, and the tree assigns the logs to the one that it had."""
    cluster_id = (copy / "meta.properties").read_text().partition("cluster.id=")[2].split()[0]
    damage(copy / "meta.properties")
    text = refusal(copy)
    assert "no meta.properties" in text
    assert f"cluster.id={cluster_id}" in text
    given = {"broker_id": 1001, "broker_id_generation_enable": "false"}
    with Broker(copy, **given) as broker:
        assert broker.end_offset("t", 0) == 10


@pytest.mark.parametrize("garbage", [b"garbage", b"\xff" * 1000, b"version=7", b"broker.id=x"])
def test_meta_properties_that_cannot_be_read_are_named_with_what_to_write(
    copy: Path, garbage: bytes
) -> None:
    (copy / "meta.properties").write_bytes(garbage)
    text = refusal(copy)
    assert str(copy / "meta.properties") in text
    assert "version=0, broker.id=" in text
    assert len(text) < 700


def test_a_new_disk_may_be_the_first_one(copy: Path, tmp_path: Path) -> None:
    with Broker(copy, log_dirs=f"{tmp_path / 'new'},{copy}") as broker:
        assert broker.end_offset("t", 0) == 10


def test_an_empty_znode_file_is_to_be_restored(copy: Path) -> None:
    empty(copy / "ottla-znodes.db")
    text = refusal(copy)
    assert "ottla-znodes.db" in text
    assert "restore" in text
    assert "zookeeper.connect" not in text
