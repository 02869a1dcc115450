"""The brokers that a ZooKeeper consumer reads from are those that the znode tree names."""

import json
from collections.abc import Mapping
from typing import Any, cast

import pytest

from ottla.cli.output import Failure
from ottla.cli.zookeeper_consumer import bootstrap_of
from ottla.cli.zookeeper_tree import Tree


class Registered:
    """A znode tree that holds brokers alone; None is one that goes while the tree is read."""

    def __init__(self, brokers: Mapping[int, dict[str, Any] | bytes | None]) -> None:
        self._brokers = brokers

    def children(self, path: str) -> list[str]:
        assert path == "/brokers/ids"
        return ["no-id", *(str(broker_id) for broker_id in self._brokers)]

    def get(self, path: str) -> bytes | None:
        value = self._brokers[int(path.removeprefix("/brokers/ids/"))]
        return value if value is None or isinstance(value, bytes) else json.dumps(value).encode()


def found(brokers: Mapping[int, dict[str, Any] | bytes | None]) -> str:
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


@pytest.mark.parametrize("data", [b"", b'{"endpoi', b"[]", b'{"host": "h"}', b'{"endpoints": 1}'])
def test_a_damaged_registration_is_left_out(
    data: bytes, capsys: pytest.CaptureFixture[str]
) -> None:
    assert found({1: data, 2: {"endpoints": ["PLAINTEXT://plain:9092"]}}) == "plain:9092"
    assert "broker 1 in ZooKeeper is damaged" in capsys.readouterr().err
