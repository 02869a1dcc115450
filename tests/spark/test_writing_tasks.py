"""Writing tasks and the driver's commit without Spark: timeouts, and what brokers are left with."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest

from ottla.broker.testing.embedded import Broker
from ottla.protocol.client.blocking import BlockingClient
from ottla.protocol.messages.describe_producers import (
    DescribeProducersRequest,
    DescribeProducersResponse,
    TopicRequest,
)
from ottla.protocol.messages.describe_transactions import (
    DescribeTransactionsRequest,
    DescribeTransactionsResponse,
)
from ottla.protocol.messages.list_groups import ListGroupsRequest, ListGroupsResponse
from ottla.protocol.messages.list_transactions import (
    ListTransactionsRequest,
    ListTransactionsResponse,
)
from ottla.protocol.topics import TopicPartition
from pyspark_ottla.cluster.cluster import KafkaCluster
from pyspark_ottla.cluster.connections import client_of
from pyspark_ottla.errors import ConnectorError
from pyspark_ottla.options.sink_options import SinkOptions, parse_sink_options
from pyspark_ottla.write import producer_ids, two_phase_commit
from pyspark_ottla.write.decisions import Prepared, TaskResult, Write
from pyspark_ottla.write.repeated_writes import target_of
from pyspark_ottla.write.two_phase_commit import BatchCommit
from pyspark_ottla.write.writing import write_task
from tests.doubles.eventually import eventually
from tests.spark.crashing_writes import committed_values
from tests.spark.support import create_topic

TOPIC = "t"
# Long enough for what follows the first batch on a busy machine, and short enough to wait for.
SHORT_TIMEOUT_MS = 3000


@pytest.fixture(scope="module")
def bootstrap() -> Iterator[str]:
    with Broker(transaction_abort_timed_out_transaction_cleanup_interval_ms=200) as broker:
        create_topic(broker.bootstrap, TOPIC, 1)
        yield broker.bootstrap


def options(bootstrap: str, **given: str) -> SinkOptions:
    base = {"kafka.bootstrap.servers": bootstrap, "topic": TOPIC, "kafka.batch.size": "100"}
    return parse_sink_options(base | {name.replace("_", "."): text for name, text in given.items()})


def once(bootstrap: str, timeout_ms: int = SHORT_TIMEOUT_MS) -> SinkOptions:
    return options(bootstrap, delivery="exactly-once", kafka_transaction_timeout_ms=str(timeout_ms))


def rows(*values: bytes) -> Any:
    return pa.record_batch({"value": pa.array(values, pa.binary())})


def commit(chosen: SinkOptions, write: Write, results: list[TaskResult]) -> bool:
    prepared = [result.prepared for result in results if result.prepared is not None]
    with client_of(chosen.client) as client:
        cluster = KafkaCluster(client, chosen.client)
        target = target_of(cluster, chosen.topic or TOPIC)
        batch = BatchCommit(chosen, cluster, write, target)
        return batch.commit(prepared, sum(result.rows for result in results))


def wait_for_abort(bootstrap: str, identifier: str) -> None:
    """Until the coordinator has ended the transaction, whose time is over."""
    request = DescribeTransactionsRequest(transactional_ids=[identifier])
    with BlockingClient(bootstrap) as client:

        def has_ended() -> bool:
            response = client.call(request)
            assert isinstance(response, DescribeTransactionsResponse)
            return response.transaction_states[0].transaction_state == "CompleteAbort"

        eventually(has_ended, "the transaction stays open")


def prepared_of(result: TaskResult) -> Prepared:
    assert result.prepared is not None
    return result.prepared


def test_a_task_that_is_slower_than_the_timeout_names_it(bootstrap: str) -> None:
    write = Write("slow", 0, "a" * 32)

    def slow() -> Iterator[Any]:
        yield rows(*[b"x" * 100] * 20)
        eventually(lambda: ids(bootstrap, "slow"), "nothing was sent")
        wait_for_abort(bootstrap, ids(bootstrap, "slow")[0])
        yield rows(*[b"y" * 100] * 20)

    with pytest.raises(ConnectorError, match=r"kafka\.transaction\.timeout\.ms: raise it"):
        write_task(once(bootstrap), slow(), write)


def ids(bootstrap: str, name: str) -> list[str]:
    """The transactional ids of a write."""
    request = ListTransactionsRequest(state_filters=[], producer_id_filters=[])
    with BlockingClient(bootstrap) as client:
        response = client.call(request)
    assert isinstance(response, ListTransactionsResponse)
    return [
        row.transactional_id
        for row in response.transaction_states
        if row.transactional_id.startswith(f"{name}-") and row.transaction_state != "Empty"
    ]


def test_a_batch_that_timed_out_is_not_decided_and_is_written_again(bootstrap: str) -> None:
    topic = "undecided"
    create_topic(bootstrap, topic, 1)
    chosen = parse_sink_options(
        {
            "kafka.bootstrap.servers": bootstrap,
            "topic": topic,
            "delivery": "exactly-once",
            "kafka.transaction.timeout.ms": str(SHORT_TIMEOUT_MS),
        }
    )
    write = Write("undecided", 0, "a" * 32, "run-1")
    result = write_task(chosen, iter([rows(b"1", b"2")]), write)
    wait_for_abort(bootstrap, prepared_of(result).transactional_id)
    with pytest.raises(ConnectorError, match=r"TRANSACTION_TIMED_OUT.*Nothing of the batch is"):
        commit(chosen, write, [result])
    again = write._replace(job="b" * 32, run="run-2")
    patient = parse_sink_options(
        {"kafka.bootstrap.servers": bootstrap, "topic": topic, "delivery": "exactly-once"}
    )
    assert commit(patient, again, [write_task(patient, iter([rows(b"1", b"2")]), again)])
    assert committed_values(bootstrap, topic, 1) == {b"1": 1, b"2": 1}


def test_a_decided_batch_that_timed_out_is_loud(
    bootstrap: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    write = Write("lost", 0, "a" * 32, "run-1")
    chosen = once(bootstrap)
    result = write_task(chosen, iter([rows(b"lost")]), write)
    with monkeypatch.context() as patched:  # the driver dies after the decision
        patched.setattr(BatchCommit, "_end_all", lambda *_: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            commit(chosen, write, [result])
    two_phase_commit._known.clear()
    wait_for_abort(bootstrap, prepared_of(result).transactional_id)
    again = write._replace(job="b" * 32, run="run-2")
    dropped = write_task(chosen, iter([rows(b"lost")]), again)
    assert (dropped.dropped, dropped.prepared) == (True, None)
    with pytest.raises(ConnectorError, match=r"DECIDED_TRANSACTION_LOST.*1 of 1 transactions"):
        commit(chosen, again, [dropped])


def test_the_brokers_limit_of_the_timeout_is_named(bootstrap: str) -> None:
    with pytest.raises(
        ConnectorError, match=r"no transaction of 900001 ms.*transaction\.max\.time"
    ):
        write_task(once(bootstrap, 900_001), iter([rows(b"x")]), Write("long", 0, "a" * 32))


def test_fifty_tasks_of_a_process_have_one_producer_id(bootstrap: str) -> None:
    create_topic(bootstrap, "ids", 1)
    producer_ids._idle.clear()
    chosen = parse_sink_options({"kafka.bootstrap.servers": bootstrap, "topic": "ids"})
    for number in range(50):
        write_task(chosen, iter([rows(b"%d" % number)]), None)
    request = DescribeProducersRequest(topics=[TopicRequest(name="ids", partition_indexes=[0])])
    with BlockingClient(bootstrap) as client:
        response = client.call_leader(TopicPartition("ids", 0), request)
    assert isinstance(response, DescribeProducersResponse)
    [partition] = response.topics[0].partitions
    assert len(partition.active_producers) == 1
    assert committed_values(bootstrap, "ids", 1) == {b"%d" % number: 1 for number in range(50)}


def test_batches_use_their_ids_again_and_leave_one_group(bootstrap: str) -> None:
    name = "steady"
    for number in range(6):
        write = Write(name, number, f"{number:032x}")
        chosen = once(bootstrap, 900_000)
        results = [write_task(chosen, iter([rows(b"x")]), write) for _ in range(4)]
        assert commit(chosen, write, results)
    assert len(ids(bootstrap, name)) == 2 * 4 + 1, "two batches of four tasks, and the driver"
    with BlockingClient(bootstrap) as client:
        response = client.call(ListGroupsRequest())
    assert isinstance(response, ListGroupsResponse)
    groups = [group.group_id for group in response.groups]
    assert [group for group in groups if group.startswith(name)] == [name]


@pytest.mark.parametrize("write", [None, Write("empty", 0, "a" * 32)])
def test_a_task_without_rows_connects_to_no_broker(
    write: Write | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    def connect(*_: object) -> None:
        raise AssertionError("a connection")

    monkeypatch.setattr(BlockingClient, "_connection", connect)
    assert write_task(once("localhost:1"), iter([rows(), rows()]), write) == TaskResult(0, 0, {})


def test_end_txn_is_sent_by_several_connections(bootstrap: str) -> None:
    """More transactions than one thread ends; all of them are visible at the end."""
    create_topic(bootstrap, "many", 1)
    chosen = parse_sink_options(
        {"kafka.bootstrap.servers": bootstrap, "topic": "many", "delivery": "exactly-once"}
    )
    write = Write("many", 0, "a" * 32)
    count = two_phase_commit.ENDED_BY_ONE_THREAD + 5
    results = [write_task(chosen, iter([rows(b"%d" % n)]), write) for n in range(count)]
    assert commit(chosen, write, results)
    assert committed_values(bootstrap, "many", 1) == {b"%d" % n: 1 for n in range(count)}
