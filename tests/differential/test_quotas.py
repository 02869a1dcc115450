"""Client quotas by API: what may be set, where, how it is found again, and what is refused."""

import uuid
from collections.abc import Iterator

import pytest

from ottla.protocol.message import Message
from ottla.protocol.messages.alter_client_quotas import (
    AlterClientQuotasRequest,
    AlterClientQuotasRequestEntityData,
    AlterClientQuotasRequestEntryData,
    AlterClientQuotasResponse,
    OpData,
)
from ottla.protocol.messages.create_topics import CreatableTopic, CreateTopicsRequest
from ottla.protocol.messages.describe_client_quotas import (
    ComponentData,
    DescribeClientQuotasRequest,
    DescribeClientQuotasResponse,
)
from ottla.protocol.messages.fetch import FetchResponse
from ottla.protocol.records.builder import build_batch
from tests.differential.asking import Pair
from tests.differential.test_append_settings import fetch, produce
from tests.doubles.eventually import eventually

pytestmark = pytest.mark.kafka

EXACT, DEFAULT, ANY = 0, 1, 2
PRODUCE, FETCH = "producer_byte_rate", "consumer_byte_rate"
REQUEST, MUTATION = "request_percentage", "controller_mutation_rate"
CONNECTIONS = "connection_creation_rate"

Entity = tuple[tuple[str, str | None], ...]


def alteration(
    entity: Entity, *changes: tuple[str, float | None], validate_only: bool = False
) -> AlterClientQuotasRequest:
    """A request for one entity; a value of None takes the quota away."""
    entry = AlterClientQuotasRequestEntryData(
        [AlterClientQuotasRequestEntityData(kind, name) for kind, name in entity],
        [OpData(key, 0.0 if value is None else value, value is None) for key, value in changes],
    )
    return AlterClientQuotasRequest([entry], validate_only)


def question(*components: tuple[str, int, str | None], strict: bool) -> DescribeClientQuotasRequest:
    return DescribeClientQuotasRequest([ComponentData(*each) for each in components], strict)


def comparable(response: object) -> object:
    """A response without what may rightly differ: words, and the order of what is a set."""
    if isinstance(response, AlterClientQuotasResponse):
        return [
            (row.error_code, sorted((part.entity_type, part.entity_name) for part in row.entity))
            for row in response.entries
        ]
    assert isinstance(response, DescribeClientQuotasResponse)
    if response.entries is None:
        return response.error_code, None
    rows = [
        (
            sorted((part.entity_type, part.entity_name or "") for part in row.entity),
            [part.entity_name is None for part in row.entity].count(True),
            sorted((value.key, value.value) for value in row.values),
        )
        for row in response.entries
    ]
    return response.error_code, sorted(rows)


def same(pair: Pair, request: Message, version: int) -> object:
    """Asks both and compares; gives what they agree on."""
    kafka, ottla = pair.responses(request, version)
    assert comparable(ottla) == comparable(kafka)
    return comparable(ottla)


USER: Entity = (("user", "CN=alice, O=a/b*%"),)
ENTITIES: tuple[Entity, ...] = (
    USER,
    (("user", "bob"),),
    (("user", None),),
    (("user", "bob"), ("client-id", "my app")),
    (("client-id", "my app"), ("user", None)),
    (("user", "bob"), ("client-id", None)),
    (("user", None), ("client-id", None)),
    (("client-id", "my app"),),
    (("client-id", "<default>"),),
    (("client-id", None),),
    (("ip", "10.1.2.3"),),
    (("ip", None),),
)


@pytest.fixture
def some_quotas(pair: Pair) -> Iterator[None]:
    """A quota at every kind of place; both brokers are left without any."""
    for number, entity in enumerate(ENTITIES):
        key = CONNECTIONS if entity[0][0] == "ip" else PRODUCE
        same(pair, alteration(entity, (key, 1000.0 + number)), 1)
    yield
    for entity in ENTITIES:
        key = CONNECTIONS if entity[0][0] == "ip" else PRODUCE
        same(pair, alteration(entity, (key, None)), 1)
    assert same(pair, question(strict=False), 1) == (0, [])


