"""Routes, retries and deadlines: operations driven by hand, with a clock of the test's own."""

import sys
from collections.abc import Callable
from typing import Any, TypeVar

import pytest

from ottla.protocol.client.cluster import Address, ClusterState, Leader
from ottla.protocol.client.errors import (
    AuthenticationError,
    BrokerConnectionError,
    ClientError,
    NoBrokersAvailableError,
    RequestTimedOutError,
    UnsupportedApiError,
)
from ottla.protocol.client.operations import (
    GROUP,
    TRANSACTION,
    AnyBroker,
    Controller,
    CoordinatorOf,
    LeaderOf,
    Node,
    Operation,
    Operations,
    Send,
    Sleep,
    _fields_with_codes,
    error_codes,
    retriable_code,
)
from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.protocol.message import Message
from ottla.protocol.messages.add_partitions_to_txn import (
    AddPartitionsToTxnPartitionResult,
    AddPartitionsToTxnResponse,
    AddPartitionsToTxnTopicResult,
)
from ottla.protocol.messages.create_topics import (
    CreatableTopicResult,
    CreateTopicsRequest,
    CreateTopicsResponse,
)
from ottla.protocol.messages.find_coordinator import Coordinator, FindCoordinatorResponse
from ottla.protocol.messages.list_groups import ListGroupsRequest, ListGroupsResponse
from ottla.protocol.messages.metadata import MetadataRequest
from ottla.protocol.messages.produce import (
    PartitionProduceResponse,
    ProduceRequest,
    ProduceResponse,
    TopicProduceResponse,
)
from ottla.protocol.registry import API
from ottla.protocol.topics import TopicPartition
from tests.doubles.scripted_broker import metadata_response

T = TypeVar("T")
BOOT, ONE, TWO = Address("boot", 9), Address("one", 1), Address("two", 2)
BROKERS = {1: ("one", 1), 2: ("two", 2)}
PARTITION = TopicPartition("t", 0)

Reply = Message | ClientError | Callable[[Send], Message | ClientError]


class Shell:
    """Runs operations: time passes only by sleeping and by ``cost_ms`` for each request."""

    def __init__(self, cost_ms: int = 0) -> None:
        self.now_ms = 0
        self.cost_ms = cost_ms
        self.state = ClusterState([BOOT])
        self.operations = Operations(
            self.state, lambda: self.now_ms, request_timeout_ms=500, jitter=lambda: 0.5
        )
        self.sent: list[Send] = []
        self.slept: list[int] = []
        self.replies: dict[str, list[Reply]] = {"MetadataRequest": [metadata_response(BROKERS)]}

    def run(self, operation: Operation[T]) -> T:
        response: Any = None
        while True:
            try:
                if isinstance(response, ClientError):
                    step = operation.throw(response)
                else:
                    step = operation.send(response)
            except StopIteration as stop:
                result: T = stop.value
                return result
            response = self.perform(step)

    def perform(self, step: Send | Sleep) -> Message | ClientError | None:
        if isinstance(step, Sleep):
            self.slept.append(step.duration_ms)
            self.now_ms += step.duration_ms
            return None
        self.sent.append(step)
        self.now_ms += self.cost_ms
        script = self.replies[step.request.NAME]
        reply = script.pop(0) if len(script) > 1 else script[0]
        return reply(step) if callable(reply) else reply

    def went(self) -> list[tuple[str, str]]:
        """(host, request) of everything that was sent."""
        return [(step.address.host, step.request.NAME) for step in self.sent]


def refused() -> BrokerConnectionError:
    return BrokerConnectionError("connection refused", broker="x:1")


def broken() -> BrokerConnectionError:
    return BrokerConnectionError("broke", broker="x:1", sent=True)


def created(*codes: int) -> CreateTopicsResponse:
    return CreateTopicsResponse(
        topics=[CreatableTopicResult(name=f"t{code}", error_code=code) for code in codes]
    )


