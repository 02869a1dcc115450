"""`ottla migrate` reads Apache Kafka."""

from tests.differential.asking import Pair
from tests.doubles.command_line import CommandLine


def test_a_kafka_cluster_that_ottla_may_join(pair: Pair) -> None:
    found = CommandLine(pair.kafka)("migrate", "--json").value
    (broker,) = (row for row in found["checks"] if row["what"] == "broker 0")
    assert broker["result"] == "ok"
    assert found["settings"]["broker.id"] == "1"
    assert "zookeeper.connect" in found["settings"]