FILTERS: dict[str, list[tuple[str, int, str | None]]] = {
    "all": [],
    "a user": [("user", EXACT, "bob")],
    "a user with an odd name": [("user", EXACT, USER[0][1])],
    "the default user": [("user", DEFAULT, None)],
    "users": [("user", ANY, None)],
    "a client id": [("client-id", EXACT, "my app")],
    "the default client id": [("client-id", DEFAULT, None)],
    "client ids": [("client-id", ANY, None)],
    "a pair": [("user", EXACT, "bob"), ("client-id", EXACT, "my app")],
    "a user's client ids": [("user", EXACT, "bob"), ("client-id", ANY, None)],
    "a user's default client id": [("user", EXACT, "bob"), ("client-id", DEFAULT, None)],
    "pairs": [("client-id", ANY, None), ("user", ANY, None)],
    "an address": [("ip", EXACT, "10.1.2.3")],
    "the default address": [("ip", DEFAULT, None)],
    "addresses": [("ip", ANY, None)],
    "not there": [("user", EXACT, "absent")],
}


@pytest.mark.parametrize("strict", [False, True])
@pytest.mark.parametrize("version", [0, 1])
def test_filters(pair: Pair, some_quotas: None, version: int, strict: bool) -> None:
    for name, components in FILTERS.items():
        found = same(pair, question(*components, strict=strict), version)
        assert isinstance(found, tuple)
        assert found[0] == 0, name
        # Strictly nothing named is nothing found, and no user has the last one's name.
        assert bool(found[1]) == (name != "not there" and not (strict and name == "all")), name


# A match type that does not exist is left out: Kafka fails on it with UNKNOWN_SERVER_ERROR, we
# refuse it; so it is with an exact match of no name.
BAD_FILTERS: dict[str, list[tuple[str, int, str | None]]] = {
    "user twice": [("user", EXACT, "a"), ("user", EXACT, "b")],
    "client id twice": [("client-id", ANY, None), ("client-id", EXACT, "b")],
    "ip twice": [("ip", ANY, None), ("ip", ANY, None)],
    "no type": [("", EXACT, "a")],
    "unknown type": [("group", EXACT, "a")],
    "ip and user": [("ip", ANY, None), ("user", ANY, None)],
    "ip and client id": [("client-id", ANY, None), ("ip", ANY, None)],
}


@pytest.mark.parametrize("version", [0, 1])
@pytest.mark.parametrize("case", BAD_FILTERS)
def test_bad_filters(pair: Pair, case: str, version: int) -> None:
    found = same(pair, question(*BAD_FILTERS[case], strict=False), version)
    assert isinstance(found, tuple)
    assert found[0] != 0


BAD_ENTITIES: dict[str, Entity] = {
    "none": (),
    "empty user": (("user", ""),),
    "empty client id": (("client-id", ""),),
    "unknown type": (("group", "a"),),
    "unknown type beside a user": (("user", "a"), ("group", "a")),
    "ip and user": (("user", "a"), ("ip", "10.0.0.1")),
    "no address": (("ip", "10.0.0.300"),),
    "address of version 6": (("ip", "::1"),),
}


@pytest.mark.parametrize("version", [0, 1])
@pytest.mark.parametrize("case", BAD_ENTITIES)
def test_bad_entities(pair: Pair, case: str, version: int) -> None:
    entity = BAD_ENTITIES[case]
    key = CONNECTIONS if entity and entity[0][0] == "ip" else PRODUCE
    found = same(pair, alteration(entity, (key, 1.0)), version)
    assert isinstance(found, list)
    assert found[0][0] != 0
    assert same(pair, question(strict=False), 1) == (0, [])


CHANGES: dict[str, list[tuple[str, float | None]]] = {
    "all four": [(PRODUCE, 1.0), (FETCH, 2.0), (REQUEST, 12.5), (MUTATION, 0.25)],
    "zero": [(PRODUCE, 0.0)],
    "zero percent": [(REQUEST, 0.0)],
    "negative": [(FETCH, -1.0)],
    "negative rate": [(MUTATION, -1.0)],
    "a fraction of a byte": [(PRODUCE, 1.5)],
    "nearly whole": [(PRODUCE, 1.0000001)],
    "large": [(PRODUCE, 1e15)],
    "infinite bytes": [(PRODUCE, float("inf"))],
    "unknown": [("no_such_quota", 1.0)],
    "of addresses": [(CONNECTIONS, 1.0)],
    "unknown taken away": [("no_such_quota", None)],
    "not there taken away": [(PRODUCE, None)],
    "set twice": [(PRODUCE, 1.0), (PRODUCE, 2.0)],
    "set and taken away": [(PRODUCE, 1.0), (PRODUCE, None)],
    "good and bad": [(PRODUCE, 1.0), ("no_such_quota", 1.0)],
    "nothing": [],
}


