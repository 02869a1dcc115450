"""Requests that make and delete partitions, by a client that has used its quota up."""

import uuid
from collections.abc import Callable, Iterator

import pytest

from ottla.protocol.message import Message
from ottla.protocol.messages.alter_client_quotas import (
    AlterClientQuotasRequest,
    AlterClientQuotasRequestEntityData,
    AlterClientQuotasRequestEntryData,
    OpData,
)
from ottla.protocol.messages.create_partitions import CreatePartitionsRequest, CreatePartitionsTopic
from ottla.protocol.messages.create_topics import (
    CreatableTopic,
    CreateTopicsRequest,
    CreateTopicsResponse,
)
from ottla.protocol.messages.delete_topics import DeleteTopicsRequest, DeleteTopicState
from ottla.protocol.registry import API
from tests.differential.asking import Pair

pytestmark = pytest.mark.kafka

THROTTLED = 89
CLIENT_ID = "wire"  # what a `Pair` calls itself


def new_name() -> str:
    return f"mutation-{uuid.uuid4().hex[:8]}"


def creation(*names: str, partitions: int = 1, validate_only: bool = False) -> CreateTopicsRequest:
    return CreateTopicsRequest(
        topics=[CreatableTopic(name, partitions, 1) for name in names],
        timeout_ms=20_000,
        validate_only=validate_only,
    )


def growth(name: str, count: int, *, validate_only: bool = False) -> CreatePartitionsRequest:
    topics = [CreatePartitionsTopic(name, count, None)]
    return CreatePartitionsRequest(topics, 20_000, validate_only)


def deletion(name: str) -> Callable[[int], DeleteTopicsRequest]:
    def request(version: int) -> DeleteTopicsRequest:
        if version >= 6:
            return DeleteTopicsRequest(topics=[DeleteTopicState(name)], timeout_ms=20_000)
        return DeleteTopicsRequest(topic_names=[name], timeout_ms=20_000)

    return request


def set_rate(pair: Pair, rate: float | None) -> None:
    entry = AlterClientQuotasRequestEntryData(
        [AlterClientQuotasRequestEntityData("client-id", CLIENT_ID)],
        [OpData("controller_mutation_rate", rate or 0.0, rate is None)],
    )
    pair.compare(AlterClientQuotasRequest([entry], False), [1])


def make(pair: Pair, name: str) -> tuple[int, ...]:
    """Makes a topic of one partition in both; their error codes."""
    responses = pair.responses(creation(name), 7)
    codes = []
    for response in responses:
        assert isinstance(response, CreateTopicsResponse)
        codes.append(response.topics[0].error_code)
    return tuple(codes)


@pytest.fixture(scope="module")
def topics(pair: Pair) -> Iterator[list[str]]:
    """Topics of both brokers; then the quota of about four partitions an hour is used up."""
    made = [new_name() for _ in range(12)]
    pair.compare(creation(*made), [7])
    set_rate(pair, 0.001)
    # The quota arrives by a notification, a moment after the response.
    for _ in range(1000):
        codes = make(pair, new_name())
        assert set(codes) <= {0, THROTTLED}
        if codes == (THROTTLED, THROTTLED):
            break
    else:
        raise AssertionError("the quota never arrived")
    yield made
    set_rate(pair, None)
    for _ in range(1000):
        if make(pair, new_name()) == (0, 0):
            break
    else:
        raise AssertionError("the quota never went")


def throttled(pair: Pair, request: Message | Callable[[int], Message], version: int) -> bool:
    """Whether both, or neither, throttled the client; their responses are compared, too."""
    ((kafka, ottla),) = pair.compare(request, [version])
    # Every response here has the field; that of a message in general is not known.
    throttled = {getattr(response, "throttle_time_ms", 0) > 0 for response in (kafka, ottla)}
    assert len(throttled) == 1
    return throttled == {True}


@pytest.mark.parametrize("version", range(2, API[19].max_version + 1))
def test_create_topics(pair: Pair, topics: list[str], version: int) -> None:
    assert throttled(pair, creation(new_name(), new_name(), partitions=3), version)
    assert not throttled(pair, creation(new_name(), validate_only=True), version)
    assert not throttled(pair, creation(topics[0]), version)  # it exists
    assert not throttled(pair, creation("bad name"), version)
    assert throttled(pair, creation("bad name", topics[0], new_name()), version)


@pytest.mark.parametrize("version", range(API[37].max_version + 1))
def test_create_partitions(pair: Pair, topics: list[str], version: int) -> None:
    assert throttled(pair, growth(topics[version], 3), version)
    assert not throttled(pair, growth(topics[version], 9, validate_only=True), version)
    assert not throttled(pair, growth(topics[version], 1), version)
    assert not throttled(pair, growth(new_name(), 2), version)


@pytest.mark.parametrize("version", range(1, API[20].max_version + 1))
def test_delete_topics(pair: Pair, topics: list[str], version: int) -> None:
    assert throttled(pair, deletion(topics[4 + version]), version)
    assert not throttled(pair, deletion(new_name()), version)
