"""Finding the coordinators of many transactions."""

from __future__ import annotations

import pytest

from ottla.protocol.client.errors import UnsupportedApiError
from ottla.protocol.client.operations import TRANSACTION
from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages.find_coordinator import FindCoordinatorRequest
from pyspark_ottla.cluster.cluster import KafkaCluster
from pyspark_ottla.errors import ConnectorError
from pyspark_ottla.options.client_options import parse_client_options
from pyspark_ottla.write.transaction_coordinators import KEYS_MAX, find_coordinators
from tests.doubles.scripted_coordinator import ScriptedCoordinator

MANY = [f"id-{number}" for number in range(KEYS_MAX + 1)]


def cluster(coordinator: ScriptedCoordinator) -> KafkaCluster:
    given = {"kafka.bootstrap.servers": "b:1", "kafka.default.api.timeout.ms": "300"}
    return KafkaCluster(coordinator.as_client, parse_client_options(given, writes=True))


def test_many_ids_take_few_requests_and_known_ones_none() -> None:
    coordinator = ScriptedCoordinator()
    for _ in range(2):
        find_coordinators(cluster(coordinator), MANY)
        assert coordinator.kinds() == ["FindCoordinator"] * 2
    assert all(coordinator.state.coordinator(key, TRANSACTION) == 1 for key in MANY)


def test_what_is_retried_and_what_is_final() -> None:
    coordinator = ScriptedCoordinator()
    coordinator.codes[FindCoordinatorRequest] = [ErrorCode.COORDINATOR_NOT_AVAILABLE]
    find_coordinators(cluster(coordinator), ["a"])
    assert coordinator.kinds() == ["FindCoordinator"] * 2
    coordinator.codes[FindCoordinatorRequest] = [ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED]
    with pytest.raises(ConnectorError, match="NOT_AUTHORIZED"):
        find_coordinators(cluster(coordinator), ["b"])


def test_older_brokers_take_one_id_a_request() -> None:
    coordinator = ScriptedCoordinator()
    coordinator.response(FindCoordinatorRequest, lambda _: UnsupportedApiError("only 0 to 3"))
    find_coordinators(cluster(coordinator), ["a"])
    assert coordinator.state.coordinator("a", TRANSACTION) is None