def added(*codes: int) -> AddPartitionsToTxnResponse:
    """As versions 0 to 3 are read, which have no error code at the top."""
    rows = [AddPartitionsToTxnPartitionResult(index, code) for index, code in enumerate(codes)]
    return AddPartitionsToTxnResponse(
        results_by_topic_v3_and_below=[AddPartitionsToTxnTopicResult("t", rows)]
    )


def test_error_codes_are_found_wherever_they_stand() -> None:
    partition = PartitionProduceResponse(index=0, error_code=6)
    response = ProduceResponse(responses=[TopicProduceResponse("t", [partition])])
    assert list(error_codes(response)) == [6]
    assert list(error_codes(ListGroupsResponse(error_code=15))) == [15]
    assert sorted(error_codes(created(0, 41))) == [0, 41]
    assert list(error_codes(added(51, 0))) == [0, 51, 0]


def test_error_codes_are_looked_for_in_all_structs() -> None:
    """Not in fields of other types, which is for speed only."""
    for api in API.values():
        module = vars(sys.modules[api.response.__module__])
        structs = [each for each in module.values() if hasattr(each, "FIELDS")]
        for struct in structs:
            searched = _fields_with_codes(struct)
            for name, kind in (line.split()[:2] for line in struct.FIELDS):
                is_struct = module.get(kind.strip("[]")) in structs
                is_code = name in ("error_code", "partition_error_code")
                assert (name in searched) == (is_struct or is_code), f"{struct}: {name}"


@pytest.mark.parametrize(
    ("response", "code"),
    [
        (ListGroupsResponse(), None),
        (ListGroupsResponse(error_code=15), 15),
        (ListGroupsResponse(error_code=29), None),
        (created(41, 41), 41),
        (created(0, 41), None),
        (created(36, 41), None),
        (created(), None),
        (added(51, 51), 51),
        (added(51, 0), None),
        (added(0, 0), None),
    ],
)
def test_only_responses_that_are_retriable_as_a_whole_are(
    response: Message, code: int | None
) -> None:
    assert retriable_code(response) == code


def test_any_broker_tries_the_next_when_nothing_was_sent() -> None:
    shell = Shell()
    shell.state.update(metadata_response(BROKERS))
    shell.replies["ListGroupsRequest"] = [refused(), refused(), ListGroupsResponse()]
    shell.run(shell.operations.send_once(ListGroupsRequest(), AnyBroker(), 1000))
    assert [host for host, _ in shell.went()] == ["one", "two", "boot"]


def test_all_brokers_gone_says_why_for_each() -> None:
    shell = Shell()
    shell.state.update(metadata_response(BROKERS))
    shell.replies["ListGroupsRequest"] = [refused()]
    with pytest.raises(NoBrokersAvailableError, match=r"refused; .*refused; .*refused"):
        shell.run(shell.operations.send_once(ListGroupsRequest(), AnyBroker(), 1000))


@pytest.mark.parametrize("failure", [broken(), AuthenticationError("no"), UnsupportedApiError("n")])
def test_other_failures_are_final_for_one_send(failure: ClientError) -> None:
    shell = Shell()
    shell.state.update(metadata_response(BROKERS))
    shell.replies["ListGroupsRequest"] = [failure]
    with pytest.raises(type(failure)):
        shell.run(shell.operations.send_once(ListGroupsRequest(), AnyBroker(), 1000))
    assert len(shell.sent) == 1


def test_deadlines_of_one_send() -> None:
    shell = Shell()
    shell.state.update(metadata_response(BROKERS))
    shell.replies["ListGroupsRequest"] = [refused()]
    with pytest.raises(NoBrokersAvailableError):
        shell.run(shell.operations.send_once(ListGroupsRequest(), AnyBroker(), 6000))
    assert {step.deadline_ms for step in shell.sent} == {500}  # the request timeout
    assert [step.connect_deadline_ms for step in shell.sent] == [2000, 3000, 6000]


def test_node_is_looked_up_once() -> None:
    shell = Shell()
    shell.replies["ListGroupsRequest"] = [ListGroupsResponse()]
    for _ in range(2):
        shell.run(shell.operations.send_once(ListGroupsRequest(), Node(2), 1000))
    assert shell.went() == [
        ("boot", "MetadataRequest"),
        ("two", "ListGroupsRequest"),
        ("two", "ListGroupsRequest"),
    ]


