"""No request of a client without rights holds the event loop, whatever it is made of."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import pytest

from ottla.broker.requests import bulk_requests
from ottla.broker.requests.request_parts import MAX_UNDIVIDED_ELEMENTS
from ottla.broker.testing.embedded import Broker
from ottla.protocol.headers import encode_request
from ottla.protocol.messages.produce import ProduceRequest, TopicProduceData
from ottla.protocol.registry import API, ApiKey
from tests.doubles.eventually import eventually
from tests.hostile.malicious_requests import Shape, header, shapes
from tests.hostile.raw_client import ask
from tests.hostile.turns import TurnMeter, measured_broker

# Far more than are handled at once, and few enough for a short test.
ELEMENTS = 1500
# About 15 ms of computing; see `tests.hostile.turns`.
MOST_CALLS = 150_000
# The client is anonymous and has no ACL.
AUTHORIZER = {
    "authorizer_class_name": "kafka.security.authorizer.AclAuthorizer",
    "super_users": "User:admin",
}


@pytest.fixture(scope="module")
def measured() -> Iterator[tuple[Broker, TurnMeter]]:
    with pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.setattr(bulk_requests, "PAUSE_SECONDS", 0.0)
        with measured_broker(monkeypatch, **AUTHORIZER) as found:
            found[0].create_topic("known")
            yield found


def send_all(broker: Broker, meter: TurnMeter, found: Iterable[Shape]) -> list[str]:
    """Sends each request; returns those that take too long."""
    wrong = []
    for shape in found:
        meter.reset()
        ask(broker_port(broker), shape.frame)
        if meter.most_calls > MOST_CALLS:
            wrong.append(f"{shape.api} {shape.version} {shape.name}: {meter.most_calls} calls")
    return wrong


def broker_port(broker: Broker) -> int:
    return int(broker.bootstrap.rpartition(":")[2])


def chosen(key: int, version: int, *, all_kinds: bool) -> Iterator[Shape]:
    """The requests of one version; `make hostile` sends those of all versions, and longer ones."""
    for shape in shapes(API[key], version, ELEMENTS):
        kind = shape.name.rpartition(" ")[2]
        if kind == "distinct" or (all_kinds and kind in ("nested", "tags")):
            yield shape


@pytest.mark.parametrize("key", sorted(API), ids=lambda key: API[key].name)
def test_many_elements_do_not_hold_the_loop(measured: tuple[Broker, TurnMeter], key: int) -> None:
    broker, meter = measured
    route = broker.server.parts.request_channel.routes.get(key)
    if route is None:
        assert ask(broker_port(broker), key.to_bytes(2) + bytes(8)) == -1
        return
    found = [*chosen(key, route.max_version, all_kinds=True)]
    if route.min_version != route.max_version:
        found += chosen(key, route.min_version, all_kinds=False)
    assert not send_all(broker, meter, found)
    channel = broker.server.parts.request_channel
    eventually(lambda: channel.in_progress_bytes == 0, "the memory of a request is not released")


def test_a_million_equal_names_are_refused_before_they_are_decoded(
    measured: tuple[Broker, TurnMeter],
) -> None:
    broker, meter = measured
    count = 1_000_000
    frame = header(API[ApiKey.METADATA], 1) + count.to_bytes(4) + bytes(2 * count)
    meter.reset()
    assert ask(broker_port(broker), frame) == -1
    assert meter.most_calls < 10_000


@pytest.mark.parametrize(
    ("api_key", "version"), [(ApiKey.METADATA, 12), (ApiKey.DESCRIBE_TOPIC_PARTITIONS, 0)]
)
def test_the_most_elements_are_handled_in_slices(
    measured: tuple[Broker, TurnMeter], api_key: int, version: int
) -> None:
    broker, meter = measured
    (shape,) = [
        each for each in shapes(API[api_key], version, 20_000) if each.name == "topics distinct"
    ]
    meter.reset()
    assert ask(broker_port(broker), shape.frame) > len(shape.frame)
    assert meter.most_calls < MOST_CALLS


def test_the_most_elements_that_are_not_divided_take_one_turn(
    measured: tuple[Broker, TurnMeter],
) -> None:
    """Produce has the dearest elements: each topic is denied, and logged or counted."""
    broker, meter = measured
    topics = [TopicProduceData(f"{number:06}") for number in range(MAX_UNDIVIDED_ELEMENTS)]
    request = ProduceRequest(acks=1, timeout_ms=1_000, topic_data=topics)
    frame = encode_request(1, None, request, 9)[4:]
    meter.reset()
    assert ask(broker_port(broker), frame) > len(frame) // 2
    assert meter.most_calls < MOST_CALLS
