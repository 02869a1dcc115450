"""The brokers that a ZooKeeper consumer reads from are those that the znode tree names."""

import json
from typing import Any, cast

import pytest

from ottla.cli.output import Failure
from ottla.cli.zookeeper_log import bootstrap_of
from ottla.cli.zookeeper_tree import Tree


class Registered:
    """A znode tree that holds brokers alone; None is one that goes while the tree is read."""

    def __init__(self, brokers: dict[int, dict[str, Any] | None]) -> None:
        self._brokers = brokers

    def children(self, path: str) -> list[str]:
        assert path == "/brokers/ids"
        return [str(broker_id) for broker_id in self._brokers]

    def get(self, path: str) -> bytes | None:
        value = self._brokers[int(path.removeprefix("/brokers/ids/"))]
        return None if value is None else json.dumps(value).encode()


def found(brokers: dict[int, dict[str, Any] | None]) -> str:
    return bootstrap_of(cast(Tree, Registered(brokers)))


def test_plain_listeners_of_all_brokers_in_the_order_of_their_ids() -> None:
    tls, plain = "SSL://secure:9093", "PLAINTEXT://plain:9092"
    brokers: dict[int, dict[str, Any] | None] = {
        10: {"endpoints": [tls, plain], "host": None, "port": -1},
        9: {"endpoints": [], "host": "old", "port": 9092},
        3: None,
        4: {"endpoints": [tls], "host": None, "port": -1},
    }
    assert found(brokers) == "old:9092,plain:9092"


@pytest.mark.parametrize("brokers", [{}, {1: {"endpoints": ["SSL://only:1"], "host": None}}])
def test_without_a_plain_listener_there_is_nothing_to_read(
    brokers: dict[int, dict[str, Any] | None],
) -> None:
    with pytest.raises(Failure, match="no broker with a plaintext listener"):
        found(brokers)