def test_node_that_is_not_in_the_cluster() -> None:
    shell = Shell()
    with pytest.raises(NoBrokersAvailableError, match=r"broker 9 is not in the cluster.*1, 2"):
        shell.run(shell.operations.send_once(ListGroupsRequest(), Node(9), 1000))


def test_controller_moves() -> None:
    shell = Shell()
    shell.replies["MetadataRequest"] = [
        metadata_response(BROKERS, controller_id=1),
        metadata_response(BROKERS, controller_id=-1),
        metadata_response(BROKERS, controller_id=2),
    ]
    shell.replies["CreateTopicsRequest"] = [created(41), created(0)]
    response = shell.run(shell.operations.call(CreateTopicsRequest(), Controller(), 10_000))
    assert response == created(0)
    hosts = [host for host, name in shell.went() if name == "CreateTopicsRequest"]
    assert hosts == ["one", "two"]
    assert shell.slept == [100, 200]


def test_leader_moves_and_backoff_grows() -> None:
    shell = Shell()
    shell.replies["MetadataRequest"] = [
        metadata_response(BROKERS, {"t": {0: 1}}),
        metadata_response(BROKERS, {"t": {0: 1}}),
        metadata_response(BROKERS, {"t": {0: 2}}),
    ]
    not_leader = ProduceResponse(
        responses=[TopicProduceResponse("t", [PartitionProduceResponse(0, 6)])]
    )
    fine = ProduceResponse(responses=[TopicProduceResponse("t", [PartitionProduceResponse(0, 0)])])
    shell.replies["ProduceRequest"] = [not_leader, not_leader, fine]
    response = shell.run(shell.operations.call(ProduceRequest(), LeaderOf(PARTITION), 10_000))
    assert response is fine
    assert [host for host, name in shell.went() if name == "ProduceRequest"] == [
        "one",
        "one",
        "two",
    ]
    assert shell.slept == [100, 200]


def test_backoff_has_a_top() -> None:
    shell = Shell()
    shell.replies["ListGroupsRequest"] = [ListGroupsResponse(error_code=15)]
    shell.run(shell.operations.call(ListGroupsRequest(), AnyBroker(), 6000))
    assert shell.slept[:7] == [100, 200, 400, 800, 1000, 1000, 1000]
    assert sum(shell.slept) < 6000


def test_jitter_spreads_the_pauses() -> None:
    shell = Shell()
    pauses = []
    for share in (0.0, 1.0):
        shell.operations._jitter = lambda share=share: share
        pauses.append(shell.operations._backoff_ms(0))
    assert pauses == [80, 120]


def test_last_response_is_returned_when_time_is_up() -> None:
    shell = Shell()
    shell.replies["ListGroupsRequest"] = [ListGroupsResponse(error_code=15)]
    response = shell.run(shell.operations.call(ListGroupsRequest(), AnyBroker(), 1000))
    assert response == ListGroupsResponse(error_code=15)
    assert shell.now_ms < 1000


def test_unreachable_until_time_is_up() -> None:
    shell = Shell()
    shell.replies["ListGroupsRequest"] = [refused()]
    with pytest.raises(RequestTimedOutError, match=r"tried 4 times.*refused") as caught:
        shell.run(shell.operations.call(ListGroupsRequest(), AnyBroker(), 1000))
    assert isinstance(caught.value.__cause__, BrokerConnectionError)


def test_first_failure_is_itself_when_there_is_no_time_to_try_again() -> None:
    shell = Shell()
    shell.replies["ListGroupsRequest"] = [refused()]
    with pytest.raises(BrokerConnectionError, match="refused"):
        shell.run(shell.operations.call(ListGroupsRequest(), AnyBroker(), 50))


