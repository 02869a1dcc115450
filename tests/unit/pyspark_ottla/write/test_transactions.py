"""Transactional requests: what is asked of whom, what is retried, and what is final."""

from __future__ import annotations

import base64
import json
import zlib

import pytest

from ottla.protocol.client.cluster import Address
from ottla.protocol.client.errors import BrokerConnectionError
from ottla.protocol.client.operations import TRANSACTION, Versions
from ottla.protocol.errors import ErrorCode
from ottla.protocol.message import Message
from ottla.protocol.messages.add_partitions_to_txn import AddPartitionsToTxnRequest
from ottla.protocol.messages.describe_transactions import DescribeTransactionsRequest
from ottla.protocol.messages.end_txn import EndTxnRequest
from ottla.protocol.messages.find_coordinator import FindCoordinatorRequest
from ottla.protocol.messages.init_producer_id import InitProducerIdRequest
from ottla.protocol.messages.list_transactions import ListTransactionsRequest
from ottla.protocol.messages.offset_fetch import OffsetFetchRequest
from ottla.protocol.messages.txn_offset_commit import TxnOffsetCommitRequest
from ottla.protocol.topics import TopicPartition
from pyspark_ottla.cluster.cluster import KafkaCluster
from pyspark_ottla.errors import ConnectorError
from pyspark_ottla.options.client_options import parse_client_options
from pyspark_ottla.write.decisions import Decision, Prepared, Target, chunk_groups, encode_decision
from pyspark_ottla.write.transactions import FencedError, Transactions
from tests.doubles.scripted_coordinator import TIMEOUT_MS, ScriptedCoordinator

NAME = "prefix-query"
PLACE = TopicPartition("t", 0)
IDS = [f"{NAME}-0123456789ab-{slot}" for slot in range(3)]


@pytest.fixture
def coordinator() -> ScriptedCoordinator:
    return ScriptedCoordinator()


def transactions(coordinator: ScriptedCoordinator, **more: str) -> Transactions:
    given = {"kafka.bootstrap.servers": "b:1", "kafka.default.api.timeout.ms": "300", **more}
    cluster = KafkaCluster(coordinator.as_client, parse_client_options(given, writes=True))
    return Transactions(cluster, TIMEOUT_MS)


def begun(coordinator: ScriptedCoordinator, identifier: str = IDS[0]) -> Prepared:
    """A transaction that is open."""
    wire = transactions(coordinator)
    producer = wire.begin(identifier)
    wire.add_partitions(producer, [PLACE, TopicPartition("t", 1)])
    return producer


def run_whole(coordinator: ScriptedCoordinator) -> None:
    """Begins a transaction, stores a decision in it and commits."""
    producer = begun(coordinator)
    wire = transactions(coordinator)
    wire.store(producer, PLACE, 1, {NAME: "x"})
    wire.end(producer, committed=True)


def test_the_course_of_a_task(coordinator: ScriptedCoordinator) -> None:
    producer = begun(coordinator)
    assert producer == Prepared(IDS[0], 0, 1)
    wire = transactions(coordinator)
    for _ in range(2):  # it can be repeated
        wire.end(producer, committed=True)
    assert coordinator.kinds() == ["InitProducerId", "AddPartitionsToTxn", "EndTxn", "EndTxn"]


@pytest.mark.parametrize("tasks", [1, 20_000])
def test_a_decision_is_stored_and_read(coordinator: ScriptedCoordinator, tasks: int) -> None:
    wire = transactions(coordinator)
    rows = tuple(Prepared(f"{NAME}-0123456789ab-{n}", n * n, n % 7) for n in range(tasks))
    wanted = Decision(4, "ab" * 16, "run", tasks, rows, Target("cluster", "t", "id"))
    texts = encode_decision(NAME, wanted)
    stored = dict(zip(chunk_groups(NAME, len(texts)), texts, strict=True))
    producer = wire.begin(f"{NAME}-driver")
    wire.store(producer, PLACE, 5, stored)
    assert wire.decision(NAME, is_fenced=True) is None, "it is decided by EndTxn"
    wire.end(producer, committed=True)
    assert wire.decision(NAME, is_fenced=True) == wanted
    if len(stored) > 1:
        del coordinator.groups[f"{NAME}.1"]
        with pytest.raises(ConnectorError, match="do not hold a whole decision"):
            wire.decision(NAME, is_fenced=True)


