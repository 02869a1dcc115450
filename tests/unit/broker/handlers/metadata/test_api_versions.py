from __future__ import annotations

import pytest

from ottla.broker.cluster.features import FeatureCache
from ottla.broker.handlers.metadata.api_versions import ApiVersionsHandler
from ottla.broker.requests.request_channel import HandlerEntry
from ottla.controller.tree.embedded_store import EmbeddedStore
from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages.api_versions import ApiVersionsRequest, ApiVersionsResponse
from tests.doubles.controller_runtime import ManualRuntime
from tests.doubles.request_context import Asked


def _no_handler(*_: object) -> None:
    raise AssertionError("never called")


FEATURES = FeatureCache(EmbeddedStore(), ManualRuntime(), {})
HANDLER = ApiVersionsHandler(
    [
        HandlerEntry(18, "ApiVersions", 0, 4, _no_handler),
        HandlerEntry(1, "Fetch", 0, 17, _no_handler),
    ],
    FEATURES,
)


def ask(version: int, name: str = "client", software_version: str = "1.0") -> ApiVersionsResponse:
    request = ApiVersionsRequest(name, software_version) if version >= 3 else ApiVersionsRequest()
    return Asked(HANDLER.handle, request, version).response(ApiVersionsResponse)


@pytest.mark.parametrize("version", range(5))
def test_the_table_is_shown_in_order(version: int) -> None:
    response = ask(version)
    assert response.error_code == 0
    rows = [(row.api_key, row.min_version, row.max_version) for row in response.api_keys]
    assert rows == [(1, 0, 17), (18, 0, 4)]


def test_what_the_cluster_does_not_offer_is_not_listed() -> None:
    limits: dict[int, int | None] = {}
    entries = [HandlerEntry(key, "API", 0, 2, _no_handler) for key in (1, 2, 3)]
    handler = ApiVersionsHandler(entries, FEATURES, lambda: limits)

    def listed() -> list[tuple[int, int]]:
        return [(row.api_key, row.max_version) for row in handler.response().api_keys]

    assert listed() == [(1, 2), (2, 2), (3, 2)]
    limits.update({1: None, 2: 0, 3: 9})
    assert listed() == [(2, 0), (3, 2)]
    limits.clear()
    assert listed() == [(1, 2), (2, 2), (3, 2)]


@pytest.mark.parametrize("version", range(5))
def test_features_are_shown_from_version_3_on(
    version: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(FEATURES, "supported", {"f": (1, 3)})
    monkeypatch.setattr(FEATURES, "finalized", {"f": 2})
    monkeypatch.setattr(FEATURES, "epoch", 7)
    response = ask(version)
    supported = [
        (each.name, each.min_version, each.max_version) for each in response.supported_features
    ]
    finalized = [
        (each.name, each.min_version_level, each.max_version_level)
        for each in response.finalized_features
    ]
    if version < 3:
        assert (supported, finalized, response.finalized_features_epoch) == ([], [], -1)
    else:
        assert (supported, finalized) == ([("f", 1, 3)], [("f", 2, 2)])
        assert response.finalized_features_epoch == 7


@pytest.mark.parametrize("name", ["", "a b", "-a", "a-", "a\n", 'a"', "ä"])
def test_software_names_are_checked(name: str) -> None:
    for version in (3, 4):
        response = ask(version, name)
        assert (response.error_code, response.api_keys) == (ErrorCode.INVALID_REQUEST, [])
        assert ask(version, "a", name).error_code == ErrorCode.INVALID_REQUEST


@pytest.mark.parametrize("name", ["a", "apache-kafka-java", "a.b-c1", "1"])
def test_software_names_that_are_good(name: str) -> None:
    assert ask(4, name, name).error_code == 0


def test_a_client_is_known_by_its_software_from_then_on() -> None:
    asked = Asked(HANDLER.handle, ApiVersionsRequest("apache-kafka-java", "3.9.1"), 4)
    connection = asked.context.connection
    assert connection.client_software_name == "apache-kafka-java"
    assert connection.client_software_version == "3.9.1"


def test_what_is_kept_of_a_name_is_bounded() -> None:
    """It is sent before authentication, and is a label of a metric."""
    asked = Asked(HANDLER.handle, ApiVersionsRequest("a" * 32_000, "1" * 32_000), 4)
    connection = asked.context.connection
    assert len(connection.client_software_name) == 100
    assert len(connection.client_software_version) == 100


@pytest.mark.parametrize("version", [3, 4])
def test_a_feature_that_may_be_off_is_shown_from_version_4_on(
    version: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Clients up to version 3 fail for the level 0 (KAFKA-17011), as in Kafka 4.3."""
    monkeypatch.setattr(FEATURES, "supported", {"transaction.version": (1, 2)})
    monkeypatch.setattr(FEATURES, "finalized", {"transaction.version": 2})
    response = ask(version)
    supported = [(each.min_version, each.max_version) for each in response.supported_features]
    assert supported == ([] if version == 3 else [(0, 2)])
    (finalized,) = response.finalized_features
    assert (finalized.name, finalized.max_version_level) == ("transaction.version", 2)
