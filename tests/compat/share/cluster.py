"""Kafka's own share consumer (`KafkaShareConsumer`) on three brokers of Ottla.

    python -m tests.compat.share.cluster

The deliveries are those of one broker, and of Apache Kafka (`tests.compat.share.run`). A broker is
killed between two runs; nothing is delivered again. Then the offsets are deleted by command.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

from confluent_kafka.admin import AdminClient, NewTopic

from tests.compat.share.work import compile_work, consume, expected, values
from tests.doubles.broker_cluster import start_cluster
from tests.doubles.command_line import CommandLine
from tests.doubles.eventually import eventually

TOPIC, GROUP = "work", "workers"


def main() -> None:
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        classes = compile_work(directory)
        with start_cluster(
            directory,
            min_insync_replicas=2,
            group_coordinator_rebalance_protocols="classic,consumer,share",
        ) as cluster:
            admin = AdminClient({"bootstrap.servers": cluster.bootstrap})
            # One partition: the program wants the records in order.
            admin.create_topics([NewTopic(TOPIC, 1, 3)])[TOPIC].result(60)
            log = directory / "first.log"
            found = consume(cluster.bootstrap, TOPIC, GROUP, classes, log, values())
            assert found == expected(), found
            print(f"three brokers: {len(found)} records, the same deliveries as on one")
            leader = admin.list_topics(TOPIC, timeout=60).topics[TOPIC].partitions[0].leader
            cluster[leader].kill()
            log = directory / "second.log"
            late = consume(cluster.bootstrap, TOPIC, GROUP, classes, log, ["accept-late"])
            assert late == {"accept-late": [(1, "accept")]}, late
            print(f"broker {leader}, the leader, was killed: nothing is delivered again")
            delete_offsets(CommandLine(cluster.bootstrap))


def delete_offsets(ottla: CommandLine) -> None:
    """`ottla share-groups delete-offsets`: refused for partitions, then the topic is gone."""

    def deleted() -> bool:
        outcome = ottla("share-groups", "delete-offsets", GROUP, TOPIC, "--json")
        return outcome.code == 0  # refused as long as a member is there

    eventually(deleted, "the group keeps a member")
    assert ottla.done("share-groups", "offsets", GROUP, "--json").value["partitions"] == []
    again = ottla("share-groups", "delete-offsets", GROUP, TOPIC)
    assert again.code == 1, again
    assert "There is no offset information to delete" in again.errors, again
    print("the offsets are deleted")


if __name__ == "__main__":
    main()