def test_a_decision_of_an_earlier_version_is_about_the_topic_of_its_offset(
    coordinator: ScriptedCoordinator,
) -> None:
    body = zlib.compress(json.dumps(["run", 5, {}]).encode())
    coordinator.groups[NAME] = (5, f"1:{'ab' * 16}:0/1:{base64.b85encode(body).decode()}")
    found = transactions(coordinator).decision(NAME, is_fenced=True)
    assert found is not None
    assert found.target == Target("", "t", "")


@pytest.mark.parametrize("text", [None, "", "{}", "[1,2,3]"])
def test_other_metadata_is_no_decision(coordinator: ScriptedCoordinator, text: str | None) -> None:
    coordinator.groups[NAME] = (4, text)
    assert transactions(coordinator).decision(NAME, is_fenced=False) is None


@pytest.mark.parametrize("kind", [AddPartitionsToTxnRequest, TxnOffsetCommitRequest])
def test_codes_inside_responses_are_waited_out(
    coordinator: ScriptedCoordinator, kind: type[Message]
) -> None:
    coordinator.codes[kind] = [ErrorCode.CONCURRENT_TRANSACTIONS, ErrorCode.NOT_COORDINATOR]
    producer = begun(coordinator)
    transactions(coordinator).store(producer, PLACE, 1, {NAME: "x"})
    assert sum(isinstance(request, kind) for _, request in coordinator.sent) == 3


@pytest.mark.parametrize(
    "code",
    [ErrorCode.PRODUCER_FENCED, ErrorCode.INVALID_PRODUCER_EPOCH, ErrorCode.INVALID_TXN_STATE],
)
def test_an_ended_transaction_names_the_timeout(
    coordinator: ScriptedCoordinator, code: int
) -> None:
    producer = begun(coordinator)
    coordinator.codes[EndTxnRequest] = [code]
    with pytest.raises(FencedError, match=r"transaction\.timeout\.ms \(900000 ms\), or another"):
        transactions(coordinator).end(producer, committed=True)


@pytest.mark.parametrize(
    ("kind", "code", "text"),
    [
        (
            InitProducerIdRequest,
            ErrorCode.INVALID_TRANSACTION_TIMEOUT,
            r"transaction\.max\.timeout",
        ),
        (EndTxnRequest, ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED, "NOT_AUTHORIZED"),
        (TxnOffsetCommitRequest, ErrorCode.OFFSET_METADATA_TOO_LARGE, r"offset\.metadata\.max"),
        (AddPartitionsToTxnRequest, ErrorCode.TOPIC_AUTHORIZATION_FAILED, "NOT_AUTHORIZED"),
    ],
)
def test_final_codes(
    coordinator: ScriptedCoordinator, kind: type[Message], code: int, text: str
) -> None:
    coordinator.codes[kind] = [code]
    with pytest.raises(ConnectorError, match=text):
        run_whole(coordinator)


def test_a_coordinator_that_stays_busy(coordinator: ScriptedCoordinator) -> None:
    coordinator.codes[AddPartitionsToTxnRequest] = [ErrorCode.CONCURRENT_TRANSACTIONS] * 100
    with pytest.raises(ConnectorError, match="CONCURRENT_TRANSACTIONS"):
        begun(coordinator)


