from __future__ import annotations

import pytest

from ottla.broker.metrics.exposition import render
from ottla.broker.metrics.telemetry import exported as module
from ottla.broker.metrics.telemetry.exported import ExportedMetrics
from ottla.broker.metrics.telemetry.manager import ClientInstance
from ottla.broker.metrics.telemetry.otlp import Point

ONE = bytes(15) + b"\x07"


def client(instance_id: bytes = ONE, client_id: str = 'a"b') -> ClientInstance:
    who = {"client_id": client_id, "client_software_name": "s", "client_software_version": "1"}
    return ClientInstance(instance_id, who)


def text(metrics: ExportedMetrics) -> list[str]:
    lines = render(metrics.families()).decode().splitlines()
    return [line for line in lines if not line.startswith("#")]


def test_deltas_add_up_and_gauges_do_not() -> None:
    metrics = ExportedMetrics()
    for _ in range(2):
        metrics.add(
            client(),
            [
                Point("org.apache.kafka.producer.sent.total", (), 3.0, True, True),
                Point("org.apache.kafka.producer.queue", (("node.id", "1"),), 5.0, False, False),
                Point("own.bytes", (), 9.0, True, False),
            ],
        )
    who = (
        'client_id="a\\"b",client_instance_id="AAAAAAAAAAAAAAAAAAAABw",client_software_name="s",'
        'client_software_version="1"'
    )
    assert text(metrics) == [
        f"ottla_client_own_bytes_total{{{who}}} 9.0",
        f'ottla_client_producer_queue{{{who},node_id="1"}} 5.0',
        f"ottla_client_producer_sent_total{{{who}}} 6.0",
    ]


def test_attributes_that_would_hide_the_client() -> None:
    metrics = ExportedMetrics()
    metrics.add(client(), [Point("m", (("client_id", "x"), ("1st", "y")), 1.0, False, False)])
    (line,) = text(metrics)
    assert 'attribute_1st="y",attribute_client_id="x"' in line


def test_a_client_that_goes_takes_its_series_with_it() -> None:
    metrics = ExportedMetrics()
    metrics.add(client(), [Point("m", (), 1.0, False, False)])
    metrics.add(client(bytes(15) + b"\x08", "other"), [Point("m", (), 2.0, False, False)])
    metrics.forget(ONE)
    metrics.forget(ONE)
    assert len(text(metrics)) == 1
    assert 'client_id="other"' in text(metrics)[0]


def test_what_is_kept_has_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_SERIES", 2)
    metrics = ExportedMetrics()
    metrics.add(client(), [Point(f"m{n}", (), 1.0, False, False) for n in range(5)])
    assert (metrics.dropped_total, len(text(metrics))) == (3, 2)
    metrics.forget(ONE)
    metrics.add(client(), [Point("m9", (), 1.0, False, False)])
    assert len(text(metrics)) == 1
