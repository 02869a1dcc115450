"""Transaction version 2 (KIP-890) request by request: Ottla answers as Apache Kafka 4.3.1 does.

Left out is what differs on purpose (docs/kips.md): what a producer gets that a newer one has fenced
in a transaction.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from confluent_kafka.admin import AdminClient, NewTopic

from ottla.protocol.errors import ErrorCode, error_name
from ottla.protocol.message import Message
from ottla.protocol.messages.add_partitions_to_txn import (
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnTopic,
)
from ottla.protocol.messages.api_versions import ApiVersionsRequest
from ottla.protocol.messages.describe_transactions import DescribeTransactionsRequest
from ottla.protocol.messages.end_txn import EndTxnRequest
from ottla.protocol.messages.find_coordinator import FindCoordinatorRequest
from ottla.protocol.messages.init_producer_id import InitProducerIdRequest
from ottla.protocol.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from ottla.protocol.messages.txn_offset_commit import (
    TxnOffsetCommitRequest,
    TxnOffsetCommitRequestPartition,
    TxnOffsetCommitRequestTopic,
)
from ottla.protocol.records.builder import build_batch
from tests.doubles.broker_process import start_broker
from tests.doubles.eventually import eventually
from tests.doubles.kraft_kafka import start_kraft
from tests.doubles.wire import Wire

AGAIN = frozenset(
    (
        ErrorCode.CONCURRENT_TRANSACTIONS,
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
        ErrorCode.NOT_COORDINATOR,
    )
)
TIMEOUT_MS = 500
# How often a coordinator looks for transactions that have timed out.
CHECKS = {"transaction_abort_timed_out_transaction_cleanup_interval_ms": 100}

Producer = tuple[int, int]


class Steps:
    """One conversation. `rows` is what both brokers have to say alike: producer ids have names in
    the order in which they come."""

    def __init__(self, bootstrap: str) -> None:
        self.wire = Wire(bootstrap)
        self.rows: list[tuple[Any, ...]] = []
        self.names: dict[int, str] = {-1: "none"}
        self.sequences: dict[tuple[Producer, int], int] = {}

    def name(self, producer_id: int) -> str:
        return self.names.setdefault(producer_id, f"producer {len(self.names)}")

    def ask(self, request: Message, version: int, code_of: Callable[[Any], int]) -> Any:
        """The response, once it is not an error that is only for the moment."""
        responses: list[Any] = []

        def is_known() -> bool:
            responses[:] = [self.wire.ask(request, version)]
            return code_of(responses[0]) not in AGAIN

        eventually(is_known)
        return responses[0]

    def find(self, key: str, key_type: int) -> None:
        request = FindCoordinatorRequest(key_type=key_type, coordinator_keys=[key])
        self.ask(request, 4, lambda found: found.coordinators[0].error_code)

    def init(self, id_: str, before: Producer = (-1, -1), timeout_ms: int = 60_000) -> Producer:
        request = InitProducerIdRequest(id_, timeout_ms, *before)
        found = self.ask(request, 5, lambda response: response.error_code)
        given = found.producer_id, found.producer_epoch
        self.rows.append(("init", error_name(found.error_code), self.name(given[0]), given[1]))
        return given

    def produce(
        self,
        id_: str | None,
        producer: Producer,
        *,
        partition: int = 0,
        version: int = 12,
        sequence: int | None = None,
    ) -> None:
        key = producer, partition
        number = self.sequences.get(key, 0) if sequence is None else sequence
        batch = build_batch(
            [(1_700_000_000_000, b"k", b"v", None)],
            producer_id=producer[0],
            producer_epoch=producer[1],
            base_sequence=number,
            transactional=id_ is not None,
        )
        rows = [PartitionProduceData(partition, bytearray(batch))]
        request = ProduceRequest(id_, -1, 10_000, [TopicProduceData("t", rows)])
        found = self.ask(
            request, version, lambda got: got.responses[0].partition_responses[0].error_code
        )
        code = found.responses[0].partition_responses[0].error_code
        if code == ErrorCode.NONE:
            self.sequences[key] = number + 1
        name = self.name(producer[0])
        self.rows.append(("produce", version, name, producer[1], number, error_name(code)))

    def add(self, id_: str, producer: Producer) -> None:
        """As a client of the older protocol."""
        request = AddPartitionsToTxnRequest(
            v3_and_below_transactional_id=id_,
            v3_and_below_producer_id=producer[0],
            v3_and_below_producer_epoch=producer[1],
            v3_and_below_topics=[AddPartitionsToTxnTopic("t", [0])],
        )

        def code_of(got: Any) -> int:
            code: int = (
                got.results_by_topic_v3_and_below[0].results_by_partition[0].partition_error_code
            )
            return code

        self.rows.append(("add", producer[1], error_name(code_of(self.ask(request, 3, code_of)))))

    def offsets(self, id_: str, producer: Producer, version: int = 5) -> None:
        rows = [TxnOffsetCommitRequestPartition(0, 5, -1, None)]
        request = TxnOffsetCommitRequest(
            id_, "g", *producer, topics=[TxnOffsetCommitRequestTopic("t", rows)]
        )
        found = self.ask(request, version, lambda got: got.topics[0].partitions[0].error_code)
        code = found.topics[0].partitions[0].error_code
        self.rows.append(("offsets", version, producer[1], error_name(code)))

    def end(self, id_: str, producer: Producer, *, committed: bool, version: int = 5) -> Producer:
        found = self.ask(
            EndTxnRequest(id_, *producer, committed), version, lambda got: got.error_code
        )
        given = found.producer_id, found.producer_epoch
        row = "commit" if committed else "abort", version, self.name(producer[0]), producer[1]
        self.rows.append((*row, error_name(found.error_code), self.name(given[0]), given[1]))
        return given

    def describe(self, id_: str) -> None:
        """The state, once the markers are written."""

        def state() -> Any:
            return self.wire.ask(DescribeTransactionsRequest([id_]), 0).transaction_states[0]  # type: ignore[attr-defined]

        eventually(lambda: not state().transaction_state.startswith("Prepare"))
        found = state()
        topics = sorted((row.topic, sorted(row.partitions)) for row in found.topics)
        if any(topic == "__consumer_offsets" for topic, _ in topics):
            topics = [(topic, rows if topic == "t" else []) for topic, rows in topics]
        self.rows.append(
            (found.transaction_state, self.name(found.producer_id), found.producer_epoch, topics)
        )


def play(bootstrap: str) -> list[tuple[Any, ...]]:
    admin = AdminClient({"bootstrap.servers": bootstrap})
    admin.create_topics([NewTopic("t", 2, 1)])["t"].result(60)
    steps = Steps(bootstrap)
    for version in (3, 4):
        features: Any = steps.wire.ask(ApiVersionsRequest("test", "1"), version)
        for row in (*features.supported_features, *features.finalized_features):
            if row.name == "transaction.version":
                steps.rows.append((version, *(getattr(row, name) for name in row.__slots__[:3])))
    steps.find("x", 1)
    steps.find("g", 0)
    last = single_transactions(steps)
    last = refused(steps, last)
    older_versions(steps, last)
    timeout(steps)
    return steps.rows


def single_transactions(steps: Steps) -> Producer:
    first = steps.init("x")
    steps.end("x", first, committed=True)
    second = steps.end("x", first, committed=False)  # without a partition
    steps.describe("x")
    steps.produce("x", second)
    steps.describe("x")
    third = steps.end("x", second, committed=True)
    steps.describe("x")
    for producer, committed in ((second, True), (second, False), (third, True)):
        steps.end("x", producer, committed=committed)
    steps.produce("x", second, sequence=1)  # late
    steps.produce("x", second, partition=1, sequence=0)
    for partition in (0, 1):
        steps.produce("x", third, partition=partition)
    steps.describe("x")
    fourth = steps.end("x", third, committed=False)
    steps.describe("x")
    for committed in (False, True):
        steps.end("x", third, committed=committed)
    return steps.end("x", fourth, committed=False)


def refused(steps: Steps, producer: Producer) -> Producer:
    producer_id, epoch = producer
    stranger = producer_id + 50, epoch
    for other in ((producer_id, epoch + 1), stranger):
        steps.end("x", other, committed=True)
    steps.end("unknown", producer, committed=True)
    steps.produce("unknown", producer, sequence=0)
    steps.produce("x", (producer_id, epoch + 5), sequence=0)
    steps.produce("x", stranger, sequence=0)
    steps.produce("x", producer, partition=1, sequence=3)
    steps.produce("x", producer)
    steps.offsets("x", producer)
    steps.describe("x")
    following = steps.end("x", producer, committed=True)
    steps.describe("x")
    steps.offsets("x", producer)
    steps.offsets("x", following)
    steps.describe("x")
    return steps.end("x", following, committed=False)


def older_versions(steps: Steps, producer: Producer) -> None:
    steps.describe("x")
    steps.produce("x", producer, version=11)
    steps.add("x", producer)
    for version in (11, 12):
        steps.produce("x", producer, version=version)
    for version, committed in ((4, True), (4, True), (4, False), (5, True)):
        steps.end("x", producer, committed=committed, version=version)
        steps.describe("x")
    following = steps.end("x", producer, committed=False)
    steps.produce("x", following, sequence=0)
    ended = steps.end("x", following, committed=True)
    steps.describe("x")
    again = steps.init("x", following)  # its response was lost
    steps.init("x", again)
    steps.init("x", following)
    steps.end("x", ended, committed=False)
    steps.produce(None, (again[0] + 1_000, 0))


def timeout(steps: Steps) -> None:
    steps.find("z", 1)
    producer = steps.init("z", timeout_ms=TIMEOUT_MS)
    steps.produce("z", producer, partition=1)
    time.sleep(TIMEOUT_MS / 1_000 + 0.5)
    eventually(lambda: _is_aborted(steps))
    steps.describe("z")
    steps.produce("z", producer, partition=1)
    steps.end("z", producer, committed=True)
    following = steps.end("z", producer, committed=False)
    steps.produce("z", following, partition=1)
    steps.end("z", following, committed=True)


def _is_aborted(steps: Steps) -> bool:
    found: Any = steps.wire.ask(DescribeTransactionsRequest(["z"]), 0)
    return bool(found.transaction_states[0].transaction_state == "CompleteAbort")


def test_every_step_has_the_response_of_kafka(tmp_path: Path) -> None:
    with start_kraft(tmp_path / "kafka", **CHECKS) as bootstrap:
        expected = play(bootstrap)
    with start_broker(tmp_path / "ottla", **CHECKS) as broker:
        assert play(broker.bootstrap) == expected