def test_a_coordinator_that_loads_has_the_whole_time_of_the_call(
    coordinator: ScriptedCoordinator, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not that of one request, after which the client returns the last code."""
    given: list[int | None] = []

    def call(
        request: Message, route: object, *, timeout_ms: int | None, versions: Versions
    ) -> Message:
        given.append(timeout_ms)
        return coordinator.send(None, request)

    monkeypatch.setattr(coordinator, "call", call)
    transactions(coordinator, **{"kafka.request.timeout.ms": "10"}).begin(IDS[0])
    assert given[0] is not None
    assert given[0] > 200


def test_a_coordinator_that_is_away_has_more_time_than_the_first_contact(
    coordinator: ScriptedCoordinator, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each batch has a new cluster: its first request is to a coordinator that may be moving."""
    monkeypatch.setattr("pyspark_ottla.cluster.cluster.FIRST_CONTACT_SECONDS", 0.05)
    busy = [ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, ErrorCode.COORDINATOR_NOT_AVAILABLE]
    coordinator.codes[OffsetFetchRequest] = list(busy)
    assert transactions(coordinator).decision(NAME, is_fenced=False) is None
    coordinator.state.brokers.clear()  # as a new process
    coordinator.codes[FindCoordinatorRequest] = list(busy)
    transactions(coordinator).find_coordinators(IDS)
    coordinator.state.brokers.clear()
    failures: list[Exception] = [BrokerConnectionError("away")]
    coordinator.response(
        InitProducerIdRequest,
        lambda request: failures.pop() if failures else coordinator._init(request),
    )
    begun(coordinator)


def test_a_cluster_that_cannot_be_reached(
    coordinator: ScriptedCoordinator, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pyspark_ottla.cluster.cluster.FIRST_CONTACT_SECONDS", 0.05)
    coordinator.failures = [BrokerConnectionError("away") for _ in range(100)]
    with pytest.raises(ConnectorError, match=r"BROKER_UNAVAILABLE.*Reaching a broker failed: away"):
        begun(coordinator)
    assert len(coordinator.failures) == 99


def test_open_transactions_of_a_write(coordinator: ScriptedCoordinator) -> None:
    for identifier in (IDS[0], IDS[1], f"{NAME}-other-0123456789ab-0", f"{NAME}-driver"):
        begun(coordinator, identifier)
    transactions(coordinator).begin(IDS[1])  # ends it
    # Both scripted brokers list the same.
    assert set(transactions(coordinator).open_ids(NAME)) == {IDS[0]}
    coordinator.codes[ListTransactionsRequest] = [ErrorCode.COORDINATOR_NOT_AVAILABLE]
    with pytest.raises(ConnectorError, match="Listing open transactions failed"):
        transactions(coordinator).open_ids(NAME)


def test_states_of_many_transactions_take_few_requests(coordinator: ScriptedCoordinator) -> None:
    for identifier in IDS:
        begun(coordinator, identifier)
    coordinator.sent.clear()
    coordinator.codes[FindCoordinatorRequest] = [ErrorCode.COORDINATOR_NOT_AVAILABLE]
    coordinator.codes[DescribeTransactionsRequest] = [ErrorCode.NOT_COORDINATOR]
    found = transactions(coordinator).describe(IDS)
    assert found is not None
    assert {name: state.transaction_state for name, state in found.items()} == dict.fromkeys(
        IDS, "Ongoing"
    )
    kinds = coordinator.kinds()
    assert kinds == ["FindCoordinator"] * 2 + ["DescribeTransactions", "FindCoordinator"] + [
        "DescribeTransactions"
    ]


def test_a_coordinator_that_died_is_looked_up_again(coordinator: ScriptedCoordinator) -> None:
    for identifier in IDS:
        begun(coordinator, identifier)
        coordinator.state.set_coordinator(identifier, TRANSACTION, 9, Address("dead", 9))
    describe = coordinator._describe

    def response(request: DescribeTransactionsRequest) -> Message | Exception:
        known = coordinator.state.coordinator(request.transactional_ids[0], TRANSACTION)
        return BrokerConnectionError("broker 9 is away") if known == 9 else describe(request)

    coordinator.response(DescribeTransactionsRequest, response)
    found = transactions(coordinator).describe(IDS)
    assert found is not None
    assert set(found) == set(IDS)
