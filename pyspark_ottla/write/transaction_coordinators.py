"""The coordinators of many transactional ids, found with few requests (KIP-699)."""

from __future__ import annotations

from collections.abc import Sequence

from ottla.protocol.client.cluster import Address
from ottla.protocol.client.errors import UnsupportedApiError
from ottla.protocol.client.operations import TRANSACTION, Versions
from ottla.protocol.errors import RETRIABLE, ErrorCode
from ottla.protocol.message import Message
from ottla.protocol.messages.find_coordinator import FindCoordinatorRequest, FindCoordinatorResponse
from pyspark_ottla.cluster.client_errors import refused
from pyspark_ottla.cluster.cluster import KafkaCluster

# Far below the largest request that brokers take.
KEYS_MAX = 1000


def find_coordinators(cluster: KafkaCluster, transactional_ids: Sequence[str]) -> None:
    """Looks up those that the client does not know; raises ConnectorError if there is none.

    Does nothing with brokers before Kafka 3.0, where the client looks each one up when it needs it.
    """
    state = cluster.client.state
    deadline = cluster.deadline()
    left = [key for key in transactional_ids if state.coordinator(key, TRANSACTION) is None]
    what = "Finding the coordinators of transactions"
    while left:
        response = _ask(cluster, what, left[:KEYS_MAX], deadline)
        if response is None:
            return
        failed: list[tuple[int, str]] = []
        for row in response.coordinators:
            if row.error_code == ErrorCode.NONE:
                state.set_coordinator(
                    row.key, TRANSACTION, row.node_id, Address(row.host, row.port)
                )
            else:
                failed.append((row.error_code, row.key))
        final = [(code, key) for code, key in failed if code not in RETRIABLE]
        if final or (failed and not cluster.wait(deadline)):
            code, key = (final or failed)[0]
            raise refused(f"Finding the coordinator of the transactional id {key}", code)
        left = [key for key in left if state.coordinator(key, TRANSACTION) is None]


def _ask(
    cluster: KafkaCluster, what: str, keys: list[str], deadline: float
) -> FindCoordinatorResponse | None:
    """None from brokers that take one key a request only."""
    request = FindCoordinatorRequest(key_type=TRANSACTION, coordinator_keys=keys)

    def call(timeout_ms: int) -> Message | None:
        try:
            return cluster.client.call_once(request, timeout_ms=timeout_ms, versions=Versions(4))
        except UnsupportedApiError:
            return None

    response = cluster.call_with_retries(what, call, deadline)
    assert response is None or isinstance(response, FindCoordinatorResponse)
    return response
