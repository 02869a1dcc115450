"""The sender against a client that responds by a script: order, repetition, and what is final."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import cast

import numpy as np
import pytest

from ottla.protocol.client.blocking import BlockingClient
from ottla.protocol.client.cluster import Address, ClusterState, Leader
from ottla.protocol.client.errors import BrokerConnectionError
from ottla.protocol.client.operations import Versions
from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.protocol.message import Message
from ottla.protocol.messages.produce import (
    BatchIndexAndErrorMessage,
    PartitionProduceResponse,
    ProduceRequest,
    ProduceResponse,
    TopicProduceResponse,
)
from ottla.protocol.records.batch import BatchHeader, read_header
from ottla.protocol.topics import TopicPartition
from pyspark_ottla.cluster.cluster import KafkaCluster
from pyspark_ottla.errors import ConnectorError
from pyspark_ottla.options.client_options import ClientOptions, parse_client_options
from pyspark_ottla.write.encode import Section
from pyspark_ottla.write.producing import IN_FLIGHT_MAX, ProducerIdentity, TaskProducer

A, B = TopicPartition("t", 0), TopicPartition("t", 1)
IDEMPOTENT = ProducerIdentity(7, 2)


class ScriptedClient:
    """Takes every batch unless the script has an error code or exception for the request."""

    def __init__(self, *script: int | Exception) -> None:
        self.script = list(script)
        self.state = ClusterState([Address("b", 1)])
        self.batches: list[tuple[TopicPartition, BatchHeader]] = []
        self.forgotten: list[TopicPartition] = []
        self.ends: dict[TopicPartition, int] = {}
        self.sequences: dict[TopicPartition, int] = {}
        self.in_flight = 0
        self.in_flight_max = 0

    def leader(self, partition: TopicPartition, *, timeout_ms: int) -> Leader:
        return Leader(partition.partition % 2, 0)

    def forget_leader(self, partition: TopicPartition) -> None:
        self.forgotten.append(partition)

    def begin(
        self, node_id: int, request: Message, *, timeout_ms: int, versions: Versions
    ) -> Callable[[], Message]:
        self.in_flight += 1
        self.in_flight_max = max(self.in_flight_max, self.in_flight)
        try:
            response: Message | Exception = self._respond(node_id, request)
        except Exception as error:
            response = error

        def complete() -> Message:
            self.in_flight -= 1
            if isinstance(response, Exception):
                raise response
            return response

        return complete

    def complete(self, begun: Callable[[], Message]) -> Message:
        return begun()

    def _respond(self, node_id: int, request: Message) -> Message:
        assert isinstance(request, ProduceRequest)
        step = self.script.pop(0) if self.script else 0
        if isinstance(step, Exception):
            raise step
        topics = []
        for topic in request.topic_data:
            rows = []
            for part in topic.partition_data:
                tp = TopicPartition(topic.name, part.index)
                assert tp.partition % 2 == node_id
                rows.append(self._take(tp, bytes(part.records or b""), step))
            topics.append(TopicProduceResponse(name=topic.name, partition_responses=rows))
        return ProduceResponse(responses=topics)

    def _take(self, tp: TopicPartition, data: bytes, code: int) -> PartitionProduceResponse:
        header = read_header(data)
        assert header.size_in_bytes == len(data), "exactly one batch for each partition"
        if not code and header.base_sequence > self.sequences.get(tp, 0):
            code = ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
        if code:
            errors = [BatchIndexAndErrorMessage(1, "no key")] if header.record_count > 1 else []
            return PartitionProduceResponse(
                index=tp.partition, error_code=code, record_errors=errors, error_message="bad"
            )
        self.batches.append((tp, header))
        self.sequences[tp] = header.base_sequence + header.record_count
        base = self.ends.get(tp, 0)
        self.ends[tp] = base + header.record_count
        return PartitionProduceResponse(index=tp.partition, base_offset=base)


def options(**given: str) -> ClientOptions:
    named = {f"kafka.{name.replace('_', '.')}": value for name, value in given.items()}
    return parse_client_options({"kafka.bootstrap.servers": "b:1"} | named, writes=True)


def producer(
    client: ScriptedClient, identity: ProducerIdentity = IDEMPOTENT, **given: str
) -> TaskProducer:
    chosen = options(**given)
    return TaskProducer(KafkaCluster(cast(BlockingClient, client), chosen), chosen, identity)


def section(count: int = 1, size: int = 100, first_row: int = 0) -> Section:
    """The payload is not checked here."""
    rows = np.arange(first_row, first_row + count)
    return Section(memoryview(b"x" * size), rows, 1000, 1000)


def test_batches_of_a_partition_stay_in_order_with_their_sequences() -> None:
    client = ScriptedClient()
    sending = producer(client)
    for count in (3, 4, 5):
        sending.add(A, section(count))
        sending.add(B, section(1))
    sending.finish()
    taken = [(h.base_sequence, h.record_count) for tp, h in client.batches if tp == A]
    assert taken == [(0, 3), (3, 4), (7, 5)]
    assert {(h.producer_id, h.producer_epoch) for _, h in client.batches} == {(7, 2)}
    assert sending.last_offsets == {A: 11, B: 2}


@pytest.mark.parametrize(
    "trouble",
    [ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.REQUEST_TIMED_OUT, BrokerConnectionError("away")],
)
def test_a_repeated_batch_is_the_same_batch(trouble: int | Exception) -> None:
    client = ScriptedClient(trouble, trouble)
    sending = producer(client)
    sending.add(A, section(3))
    sending.add(A, section(2))
    sending.finish()
    assert [h.base_sequence for _, h in client.batches] == [0, 3]
    assert client.forgotten == [A, A]


@pytest.mark.parametrize(
    "trouble",
    [ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.REQUEST_TIMED_OUT, BrokerConnectionError("away")],
)
@pytest.mark.parametrize("before", range(4))
def test_several_rounds_are_in_flight_and_keep_their_order(
    before: int, trouble: int | Exception
) -> None:
    client = ScriptedClient(*[0] * before, trouble)
    sending = producer(client)
    for count in range(1, 13):
        sending.add(A, section(count))
    sending.finish()
    assert [h.record_count for _, h in client.batches] == list(range(1, 13))
    assert [h.base_sequence for _, h in client.batches] == [n * (n - 1) // 2 for n in range(1, 13)]
    assert 1 <= client.in_flight_max <= IN_FLIGHT_MAX
    assert client.in_flight == 0


def test_one_round_is_in_flight_without_sequences() -> None:
    client = ScriptedClient()
    sending = producer(client, ProducerIdentity(), enable_idempotence="false", acks="1")
    for _ in range(10):
        sending.add(A, section())
    sending.finish()
    assert (len(client.batches), client.in_flight_max) == (10, 1)


def test_a_gap_in_the_first_round_is_final() -> None:
    client = ScriptedClient(ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER)
    sending = producer(client)
    sending.add(A, section())
    with pytest.raises(ConnectorError, match="OUT_OF_ORDER_SEQUENCE_NUMBER"):
        sending.finish()


def test_a_duplicate_is_a_success() -> None:
    client = ScriptedClient(ErrorCode.DUPLICATE_SEQUENCE_NUMBER)
    sending = producer(client)
    sending.add(A, section())
    sending.finish()
    assert sending.last_offsets == {}, "the broker does not say where it is"


def test_a_final_error_names_rows_and_partition() -> None:
    client = ScriptedClient(ErrorCode.INVALID_RECORD)
    sending = producer(client)
    sending.add(A, section(3, first_row=40))
    with pytest.raises(ConnectorError) as raised:
        sending.finish()
    assert str(raised.value) == (
        "[WRITE_FAILED] The broker refused row 41 of this task for t-0 (INVALID_RECORD: no key). "
        "A compacted topic takes no record without a key."
    )


def test_time_runs_out() -> None:
    client = ScriptedClient(*[ErrorCode.NOT_ENOUGH_REPLICAS] * 100)
    sending = producer(client, delivery_timeout_ms="1")
    sending.add(B, section())
    with pytest.raises(ConnectorError, match=r"t-1 were not acknowledged within 1 ms.*NOT_ENOUGH"):
        sending.finish()


def test_partitions_without_a_leader_share_the_time() -> None:
    """A look-up waits for a leader; one for each partition made the time of all of them."""

    class Leaderless(ScriptedClient):
        waited_ms = 0

        def leader(self, partition: TopicPartition, *, timeout_ms: int) -> Leader:
            self.waited_ms += timeout_ms
            time.sleep(timeout_ms / 1000)
            raise KafkaError(ErrorCode.LEADER_NOT_AVAILABLE, "no leader is known")

    client = Leaderless()
    sending = producer(client, delivery_timeout_ms="400", request_timeout_ms="100")
    for number in range(15):
        sending.add(TopicPartition("t", number), section())
    with pytest.raises(ConnectorError, match=r"not acknowledged within 400 ms.*no leader is known"):
        sending.finish()
    assert client.waited_ms <= 500


def test_nothing_is_accepted_after_a_failure() -> None:
    client = ScriptedClient(ErrorCode.MESSAGE_TOO_LARGE)
    sending = producer(client)
    sending.add(A, section())
    with pytest.raises(ConnectorError, match="MESSAGE_TOO_LARGE"):
        sending.finish()
    with pytest.raises(ConnectorError, match="MESSAGE_TOO_LARGE"):
        sending.add(A, section())
    sending.close()


def test_closing_gives_up_what_waits() -> None:
    sending_may_go_on = threading.Event()

    class SlowClient(ScriptedClient):
        def leader(self, partition: TopicPartition, *, timeout_ms: int) -> Leader:
            assert sending_may_go_on.wait(30)
            return super().leader(partition, timeout_ms=timeout_ms)

    client = SlowClient()
    sending = producer(client)
    for _ in range(5):
        sending.add(A, section())
    threading.Timer(0.05, sending_may_go_on.set).start()
    sending.close()
    assert len(client.batches) <= 1


def test_new_partitions_are_announced_before_their_first_batch() -> None:
    client = ScriptedClient()
    announced: list[TopicPartition] = []

    def announce(partitions: list[TopicPartition]) -> None:
        assert not [tp for tp, _ in client.batches if tp in partitions]
        announced.extend(partitions)

    chosen = options()
    cluster = KafkaCluster(cast(BlockingClient, client), chosen)
    identity = ProducerIdentity(7, 2, "id")
    sending = TaskProducer(cluster, chosen, identity, announce)
    for tp in (A, A, B, A):
        sending.add(tp, section())
    sending.finish()
    assert announced == [A, B]
    assert all(header.is_transactional for _, header in client.batches)


def test_a_plain_producer_has_no_sequences() -> None:
    client = ScriptedClient()
    sending = producer(client, ProducerIdentity(), enable_idempotence="false", acks="1")
    sending.add(A, section())
    sending.finish()
    assert client.batches[0][1].base_sequence == -1
