"""`ottla groups` and `transactions`, beside a real client."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from confluent_kafka import Consumer, Producer

from ottla.protocol.client.blocking import BlockingClient
from ottla.protocol.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from ottla.protocol.messages.produce import (
    PartitionProduceData,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
)
from ottla.protocol.records.batch import patch_max_timestamp
from ottla.protocol.records.builder import build_batch
from ottla.protocol.records.compression import codec_name
from tests.doubles.broker_process import BrokerProcess
from tests.doubles.command_line import CommandLine
from tests.doubles.wire import Wire

POLL_SECONDS = 0.1
DEADLINE_S = 60.0


@contextmanager
def reading(bootstrap: str, group: str, topic: str, records: int) -> Iterator[Consumer]:
    """A member of the group that has read and committed so many records."""
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": group,
            "client.id": "reader",
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
        }
    )
    try:
        consumer.subscribe([topic])
        seen = []
        deadline = time.monotonic() + DEADLINE_S
        while len(seen) < records and time.monotonic() < deadline:
            message = consumer.poll(POLL_SECONDS)
            if message is not None and message.error() is None:
                seen.append(message)
        assert len(seen) == records
        consumer.commit(seen[-1], asynchronous=False)
        yield consumer
    finally:
        consumer.close()


def fill(ottla: CommandLine, topic: str, records: int = 10) -> None:
    ottla.done("produce", topic, "-q", text="".join(f"{number}\n" for number in range(records)))


def test_lag_and_members_of_a_group_that_reads(
    ottla: CommandLine, shared_broker: BrokerProcess
) -> None:
    fill(ottla, "read")
    with reading(shared_broker.bootstrap, "readers", "read", 4):
        found = ottla.done("groups", "describe", "readers", "--json").value
        assert (found["state"], found["lag"], len(found["members"])) == ("Stable", 6, 1)
        assert found["members"][0]["partitions"] == [{"topic": "read", "partition": 0}]
        table = ottla.done("groups", "describe", "readers").lines
        assert table[-1] == ["read", "0", "4", "10", "6", "reader", "127.0.0.1"]
        assert "reader" in ottla.done("groups", "describe", "readers", "--members").lines[-1]
        listed = ottla.done("groups", "list", "--state", "Stable").lines
        assert ["readers", "Stable", "consumer", "classic", "7"] in listed
        moved = ottla("groups", "reset-offsets", "readers", "read", "--to-earliest", "--execute")
        assert moved.code == 1
        assert moved.errors.startswith("ottla: group readers is Stable: stop its members first;")
        deleted = ottla("groups", "delete", "readers", "--yes")
        assert "NON_EMPTY_GROUP: stop its members first" in deleted.errors
    assert ottla.done("groups", "describe", "readers", "--json").value["state"] == "Empty"
    assert ottla.done("groups", "delete", "readers", "--yes").output == "Group readers deleted.\n"
    gone = ottla("groups", "describe", "readers")
    assert gone.errors == "ottla: group readers does not exist; see `ottla groups list`.\n"


def test_events_say_who_joined_and_left_and_why(
    ottla: CommandLine, shared_broker: BrokerProcess
) -> None:
    fill(ottla, "history")
    assert ottla.done("groups", "events", "tellers").output == (
        "The coordinator has no events of group tellers.\n"
    )
    with reading(shared_broker.bootstrap, "tellers", "history", 4):
        pass
    stale = OffsetCommitRequest(
        group_id="tellers",
        generation_id_or_member_epoch=1,
        member_id="zombie",
        topics=[OffsetCommitRequestTopic("history", [OffsetCommitRequestPartition(0, 1)])],
    )
    with BlockingClient(shared_broker.bootstrap, client_id="late") as client:
        client.call_coordinator("tellers", stale)
    events = ottla.done("groups", "events", "tellers", "--json").value
    kinds = [event["kind"] for event in events]
    assert kinds == ["joined", "rebalancing", "stable", "left", "rebalancing", "empty", "rejected"]
    assert events[0]["client_id"] == "reader"
    assert events[0]["member_id"] == events[3]["member_id"]
    assert "Stabilized with 1 members" in events[2]["reason"]
    assert (events[-1]["member_id"], events[-1]["client_id"]) == ("zombie", "late")
    reason = events[-1]["reason"]
    assert "OffsetCommit request failed with UNKNOWN_MEMBER_ID: the group has no" in reason
    table = ottla.done("groups", "events", "tellers").output.splitlines()
    assert table[0].split() == ["TIME", "EVENT", "GENERATION", "MEMBER", "CLIENT", "HOST", "WHY"]
    assert len(table) == 1 + len(events)


def test_consume_as_a_group_continues_where_it_was(ottla: CommandLine) -> None:
    fill(ottla, "resumed", 5)
    assert ottla.done("consume", "resumed", "-g", "g", "-n", "2").output == "0\n1\n"
    assert ottla.done("consume", "resumed", "-g", "g").output == "2\n3\n4\n"
    assert ottla.done("consume", "resumed", "-g", "g").output == ""


def test_resetting_shows_first_and_does_it_on_request(ottla: CommandLine, tmp_path: Path) -> None:
    fill(ottla, "moved")
    ottla.done("consume", "moved", "-g", "mover")

    def reset(*way: str) -> int:
        rows = ottla.done("groups", "reset-offsets", "mover", "moved", *way, "--json").value
        after: int = rows["partitions"][0]["after"]
        return after

    def position() -> int:
        value = ottla.done("groups", "describe", "mover", "--json").value
        committed: int = value["partitions"][0]["committed"]
        return committed

    dry = ottla.done("groups", "reset-offsets", "mover", "moved", "--to-earliest")
    assert dry.lines[1] == ["moved", "0", "10", "0"]
    assert dry.errors == "Dry run: nothing was changed; --execute commits the offsets.\n"
    assert position() == 10
    assert reset("--to-offset", "6", "--execute") == 6
    assert position() == 6
    assert reset("--shift-by", "-2", "--execute") == 4
    assert reset("--to-current") == 4
    assert reset("--to-latest") == 10
    assert reset("--by-duration", "1h") == 0
    assert reset("--to-datetime", "2100-01-01") == 10
    assert reset("--to-offset", "1000") == 10
    exported = ottla.done(
        "groups", "reset-offsets", "mover", "moved", "--to-offset", "7", "--export"
    )
    assert exported.output == "moved,0,7\n"
    saved = tmp_path / "offsets.csv"
    saved.write_text(exported.output)
    assert reset("--from-file", str(saved), "--execute") == 7
    assert position() == 7
    two = ottla("groups", "reset-offsets", "mover", "moved", "--to-earliest", "--to-latest")
    assert two.code == 2


@pytest.mark.parametrize("codec", range(5), ids=codec_name)
def test_resetting_by_time_with_headers_without_a_newest_timestamp(
    ottla: CommandLine, shared_broker: BrokerProcess, codec: int
) -> None:
    """As producers send them with Sarama up to 1.45.0, ten minutes apart."""
    topic, minute_ms = f"sarama-{codec}", 60_000
    ottla.done("topics", "create", topic)
    start = datetime.now(UTC) - timedelta(hours=1)
    start_ms = int(start.timestamp() * 1000)
    with Wire(shared_broker.bootstrap) as wire:
        for number in range(6):
            first = start_ms + number * 10 * minute_ms
            rows = [(first + second * 1_000, b"k", b"v", []) for second in range(10)]
            batch = bytearray(build_batch(rows, codec=codec))
            patch_max_timestamp(batch, 0, 0, -1)
            data = [TopicProduceData(topic, [PartitionProduceData(0, batch)])]
            response = wire.ask(ProduceRequest(None, -1, 10_000, data), 9)
            assert isinstance(response, ProduceResponse)
            assert response.responses[0].partition_responses[0].error_code == 0
    for minutes, offset in ((0, 0), (1, 10), (30, 30), (49, 50), (55, 60)):
        when = (start + timedelta(minutes=minutes)).strftime("%Y-%m-%dT%H:%M:%S.000Z")
        done = ottla.done("groups", "reset-offsets", "g", topic, "--to-datetime", when, "--json")
        assert done.value["partitions"][0]["after"] == offset, minutes


def open_at(ottla: CommandLine, topic: str) -> list[int]:
    """Where transactions begin that are open; `ottla produce` is a producer with an id, too."""
    rows = ottla.done("transactions", "producers", topic, "--json").value
    starts = [row["transaction_start"] for row in rows]
    return [start for start in starts if start is not None]


def test_an_open_transaction_is_seen_hidden_and_aborted(
    ottla: CommandLine, shared_broker: BrokerProcess
) -> None:
    fill(ottla, "paid", 2)
    producer = Producer(
        {"bootstrap.servers": shared_broker.bootstrap, "transactional.id": "payments"}
    )
    producer.init_transactions(30)
    producer.begin_transaction()
    producer.produce("paid", b"pending")
    producer.flush(30)
    listed = ottla.done("transactions", "list", "--state", "Ongoing").lines
    assert listed[1][:2] == ["payments", "Ongoing"]
    described = ottla.done("transactions", "describe", "payments", "--json").value
    assert described["partitions"] == ["paid-0"]
    assert ottla.done("consume", "paid").output == "0\n1\npending\n"
    assert ottla.done("consume", "paid", "--read-committed").output == "0\n1\n"
    assert open_at(ottla, "paid") == [2]
    assert ottla.done("transactions", "find-hanging", "--max-minutes", "0").output == (
        "No transaction hangs.\n"
    )
    missing = ottla("transactions", "abort", "paid:0", "--start-offset", "1", "--yes")
    assert missing.code == 1
    ottla.done("transactions", "abort", "paid:0", "--start-offset", "2", "--yes")
    assert open_at(ottla, "paid") == []
    fill(ottla, "paid", 1)
    assert ottla.done("consume", "paid", "--read-committed").output == "0\n1\n0\n"


def test_plans_of_reassignment_are_kafkas_files(ottla: CommandLine, tmp_path: Path) -> None:
    ottla.done("topics", "create", "planned", "-p", "2")
    plan = tmp_path / "plan.json"
    ottla.done("partitions", "reassign", "generate", "planned", "--out", str(plan))
    assert plan.read_text() == (
        '{"version":1,"partitions":[{"topic":"planned","partition":0,"replicas":[7]},'
        '{"topic":"planned","partition":1,"replicas":[7]}]}\n'
    )
    ottla.done("partitions", "reassign", "execute", str(plan))
    verified = ottla.done("partitions", "reassign", "verify", str(plan))
    assert [line[-1] for line in verified.lines[1:]] == ["complete", "complete"]
    plan.write_text(plan.read_text().replace("[7]", "[8]"))
    refused = ottla("partitions", "reassign", "execute", str(plan))
    assert refused.code == 1
    assert "INVALID_REPLICA_ASSIGNMENT" in refused.errors
    open_plan = ottla("partitions", "reassign", "verify", str(plan))
    assert (open_plan.code, "not as planned" in open_plan.output) == (1, True)
    plan.write_text("{}")
    assert ottla("partitions", "reassign", "execute", str(plan)).code == 2


def test_preferred_leaders_need_no_election(ottla: CommandLine) -> None:
    ottla.done("topics", "create", "led")
    assert ottla.done("partitions", "elect-leaders", "led").lines[1] == [
        *("led", "0", "not", "needed")
    ]
    unknown = ottla("partitions", "elect-leaders", "led:5")
    assert unknown.code == 1
    assert ottla.done("partitions", "under-replicated").output == "Every replica is in sync.\n"
    assert ottla("partitions", "elect-leaders", "--unclean").code == 2
