"""DescribeClientQuotas and AlterClientQuotas: where quotas are kept, found and refused."""

from __future__ import annotations

from typing import cast

import pytest

from ottla.broker.config.dynamic_config import DynamicConfig
from ottla.broker.handlers.admin.client_quotas import QuotaAdminHandlers
from ottla.broker.requests.error_responses import error_response
from ottla.broker.requests.request_channel import RequestContext
from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.protocol.messages.alter_client_quotas import (
    AlterClientQuotasRequest,
    AlterClientQuotasRequestEntityData,
    AlterClientQuotasRequestEntryData,
    AlterClientQuotasResponse,
    OpData,
)
from ottla.protocol.messages.describe_client_quotas import (
    ComponentData,
    DescribeClientQuotasRequest,
    DescribeClientQuotasResponse,
)
from tests.doubles.memory_entities import MemoryEntities
from tests.doubles.request_context import Asked, FakeContext

PRODUCE, REQUEST = "producer_byte_rate", "request_percentage"
EXACT, DEFAULT, ANY = 0, 1, 2

Entity = dict[str, str | None]


class Scene:
    def __init__(self) -> None:
        self.entities = MemoryEntities()
        self.handlers = QuotaAdminHandlers(cast(DynamicConfig, self.entities))

    def alter(
        self, entity: Entity, *changes: tuple[str, float | None], validate_only: bool = False
    ) -> int:
        parts = [AlterClientQuotasRequestEntityData(*part) for part in entity.items()]
        operations = [OpData(key, value or 0.0, value is None) for key, value in changes]
        entry = AlterClientQuotasRequestEntryData(parts, operations)
        request = AlterClientQuotasRequest([entry], validate_only)
        response = Asked(self.handlers.alter, request, 1).response(AlterClientQuotasResponse)
        (row,) = response.entries
        assert {part.entity_type: part.entity_name for part in row.entity} == entity
        return row.error_code

    def found(
        self, *components: tuple[str, int, str | None], strict: bool = False
    ) -> list[tuple[Entity, dict[str, float]]]:
        request = DescribeClientQuotasRequest([ComponentData(*each) for each in components], strict)
        response = Asked(self.handlers.describe, request, 1).response(DescribeClientQuotasResponse)
        assert response.error_code == 0
        assert response.entries is not None
        return [
            (
                {part.entity_type: part.entity_name for part in row.entity},
                {value.key: value.value for value in row.values},
            )
            for row in response.entries
        ]


@pytest.fixture
def scene() -> Scene:
    return Scene()


@pytest.mark.parametrize(
    ("entity", "path"),
    [
        ({"user": "CN=alice"}, "users/CN%3Dalice"),
        ({"user": None}, "users/<default>"),
        ({"user": "u", "client-id": "my app"}, "users/u/clients/my%20app"),
        ({"client-id": None, "user": None}, "users/<default>/clients/<default>"),
        ({"client-id": "c"}, "clients/c"),
        ({"client-id": "<default>"}, "clients/%3Cdefault%3E"),
        ({"client-id": None}, "clients/<default>"),
    ],
)
def test_an_entity_has_its_node(scene: Scene, entity: Entity, path: str) -> None:
    assert scene.alter(entity, (PRODUCE, 1024.0), (REQUEST, 12.5)) == 0
    assert scene.entities.nodes == {path: {PRODUCE: "1024", REQUEST: "12.5"}}
    assert scene.found() == [(entity, {PRODUCE: 1024.0, REQUEST: 12.5})]
    assert scene.alter(entity, (PRODUCE, None)) == 0
    assert scene.found() == [(entity, {REQUEST: 12.5})]


def test_addresses(scene: Scene) -> None:
    assert scene.alter({"ip": "10.0.0.1"}, ("connection_creation_rate", 5.0)) == 0
    assert scene.alter({"ip": "10.0.0.9"}, ("connection_creation_rate", 0.0)) == 0
    # Nobody could connect to take it away.
    locking = ("connection_creation_rate", 0.0)
    assert scene.alter({"ip": None}, locking) == ErrorCode.INVALID_REQUEST
    assert scene.alter({"ip": None}, ("connection_creation_rate", 1.0)) == 0
    assert scene.entities.nodes == {
        "ips/10.0.0.1": {"connection_creation_rate": "5"},
        "ips/10.0.0.9": {"connection_creation_rate": "0"},
        "ips/<default>": {"connection_creation_rate": "1"},
    }
    assert scene.found(("ip", DEFAULT, None)) == [({"ip": None}, {"connection_creation_rate": 1})]
    assert len(scene.found(("ip", ANY, None), strict=True)) == 3


