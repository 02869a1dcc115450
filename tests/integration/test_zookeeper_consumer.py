"""Groups of Kafka 0.8 on a real ZooKeeper, from both sides: `ottla consume --zookeeper` as members,
and OffsetCommit and OffsetFetch version 0 on the same nodes."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from kazoo.client import KazooClient
from kazoo.exceptions import NoNodeError

from ottla.protocol.messages.offset_fetch import OffsetFetchResponse
from tests.differential.group_requests import commit, fetch, prepare
from tests.doubles.broker_process import BrokerProcess, start_broker
from tests.doubles.eventually import eventually
from tests.doubles.producing import numbered, produce
from tests.doubles.transcript import Transcript
from tests.doubles.zookeeper_process import start_zookeeper

pytestmark = pytest.mark.zookeeper

ROOT = Path(__file__).resolve().parents[2]
DEADLINE_S = 60.0
# Kafka's factor of three for the internal topics cannot be met by one broker.
LONE_BROKER = {
    "offsets_topic_num_partitions": 1,
    "offsets_topic_replication_factor": 1,
    "transaction_state_log_num_partitions": 1,
    "transaction_state_log_replication_factor": 1,
    "transaction_state_log_min_isr": 1,
}


class Cluster:
    """A broker on a ZooKeeper, and a look into the tree."""

    def __init__(self, connect: str, broker: BrokerProcess) -> None:
        self.connect = connect
        self.broker = broker
        self.tree = KazooClient(connect)
        self.tree.start()

    def owners(self, group: str) -> dict[int, str]:
        """Who owns what now; a node that goes while the list is read has no owner."""
        path = f"/consumers/{group}/owners/t"
        found: dict[int, str] = {}
        with suppress(NoNodeError):
            for partition in self.tree.get_children(path):
                with suppress(NoNodeError):
                    found[int(partition)] = self.tree.get(f"{path}/{partition}")[0].decode()
        return found

    def produce(self, first: int, count: int) -> None:
        produce(self.broker.bootstrap, "t", numbered(first, count, 2))


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    with (
        start_zookeeper(tmp_path / "zookeeper") as zookeeper,
        start_broker(
            tmp_path, zookeeper_connect=zookeeper.connect, broker_id=0, **LONE_BROKER
        ) as broker,
    ):
        with Transcript(broker.bootstrap) as transcript:
            prepare(transcript)  # topic t with two partitions
        made = Cluster(zookeeper.connect, broker)
        try:
            yield made
        finally:
            made.tree.stop()
            made.tree.close()


class Member:
    """`ottla consume t --zookeeper` in a process of its own."""

    def __init__(self, cluster: Cluster, group: str, output: Path) -> None:
        self._output = output
        with output.open("wb") as sink:
            self.process = subprocess.Popen(
                [
                    *(sys.executable, "-m", "ottla.cli.main", "consume", "t", "--from-beginning"),
                    *("--zookeeper", cluster.connect, "--group", group),
                ],
                stdout=sink,
                stderr=subprocess.DEVNULL,
                cwd=ROOT,
                env={**os.environ, "PYTHONUNBUFFERED": "1"},
            )

    def read(self) -> list[int]:
        whole, _, _ = self._output.read_text().rpartition("\n")
        return [int(line) for line in whole.split()]

    def stop(self) -> None:
        """Ctrl-C: it commits and leaves."""
        self.process.send_signal(signal.SIGINT)
        self.process.wait(DEADLINE_S)

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()


def test_members_share_take_over_and_go_on_where_they_stopped(
    cluster: Cluster, tmp_path: Path
) -> None:
    cluster.produce(0, 40)
    first = Member(cluster, "old", tmp_path / "first")
    members = [first]
    try:
        eventually(lambda: len(first.read()) == 40)
        assert set(cluster.owners("old")) == {0, 1}
        (member_id,) = cluster.tree.get_children("/consumers/old/ids")
        registered = json.loads(cluster.tree.get(f"/consumers/old/ids/{member_id}")[0])
        assert registered["subscription"] == {"t": 1}
        second = Member(cluster, "old", tmp_path / "second")
        members.append(second)
        eventually(lambda: len(set(cluster.owners("old").values())) == 2)
        cluster.produce(40, 40)
        eventually(lambda: len(first.read()) + len(second.read()) == 80)
        assert sorted(first.read() + second.read()) == list(range(80))
        first.stop()
        eventually(lambda: sorted(cluster.owners("old")) == [0, 1])
        cluster.produce(80, 20)
        eventually(lambda: len(second.read()) == 20 + 20)
        second.kill()
        eventually(lambda: cluster.owners("old") == {})
        third = Member(cluster, "old", tmp_path / "third")
        members.append(third)
        cluster.produce(100, 20)
        # Some of what the killed one had read is read again, and nothing is left out.
        eventually(lambda: set(second.read() + third.read()) >= set(range(80, 120)))
        third.stop()
    finally:
        for member in members:
            member.kill()
    with Transcript(cluster.broker.bootstrap) as transcript:
        found = transcript.ask(fetch("old", {"t": [0, 1]}, 0), 0)
        assert isinstance(found, OffsetFetchResponse)
        assert sorted(row.committed_offset for row in found.topics[0].partitions) == [60, 60]


def test_an_offset_committed_by_request_is_where_a_member_starts(
    cluster: Cluster, tmp_path: Path
) -> None:
    cluster.produce(0, 10)
    with Transcript(cluster.broker.bootstrap) as transcript:
        transcript.ask(commit("asked", {("t", 0): 3, ("t", 1): 5}), 0)
    assert cluster.tree.get("/consumers/asked/offsets/t/0")[0] == b"3"
    member = Member(cluster, "asked", tmp_path / "member")
    try:
        eventually(lambda: len(member.read()) == 2)
        assert sorted(member.read()) == [6, 8]
    finally:
        member.kill()
