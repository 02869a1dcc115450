"""Where the znode tree of a broker without ZooKeeper is."""

from pathlib import Path

import pytest

from ottla.broker.config.broker_config import BrokerConfig
from ottla.broker.server.znode_store import open_store
from ottla.controller.registration import InconsistentClusterId
from ottla.controller.tree.embedded_store import EmbeddedStore

NAME = "ottla-znodes.db"


def path_of_tree(*directories: Path) -> str:
    config = BrokerConfig({"log.dirs": ",".join(map(str, directories))})
    store = open_store(config)
    assert isinstance(store, EmbeddedStore)
    return str(store.path)


def test_a_new_tree_is_in_the_first_directory(tmp_path: Path) -> None:
    one, two = tmp_path / "one", tmp_path / "two"
    assert path_of_tree(one, two) == f"{one}/{NAME}"
    assert not one.exists()


def test_a_tree_is_used_where_it_is(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A new, empty disk is the first of log.dirs, or their order has changed."""
    new, two = tmp_path / "new", tmp_path / "two"
    for each in (new, two):
        each.mkdir()
    (two / NAME).touch()
    assert path_of_tree(new, two) == f"{two}/{NAME}"
    (new / NAME).touch()
    assert path_of_tree(new, two) == f"{new}/{NAME}"
    assert f"There are several znode trees, {new}/{NAME}, {two}/{NAME}" in caplog.text


def test_data_without_its_tree_begins_no_new_one(tmp_path: Path) -> None:
    """The disk with the tree is not mounted."""
    first, second = tmp_path / "first", tmp_path / "second"
    for each in (first, second):
        each.mkdir()
    (second / "meta.properties").write_text("version=0\nbroker.id=1\ncluster.id=abc\n")
    with pytest.raises(InconsistentClusterId, match=f"The data in {second} belongs to the cluster"):
        path_of_tree(first, second)
    assert list(first.iterdir()) == []
