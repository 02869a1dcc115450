from __future__ import annotations

import pytest

from ottla.broker.config.definitions import (
    broker_settings,
    dynamic_only_settings,
    topic_settings,
)
from ottla.broker.config.documentation import (
    _texts,
    broker_documentation,
    topic_documentation,
)


def test_every_setting_has_a_text() -> None:
    brokers = {**broker_settings(), **dynamic_only_settings()}
    assert not [name for name in brokers if not broker_documentation(name)]
    assert not [name for name in topic_settings() if not topic_documentation(name)]


def test_no_text_is_left_over() -> None:
    known = {*broker_settings(), *dynamic_only_settings(), *topic_settings()}
    assert set(_texts()) <= known


@pytest.mark.parametrize("name", _texts())
def test_a_text_is_a_sentence(name: str) -> None:
    text = _texts()[name]
    assert text[0].isupper() or text.split()[0] in broker_settings() | topic_settings()
    assert text.endswith(".")
    assert "|" not in text  # it stands in a table


def test_listeners_share_the_text() -> None:
    text = broker_documentation("listener.name.clients.ssl.keystore.location")
    assert text == broker_documentation("ssl.keystore.location") is not None


def test_a_topic_setting_has_its_own_text_or_that_of_the_broker() -> None:
    assert topic_documentation("segment.bytes") == broker_documentation("log.segment.bytes")
    assert topic_documentation("retention.ms") != broker_documentation("log.retention.ms")


def test_unknown_names() -> None:
    assert broker_documentation("no.such.setting") is None
    assert topic_documentation("no.such.setting") is None
