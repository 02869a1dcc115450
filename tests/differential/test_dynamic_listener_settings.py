"""Settings of an open listener at run time, beside Apache Kafka."""

from __future__ import annotations

import pytest

from ottla.protocol.messages.incremental_alter_configs import (
    AlterableConfig,
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResponse,
)
from tests.differential.guarded import Both
from tests.doubles.sasl_talk import SaslTalk
from tests.doubles.wire import Wire

BROKER = 4
INVALID = 42


def alter(bootstrap: str, name: str, value: str, operation: int = 0) -> tuple[int, str]:
    resource = AlterConfigsResource(BROKER, "0", [AlterableConfig(name, operation, value)])
    with Wire(bootstrap) as wire:
        response = wire.ask(IncrementalAlterConfigsRequest([resource], False), 1)
    assert isinstance(response, IncrementalAlterConfigsResponse)
    row = response.responses[0]
    return row.error_code, row.error_message or ""


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        (
            "ssl.keystore.location",
            "/x",
            "These security configs can be dynamically updated only per-listener using the "
            "listener prefix",
        ),
        ("broker.id", "7", "Cannot update these configs dynamically"),
    ],
)
def test_what_does_not_change_at_run_time(both: Both, name: str, value: str, words: str) -> None:
    for bootstrap in (both.open.kafka, both.open.ottla):
        code, message = alter(bootstrap, name, value)
        assert code == INVALID, message
        assert words in message


def test_new_connections_get_what_waits_for_a_restart_in_kafka(both: Both) -> None:
    """Kafka takes it, describes it and does not use it: its check of existing listeners compares
    names without the prefix."""
    name, value = "listener.name.clients.sasl.enabled.mechanisms", "PLAIN"
    before = mechanisms(both.guarded.kafka)
    for bootstrap in (both.open.kafka, both.open.ottla):
        assert alter(bootstrap, name, value) == (0, "")
    assert mechanisms(both.guarded.kafka) == before
    assert mechanisms(both.guarded.ottla) == ["PLAIN"]
    for bootstrap in (both.open.kafka, both.open.ottla):
        assert alter(bootstrap, name, "", 1) == (0, "")
    assert mechanisms(both.guarded.ottla) == before


def mechanisms(bootstrap: str) -> list[str]:
    talk = SaslTalk(bootstrap)
    with talk.wire:
        return sorted(talk.handshake("NONE").mechanisms)


@pytest.mark.parametrize("value", ["7", "8"])
def test_a_limit_of_a_listener(both: Both, value: str) -> None:
    name = "listener.name.clients.max.connections"
    for bootstrap in (both.open.kafka, both.open.ottla):
        assert alter(bootstrap, name, value) == (0, "")
        assert alter(bootstrap, name, "", 1) == (0, "")