def test_credentials_of_a_user_are_no_quotas_and_stay(scene: Scene) -> None:
    scene.entities.nodes["users/u"] = {"SCRAM-SHA-256": "salt=..."}
    assert scene.found() == []
    assert scene.alter({"user": "u"}, (PRODUCE, 1.0)) == 0
    assert scene.found() == [({"user": "u"}, {PRODUCE: 1.0})]
    assert scene.alter({"user": "u"}, (PRODUCE, None)) == 0
    assert scene.entities.nodes["users/u"] == {"SCRAM-SHA-256": "salt=..."}


def test_validation_alone_changes_nothing(scene: Scene) -> None:
    assert scene.alter({"user": "u"}, (PRODUCE, 1.0), validate_only=True) == 0
    assert scene.alter({"user": "u"}, (PRODUCE, 1.5), validate_only=True) != 0
    assert scene.entities.nodes == {}


@pytest.mark.parametrize(
    "change",
    [
        (PRODUCE, 1.5),
        (PRODUCE, -1.0),
        (PRODUCE, float("inf")),
        (REQUEST, float("nan")),
        ("SCRAM-SHA-256", 1.0),
        ("connection_creation_rate", 1.0),
    ],
)
def test_bad_changes(scene: Scene, change: tuple[str, float]) -> None:
    assert scene.alter({"user": "u"}, (REQUEST, 1.0), change) == ErrorCode.INVALID_REQUEST
    assert scene.entities.nodes == {}


def test_an_infinite_quota_is_written_as_java_reads_it(scene: Scene) -> None:
    assert scene.alter({"user": "u"}, (REQUEST, float("inf"))) == 0
    assert scene.entities.nodes == {"users/u": {REQUEST: "Infinity"}}
    assert scene.found() == [({"user": "u"}, {REQUEST: float("inf")})]


@pytest.mark.parametrize(
    "entity",
    [{}, {"user": ""}, {"group": "g"}, {"user": "u", "ip": None}, {"ip": "host"}, {"ip": "::1"}],
)
def test_bad_entities(scene: Scene, entity: Entity) -> None:
    assert scene.alter(entity, ("no_such_quota", None)) == ErrorCode.INVALID_REQUEST
    assert scene.entities.nodes == {}


def test_strict_leaves_out_entities_with_more_parts(scene: Scene) -> None:
    for entity in ({"user": "u"}, {"user": "u", "client-id": "c"}, {"client-id": "c"}):
        scene.alter(dict(entity), (PRODUCE, 1.0))
    user = ("user", EXACT, "u")
    assert len(scene.found(user)) == 2
    assert scene.found(user, strict=True) == [({"user": "u"}, {PRODUCE: 1.0})]
    assert len(scene.found(user, ("client-id", ANY, None), strict=True)) == 1
    assert scene.found(strict=True) == []


@pytest.mark.parametrize(
    ("components", "code"),
    [
        ([("user", EXACT, "a"), ("user", ANY, None)], ErrorCode.INVALID_REQUEST),
        ([("ip", ANY, None), ("user", ANY, None)], ErrorCode.INVALID_REQUEST),
        ([("", ANY, None)], ErrorCode.INVALID_REQUEST),
        ([("user", 3, None)], ErrorCode.INVALID_REQUEST),
        ([("user", EXACT, None)], ErrorCode.INVALID_REQUEST),
        ([("group", ANY, None)], ErrorCode.UNSUPPORTED_VERSION),
    ],
)
def test_bad_filters(
    scene: Scene, components: list[tuple[str, int, str | None]], code: int
) -> None:
    with pytest.raises(KafkaError) as raised:
        scene.found(*components)
    assert raised.value.code == code


def test_a_response_that_failed_as_a_whole() -> None:
    error = KafkaError(ErrorCode.INVALID_REQUEST, "no")
    context = FakeContext(DescribeClientQuotasRequest.API_KEY, 1)
    context.request = DescribeClientQuotasRequest()  # type: ignore[attr-defined]  # a double
    response = error_response(cast(RequestContext, context), error)
    assert isinstance(response, DescribeClientQuotasResponse)
    assert (response.error_code, response.error_message, response.entries) == (42, "no", None)
    part = AlterClientQuotasRequestEntityData("user", None)
    context = FakeContext(AlterClientQuotasRequest.API_KEY, 1)
    context.request = AlterClientQuotasRequest(  # type: ignore[attr-defined]  # a double
        [AlterClientQuotasRequestEntryData([part], [])]
    )
    rows = error_response(cast(RequestContext, context), error)
    assert isinstance(rows, AlterClientQuotasResponse)
    assert [(row.error_code, row.entity[0].entity_name) for row in rows.entries] == [(42, None)]
