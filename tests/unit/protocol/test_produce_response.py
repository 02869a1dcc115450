"""The usual response to Produce is what the encoder of all responses makes."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from ottla.protocol import produce_response
from ottla.protocol.headers import encode_response, encode_response_in_steps
from ottla.protocol.messages.produce import (
    BatchIndexAndErrorMessage,
    LeaderIdAndEpoch,
    NodeEndpoint,
    PartitionProduceResponse,
    ProduceResponse,
    TopicProduceResponse,
)
from ottla.protocol.produce_response import MAX_TEMPLATES, encode_produce_response
from ottla.protocol.registry import ApiKey
from ottla.protocol.steps import run_at_once

VERSIONS = range(3, ProduceResponse.MAX_VERSION + 1)


def usual(topic: str = "orders", index: int = 3) -> ProduceResponse:
    row = PartitionProduceResponse(index, 0, 1 << 40, 1_700_000_000_000, 17)
    return ProduceResponse([TopicProduceResponse(topic, [row])])


def by_steps(version: int, response: ProduceResponse) -> bytes:
    """As the encoder of all responses makes it."""
    parts = run_at_once(encode_response_in_steps(ApiKey.PRODUCE, version, 77, response))
    return b"".join(bytes(part) for part in parts)  # type: ignore[arg-type]


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("topic", ["orders", "a", "t" * 249, "a" * 127, "ü\x00\xff"])
@pytest.mark.parametrize("index", [0, 1, 2**31 - 1, -1])
def test_is_the_response(version: int, topic: str, index: int) -> None:
    response = usual(topic, index)
    wanted = by_steps(version, response)
    for _ in range(2):  # with the template made, and found
        assert encode_response(ApiKey.PRODUCE, version, 77, response) == [wanted]
        found = encode_produce_response(version, 77, response)
        assert found == (wanted if version >= 5 else None)


def _another_row(response: ProduceResponse) -> None:
    response.responses[0].partition_responses.append(PartitionProduceResponse(4))


def _another_topic(response: ProduceResponse) -> None:
    response.responses.append(TopicProduceResponse("other", [PartitionProduceResponse(4)]))


UNUSUAL: dict[str, Callable[[ProduceResponse], None]] = {
    "no topic": lambda response: response.responses.clear(),
    "no partition": lambda response: response.responses[0].partition_responses.clear(),
    "two partitions": _another_row,
    "two topics": _another_topic,
    "throttled": lambda response: setattr(response, "throttle_time_ms", 5),
    "endpoints": lambda response: setattr(response, "node_endpoints", [NodeEndpoint(1, "b", 9)]),
    "tagged": lambda response: setattr(response, "unknown_tagged_fields", {9: b"x"}),
    "topic tagged": lambda response: setattr(
        response.responses[0], "unknown_tagged_fields", {9: b"x"}
    ),
    **{
        name: (
            lambda response, name=name, value=value: setattr(  # type: ignore[misc]
                response.responses[0].partition_responses[0], name, value
            )
        )
        for name, value in (
            ("error_code", 3),
            ("error_message", "no"),
            ("record_errors", [BatchIndexAndErrorMessage(1, "bad")]),
            ("current_leader", LeaderIdAndEpoch(1, 2)),
            ("unknown_tagged_fields", {9: b"x"}),
        )
    },
}


@pytest.mark.parametrize("name", UNUSUAL)
def test_others_are_left_to_the_encoder_of_all(name: str) -> None:
    response = usual()
    UNUSUAL[name](response)
    assert encode_produce_response(12, 77, response) is None
    parts = encode_response(ApiKey.PRODUCE, 12, 77, response)
    assert b"".join(bytes(part) for part in parts) == by_steps(12, response)  # type: ignore[arg-type]


def test_templates_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(produce_response, "_templates", {})
    for number in range(MAX_TEMPLATES + 10):
        encode_produce_response(12, 77, usual(f"t{number}"))
    assert 0 < len(produce_response._templates) <= MAX_TEMPLATES