def test_what_may_have_been_done_is_sent_again_unless_it_is_produce() -> None:
    shell = Shell()
    shell.replies["ListGroupsRequest"] = [broken(), ListGroupsResponse()]
    shell.run(shell.operations.call(ListGroupsRequest(), AnyBroker(), 1000))
    shell.replies["ProduceRequest"] = [broken(), ProduceResponse()]
    with pytest.raises(BrokerConnectionError):
        shell.run(shell.operations.call(ProduceRequest(), AnyBroker(), 1000))
    shell.replies["ProduceRequest"] = [broken(), ProduceResponse()]
    shell.run(shell.operations.call(ProduceRequest(), AnyBroker(), 1000, resend=True))
    shell.replies["ProduceRequest"] = [refused(), ProduceResponse()]
    shell.run(shell.operations.call(ProduceRequest(), AnyBroker(), 1000))


@pytest.mark.parametrize("failure", [AuthenticationError("no"), UnsupportedApiError("none")])
def test_hopeless_failures_are_not_retried(failure: ClientError) -> None:
    shell = Shell()
    shell.replies["ListGroupsRequest"] = [failure]
    with pytest.raises(type(failure)):
        shell.run(shell.operations.call(ListGroupsRequest(), AnyBroker(), 1000))
    assert shell.slept == []


def test_node_that_cannot_be_reached_is_looked_up_again() -> None:
    shell = Shell()
    shell.replies["MetadataRequest"] = [
        metadata_response(BROKERS),
        metadata_response({**BROKERS, 2: ("moved", 3)}),
    ]
    shell.replies["ListGroupsRequest"] = [refused(), ListGroupsResponse()]
    shell.run(shell.operations.call(ListGroupsRequest(), Node(2), 1000))
    assert [host for host, name in shell.went() if name == "ListGroupsRequest"] == ["two", "moved"]


def test_metadata_does_not_create_topics_unless_asked() -> None:
    shell = Shell()
    shell.run(shell.operations.metadata(["t"], 1000))
    shell.run(shell.operations.metadata(None, 1000, allow_auto_topic_creation=True))
    first, second = shell.sent
    assert isinstance(first.request, MetadataRequest)
    assert isinstance(second.request, MetadataRequest)
    assert not first.request.allow_auto_topic_creation
    assert first.versions.low == 4
    assert second.request.topics is None
    assert second.request.allow_auto_topic_creation
    assert second.versions.low == 1
    assert shell.state.brokers == BROKERS


def test_leader_is_waited_for() -> None:
    shell = Shell()
    shell.replies["MetadataRequest"] = [
        metadata_response(BROKERS, {"t": {0: -1}}),
        metadata_response(BROKERS, {"t": {0: 2}}),
    ]
    assert shell.run(shell.operations.leader(PARTITION, 1000)) == Leader(2, 4)
    assert shell.slept == [100]
    assert shell.run(shell.operations.leader(PARTITION, 1000)) == Leader(2, 4)
    assert len(shell.sent) == 2


