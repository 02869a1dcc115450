"""Groups and transactions change hands between Kafka and Ottla, on the same disk and tree.

Kafka 3.9.1 is stopped and Ottla started on its directory and its ZooKeeper, and the other way
round. The second one loads the groups, their offsets and open transactions.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from ottla.protocol.errors import ErrorCode
from ottla.protocol.message import Message
from ottla.protocol.messages.add_offsets_to_txn import AddOffsetsToTxnRequest
from ottla.protocol.messages.describe_groups import DescribeGroupsResponse
from ottla.protocol.messages.describe_transactions import DescribeTransactionsResponse
from ottla.protocol.messages.find_coordinator import FindCoordinatorRequest
from ottla.protocol.messages.heartbeat import HeartbeatRequest, HeartbeatResponse
from ottla.protocol.messages.init_producer_id import InitProducerIdRequest
from ottla.protocol.messages.join_group import JoinGroupResponse
from ottla.protocol.messages.offset_fetch import OffsetFetchResponse
from ottla.protocol.messages.sync_group import SyncGroupResponse
from tests.differential import transaction_scripts
from tests.differential.group_requests import commit, describe_state, fetch, join, sync, until
from tests.differential.transaction_scripts import add, describe, end, init, txn_offsets
from tests.doubles.apache_kafka import start_kafka, start_zookeeper
from tests.doubles.broker_process import start_broker
from tests.doubles.transcript import Transcript

pytestmark = [pytest.mark.kafka, pytest.mark.zookeeper]

SESSION_MS = 60_000  # longer than it takes to change brokers


class Cluster:
    """One directory and one ZooKeeper, served by Kafka or by Ottla."""

    def __init__(self, directory: Path, zookeeper: str) -> None:
        self._directory = directory
        self._settings = {
            "zookeeper_connect": zookeeper,
            "broker_id": 0,
            "log_dirs": directory / "logs",
            "offsets_topic_num_partitions": 1,
            "offsets_topic_replication_factor": 1,
            "transaction_state_log_num_partitions": 1,
            "transaction_state_log_replication_factor": 1,
            "transaction_state_log_min_isr": 1,
            "group_initial_rebalance_delay_ms": 0,
            "zookeeper_session_timeout_ms": 6_000,
        }

    @contextmanager
    def served_by(self, name: str) -> Iterator[Transcript]:
        settings = dict(self._settings)
        if name == "kafka":
            zookeeper = str(settings.pop("zookeeper_connect"))
            broker = start_kafka(self._directory / "kafka", zookeeper=zookeeper, **settings)
        else:
            broker = start_broker(self._directory, **settings)  # type: ignore[assignment]
        with broker as process, Transcript(process.bootstrap) as transcript:
            yield transcript
            if name == "ottla":
                process.stop()


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    with start_zookeeper(tmp_path) as zookeeper:
        yield Cluster(tmp_path, zookeeper)


def wait_for_coordinators(t: Transcript) -> None:
    for key_type in (0, 1):
        found = FindCoordinatorRequest("any", key_type)
        until(t, found, 1, lambda response: "error_code=0" in repr(response))
    requests: tuple[tuple[Message, int], ...] = ((fetch("g", None, 7), 7), (describe("x"), 0))
    for request, version in requests:
        until(t, request, version, lambda response: "error_code=14" not in repr(response))


@pytest.mark.parametrize(("first", "second"), [("kafka", "ottla"), ("ottla", "kafka")])
def test_a_group_and_its_transaction_change_hands(
    cluster: Cluster, first: str, second: str
) -> None:
    with cluster.served_by(first) as t:
        transaction_scripts.prepare(t)
        joined = t.ask(join("g", instance="i1", session_ms=SESSION_MS), 7)
        assert isinstance(joined, JoinGroupResponse)
        member = joined.member_id
        t.ask(sync("g", member, 1, {member: b"mine"}, instance="i1"), 3)
        t.ask(commit("g", {("t", 0): 7, ("t", 1): 8}, member, 1, instance="i1",
                     metadata="note", leader_epoch=0), 8)  # fmt: skip
        t.ask(commit("simple", {("u", 0): 3}), 8)
        producer = init(t, "tx")
        t.ask(add("tx", producer, {"t": [0]}), 3)
        t.ask(AddOffsetsToTxnRequest("tx", *producer, "eos"), 3)
        t.ask(txn_offsets("tx", "eos", producer, {("t", 0): 42}), 2)

    with cluster.served_by(second) as t:
        wait_for_coordinators(t)
        described = t.ask(describe_state("g"), 5)
        assert isinstance(described, DescribeGroupsResponse)
        (group,) = described.groups
        assert (group.group_state, group.protocol_data) == ("Stable", "range")
        assert [(m.member_id, m.group_instance_id, m.member_assignment) for m in group.members] == [
            (member, "i1", b"mine")
        ]
        beat = t.ask(HeartbeatRequest("g", 1, member, "i1"), 4)
        assert isinstance(beat, HeartbeatResponse)
        assert beat.error_code == ErrorCode.NONE
        assert offsets(t, "g") == {("t", 0): (7, "note"), ("t", 1): (8, "note")}
        assert offsets(t, "simple") == {("u", 0): (3, "")}
        assert offsets(t, "eos") == {}
        back = t.ask(join("g", instance="i1", session_ms=SESSION_MS), 9)
        assert isinstance(back, JoinGroupResponse)
        assert (back.generation_id, back.skip_assignment) == (1, True)
        synced = t.ask(sync("g", back.member_id, 1, instance="i1"), 3)
        assert isinstance(synced, SyncGroupResponse)
        assert synced.assignment == b"mine"
        found = t.ask(describe("tx"), 0)
        assert isinstance(found, DescribeTransactionsResponse)
        (state,) = found.transaction_states
        assert (state.transaction_state, state.producer_id) == ("Ongoing", producer[0])
        t.ask(end("tx", producer, True), 3)
        until(t, describe("tx"), 0, lambda response: "CompleteCommit" in repr(response))
        until(t, fetch("eos", None, 7, stable=True), 7, lambda r: "committed_offset=42" in repr(r))
        assert offsets(t, "eos") == {("t", 0): (42, "")}
        assert init(t, "tx") == (producer[0], producer[1] + 1)
        # Kafka fetches its block of producer ids at the first request for one.
        until(t, InitProducerIdRequest(None), 0, lambda response: "error_code=0" in repr(response))
        assert init(t, None)[0] > producer[0]

    with cluster.served_by(first) as t:
        wait_for_coordinators(t)
        assert offsets(t, "eos") == {("t", 0): (42, "")}
        assert init(t, "tx") == (producer[0], producer[1] + 2)


def offsets(t: Transcript, group: str) -> dict[tuple[str, int], tuple[int, str | None]]:
    response = t.ask(fetch(group, None, 7), 7)
    assert isinstance(response, OffsetFetchResponse)
    assert response.error_code == ErrorCode.NONE
    return {
        (topic.name, row.partition_index): (row.committed_offset, row.metadata)
        for topic in response.topics
        for row in topic.partitions
    }
