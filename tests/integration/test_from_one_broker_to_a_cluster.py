"""A broker that ran without ZooKeeper becomes the first of a cluster, and a single one again."""

from __future__ import annotations

from pathlib import Path

from tests.doubles.broker_process import BrokerProcess
from tests.doubles.command_line import CommandLine
from tests.doubles.zookeeper_process import OttlaZooKeeperProcess


def test_topics_and_records_are_kept(tmp_path: Path) -> None:
    first = BrokerProcess(tmp_path / "first", {"broker.id": "1"})
    first.start()
    ottla = CommandLine(first.bootstrap)
    ottla.done("topics", "create", "kept")
    ottla.done("produce", "kept", "-q", text="alone\n")
    cluster_id = ottla.done("cluster", "info", "--json").value["cluster_id"]
    first.stop()

    zookeeper = OttlaZooKeeperProcess(first.data_directory, {}, ())
    zookeeper.start()
    settings = {"zookeeper.connect": zookeeper.connect, "zookeeper.session.timeout.ms": "18000"}
    second = BrokerProcess(tmp_path / "second", {"broker.id": "2", **settings})
    try:
        grown = BrokerProcess(tmp_path / "first", {"broker.id": "1", **settings})
        grown.start()
        second.start()
        ottla = CommandLine(grown.bootstrap)
        info = ottla.done("cluster", "info", "--json").value
        assert info["cluster_id"] == cluster_id
        assert [row["broker"] for row in info["brokers"]] == [1, 2]
        ottla.done("produce", "kept", "-q", text="with another\n")
        assert ottla.done("consume", "kept").output == "alone\nwith another\n"
        second.stop()
        grown.stop()
    finally:
        zookeeper.stop()
        for broker in (second, grown):
            if broker.is_running:
                broker.kill()

    first.start()
    try:
        ottla = CommandLine(first.bootstrap)
        assert ottla.done("consume", "kept").output == "alone\nwith another\n"
        info = ottla.done("cluster", "info", "--json").value
        assert [row["broker"] for row in info["brokers"]] == [1]
    finally:
        first.kill()