@pytest.mark.parametrize("case", CHANGES)
@pytest.mark.parametrize("kind", ["user", "client-id"])
def test_changes(pair: Pair, kind: str, case: str) -> None:
    entity = ((kind, f"one-{uuid.uuid4().hex[:8]}"),)
    same(pair, alteration(entity, *CHANGES[case], validate_only=True), 1)
    assert same(pair, question(strict=False), 1) == (0, [])
    same(pair, alteration(entity, *CHANGES[case]), 0)
    same(pair, question(strict=False), 1)
    same(pair, alteration(entity, *((key, None) for key in (PRODUCE, FETCH, REQUEST, MUTATION))), 1)
    assert same(pair, question(strict=False), 1) == (0, [])


@pytest.mark.parametrize(
    "changes",
    [
        [(CONNECTIONS, 0.0)],
        [(CONNECTIONS, -1.0)],
        [(CONNECTIONS, 1.5)],
        [(CONNECTIONS, 3e9)],
        [(PRODUCE, 1.0)],
        [(CONNECTIONS, None)],
    ],
)
def test_changes_of_an_address(pair: Pair, changes: list[tuple[str, float | None]]) -> None:
    entity = (("ip", "10.9.8.7"),)
    same(pair, alteration(entity, *changes), 1)
    same(pair, question(strict=False), 1)
    same(pair, alteration(entity, (CONNECTIONS, None)), 1)


def test_the_last_of_a_type_and_one_row_an_entity(pair: Pair) -> None:
    twice = (("user", "first"), ("user", "last"))
    same(pair, alteration(twice, (PRODUCE, 3.0)), 1)
    same(pair, question(strict=False), 1)
    first, second = (alteration((("user", "last"),), (key, None)) for key in (PRODUCE, FETCH))
    rows = same(pair, AlterClientQuotasRequest([*first.entries, *second.entries], False), 1)
    assert rows == [(0, [("user", "last")])]
    assert same(pair, question(strict=False), 1) == (0, [])


def test_several_entities_in_one_request(pair: Pair) -> None:
    good, bad = alteration((("user", "u"),), (PRODUCE, 5.0)), alteration((), (PRODUCE, 5.0))
    both = AlterClientQuotasRequest([*good.entries, *bad.entries], False)
    kafka, ottla = pair.responses(both, 1)
    rows, expected = comparable(ottla), comparable(kafka)
    assert isinstance(rows, list)
    assert isinstance(expected, list)
    assert sorted(rows) == sorted(expected)
    same(pair, question(strict=False), 1)
    same(pair, alteration((("user", "u"),), (PRODUCE, None)), 1)


def test_a_fetch_over_the_request_quota_is_empty(pair: Pair) -> None:
    topic = f"requested-{uuid.uuid4().hex[:8]}"
    new = CreatableTopic(name=topic, num_partitions=1, replication_factor=1)
    pair.compare(CreateTopicsRequest(topics=[new], timeout_ms=10_000), [4])
    pair.compare(produce(topic, build_batch([(0, b"k", b"v", [])])), [7])
    entity = (("client-id", "wire"),)
    same(pair, alteration(entity, (REQUEST, 1e-6)), 1)

    def throttled() -> list[int] | None:
        """How many topics are in each response, once both brokers throttle."""
        responses = pair.responses(fetch(topic), 11)
        assert all(isinstance(each, FetchResponse) for each in responses)
        times = [each.throttle_time_ms for each in responses]  # type: ignore[union-attr]
        return [len(each.responses) for each in responses] if all(times) else None  # type: ignore[union-attr]

    try:
        assert eventually(throttled) == [0, 0]
    finally:
        same(pair, alteration(entity, (REQUEST, None)), 1)