@pytest.mark.parametrize(
    ("topics", "partition", "code"),
    [
        ({}, PARTITION, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        ({"t": {0: 1}}, TopicPartition("t", 5), ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        ({"t": {0: -1}}, PARTITION, ErrorCode.LEADER_NOT_AVAILABLE),
        ({"t": {0: 7}}, PARTITION, ErrorCode.LEADER_NOT_AVAILABLE),  # a broker that has gone
    ],
)
def test_leader_that_does_not_come(
    topics: dict[str, dict[int, int]], partition: TopicPartition, code: int
) -> None:
    shell = Shell()
    shell.replies["MetadataRequest"] = [metadata_response(BROKERS, topics)]
    with pytest.raises(KafkaError) as caught:
        shell.run(shell.operations.leader(partition, 1000))
    assert caught.value.code == code
    assert 700 <= shell.now_ms <= 1000


def test_topic_errors_that_do_not_pass_are_raised_at_once() -> None:
    shell = Shell()
    response = metadata_response(BROKERS, {"t": {}})
    response.topics[0].error_code = ErrorCode.TOPIC_AUTHORIZATION_FAILED
    shell.replies["MetadataRequest"] = [response]
    with pytest.raises(KafkaError, match="TOPIC_AUTHORIZATION_FAILED: no leader of t-0"):
        shell.run(shell.operations.leader(PARTITION, 1000))
    assert shell.slept == []


def coordinator_response(node: int, code: int = 0) -> FindCoordinatorResponse:
    row = Coordinator(key="g", node_id=node, host="two", port=2, error_code=code)
    return FindCoordinatorResponse(coordinators=[row])


def test_coordinator_is_found_and_kept() -> None:
    shell = Shell()
    shell.replies["FindCoordinatorRequest"] = [coordinator_response(2)]
    shell.replies["ListGroupsRequest"] = [ListGroupsResponse()]
    for _ in range(2):
        shell.run(shell.operations.call(ListGroupsRequest(), CoordinatorOf("g"), 1000))
    assert shell.went() == [
        ("boot", "FindCoordinatorRequest"),
        ("two", "ListGroupsRequest"),
        ("two", "ListGroupsRequest"),
    ]
    assert shell.sent[0].versions.low == 4


def test_coordinator_moves() -> None:
    shell = Shell()
    shell.replies["FindCoordinatorRequest"] = [
        coordinator_response(-1, ErrorCode.COORDINATOR_NOT_AVAILABLE),
        coordinator_response(2),
    ]
    shell.replies["ListGroupsRequest"] = [ListGroupsResponse(error_code=16), ListGroupsResponse()]
    shell.run(shell.operations.call(ListGroupsRequest(), CoordinatorOf("g"), 5000))
    finds = [name for _, name in shell.went() if name == "FindCoordinatorRequest"]
    assert len(finds) == 3
    assert shell.slept == [100, 200]


def test_coordinator_errors_that_do_not_pass() -> None:
    shell = Shell()
    shell.replies["FindCoordinatorRequest"] = [
        coordinator_response(-1, ErrorCode.GROUP_AUTHORIZATION_FAILED)
    ]
    with pytest.raises(KafkaError, match="GROUP_AUTHORIZATION_FAILED"):
        shell.run(shell.operations.call(ListGroupsRequest(), CoordinatorOf("g"), 1000))


@pytest.mark.parametrize(("key_type", "low"), [(GROUP, 0), (TRANSACTION, 1)])
def test_coordinator_from_brokers_that_take_one_key(key_type: int, low: int) -> None:
    shell = Shell()
    shell.replies["FindCoordinatorRequest"] = [
        UnsupportedApiError("only to 3"),
        FindCoordinatorResponse(node_id=2, host="two", port=2),
    ]
    shell.replies["ListGroupsRequest"] = [ListGroupsResponse()]
    shell.run(shell.operations.call(ListGroupsRequest(), CoordinatorOf("k", key_type), 1000))
    assert shell.sent[1].versions == (low, 3)
    assert shell.went()[-1] == ("two", "ListGroupsRequest")


def test_time_that_requests_take_counts() -> None:
    shell = Shell(cost_ms=400)
    shell.replies["ListGroupsRequest"] = [ListGroupsResponse(error_code=15)]
    shell.run(shell.operations.call(ListGroupsRequest(), AnyBroker(), 1000))
    assert len(shell.sent) == 2
    assert shell.sent[1].deadline_ms == 1000


def test_a_coordinator_at_another_address_than_in_the_metadata() -> None:
    """The broker was started again elsewhere, and nothing has requested metadata since."""
    shell = Shell()
    shell.state.update(metadata_response({1: ("one", 1), 3: ("three", 3)}))
    shell.state.set_coordinator("g", GROUP, 1, ONE)
    shell.replies["FindCoordinatorRequest"] = [
        lambda step: refused() if step.address == ONE else coordinator_response(1)
    ]
    shell.replies["ListGroupsRequest"] = [
        lambda step: refused() if step.address == ONE else ListGroupsResponse()
    ]
    shell.run(shell.operations.call(ListGroupsRequest(), CoordinatorOf("g"), 10_000))
    hosts = [host for host, name in shell.went() if name == "ListGroupsRequest"]
    assert hosts == ["one", "two"]
