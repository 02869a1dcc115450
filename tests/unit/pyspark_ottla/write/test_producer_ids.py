"""Idempotent producers that are kept from task to task."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages.init_producer_id import InitProducerIdRequest, InitProducerIdResponse
from ottla.protocol.topics import TopicPartition
from pyspark_ottla.cluster.cluster import KafkaCluster
from pyspark_ottla.errors import ConnectorError
from pyspark_ottla.options.client_options import ClientOptions, parse_client_options
from pyspark_ottla.write import producer_ids
from pyspark_ottla.write.producer_ids import kept_producer
from tests.doubles.scripted_client import ScriptedClient

PLACE = TopicPartition("t", 0)


@pytest.fixture(autouse=True)
def nothing_kept() -> Iterator[None]:
    producer_ids._idle.clear()
    yield
    producer_ids._idle.clear()


def options(bootstrap: str = "b:1") -> ClientOptions:
    return parse_client_options({"kafka.bootstrap.servers": bootstrap}, writes=True)


def cluster(code: int = 0) -> tuple[ScriptedClient, KafkaCluster]:
    client = ScriptedClient({"t": 1})
    client.response(
        InitProducerIdRequest,
        lambda _: InitProducerIdResponse(error_code=code, producer_id=len(client.sent)),
    )
    return client, KafkaCluster(client.as_client, options())


def test_tasks_share_a_producer_id_and_its_sequence_numbers() -> None:
    client, brokers = cluster()
    for expected in range(50):
        with kept_producer(brokers, options()) as (identity, sequences):
            assert sequences.get(PLACE, 0) == expected
            sequences[PLACE] = expected + 1
    assert (identity.producer_id, len(client.sent)) == (1, 1)


def test_a_broker_that_has_no_ids_yet_gets_another_request() -> None:
    client, brokers = cluster()
    codes = [ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, ErrorCode.COORDINATOR_NOT_AVAILABLE, 0]
    client.response(
        InitProducerIdRequest,
        lambda _: InitProducerIdResponse(error_code=codes.pop(0), producer_id=7),
    )
    with kept_producer(brokers, options()) as (identity, _):
        assert identity.producer_id == 7


def test_two_tasks_at_a_time_have_two() -> None:
    _, brokers = cluster()
    with (
        kept_producer(brokers, options()) as (one, _),
        kept_producer(brokers, options()) as (other, _),
    ):
        assert one.producer_id != other.producer_id


def test_other_brokers_and_other_processes_have_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    client, brokers = cluster()
    with kept_producer(brokers, options()):
        pass
    with kept_producer(brokers, options("c:1")):
        pass
    monkeypatch.setattr(producer_ids.os, "getpid", lambda: -1)
    with kept_producer(brokers, options()):
        pass
    assert len(client.sent) == 3


def test_a_producer_that_failed_is_not_used_again() -> None:
    _, brokers = cluster()
    with pytest.raises(RuntimeError), kept_producer(brokers, options()):
        raise RuntimeError
    with kept_producer(brokers, options()) as (identity, sequences):
        assert (identity.producer_id, sequences) == (2, {})


def test_a_refused_producer_id() -> None:
    _, brokers = cluster(ErrorCode.CLUSTER_AUTHORIZATION_FAILED)
    with (
        pytest.raises(ConnectorError, match="NOT_AUTHORIZED"),
        kept_producer(brokers, options()),
    ):
        pass
