from __future__ import annotations

import pytest

from ottla.broker.metrics.exposition import render
from ottla.broker.metrics.telemetry import exported as module
from ottla.broker.metrics.telemetry.exported import ExportedMetrics
from ottla.broker.metrics.telemetry.manager import ClientInstance
from ottla.broker.metrics.telemetry.otlp import Point

ONE = bytes(15) + b"\x07"


def client(
    instance_id: bytes = ONE, client_id: str = 'a"b', address: str = "10.0.0.1"
) -> ClientInstance:
    who = {
        "client_id": client_id,
        "client_software_name": "s",
        "client_software_version": "1",
        "client_source_address": address,
    }
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


def bytes_of_a_scrape(metrics: ExportedMetrics) -> int:
    return len(render(metrics.families()))


def test_label_names_of_a_client_do_not_multiply() -> None:
    """Each row has all labels of its family: 2,000 points with a label each made 78 MB."""
    metrics = ExportedMetrics()
    points = [Point("m", ((f"L{n}", "v"),), 1.0, False, False) for n in range(2000)]
    metrics.add(client(), points)
    assert len(text(metrics)) == module.MAX_LABELS_OF_FAMILY
    assert metrics.dropped_total == 2000 - module.MAX_LABELS_OF_FAMILY
    # A family with other labels is not affected.
    metrics.add(client(), [Point("other", (("node.id", "1"),), 1.0, False, False)])
    assert len(text(metrics)) == module.MAX_LABELS_OF_FAMILY + 1


def test_one_client_and_one_address_have_a_bound() -> None:
    metrics = ExportedMetrics()
    pushed = [Point(f"m{n}", (), 1.0, False, False) for n in range(2 * module.MAX_SERIES_OF_CLIENT)]
    for number in range(100):
        metrics.add(client(number.to_bytes(16)), pushed)
    assert len(text(metrics)) == module.MAX_SERIES_OF_ADDRESS
    metrics.add(client(bytes(15) + b"\xff", address="10.0.0.2"), pushed)
    assert len(text(metrics)) == module.MAX_SERIES_OF_ADDRESS + module.MAX_SERIES_OF_CLIENT
    for number in range(100):
        metrics.forget(number.to_bytes(16))
    metrics.forget(bytes(15) + b"\xff")
    assert vars(metrics)["_families"] == {}
    assert vars(metrics)["_usage_of_address"] == {}
    assert (metrics._usage.series, metrics._usage.size) == (0, 0)


def test_long_texts_of_a_client_have_a_bound() -> None:
    metrics = ExportedMetrics()
    long = "x" * 30_000
    names = ("client_id", "client_software_name", "client_software_version")
    labels = range(module.MAX_LABELS_OF_FAMILY)
    attributes = tuple((f"{n}{long}", f"{n}{long}") for n in labels)
    points = [Point(f"m{n}{long}", attributes, 1.0, False, False) for n in range(500)]
    for number in range(20):
        who = {**dict.fromkeys(names, long), "client_source_address": str(number)}
        metrics.add(ClientInstance(number.to_bytes(16), who), points)
        if not number:
            assert bytes_of_a_scrape(metrics) < 2 * module.MAX_BYTES_OF_CLIENT
    assert bytes_of_a_scrape(metrics) < 2 * module.MAX_BYTES
    assert metrics.dropped_total > 0
