"""What clients have pushed, as metrics of this broker's metrics port.

Every client instance keeps its own series, labelled with who it is, until it falls silent. Deltas
are added up, so that what is exported is what Prometheus expects of a counter.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

from ottla.broker.metrics.statistics import Metric, Reading
from ottla.broker.metrics.telemetry.manager import ClientInstance
from ottla.broker.metrics.telemetry.otlp import Point
from ottla.protocol.uuids import uuid_to_string

# All series together: some hundred clients with everything they have. More are counted, not kept.
MAX_SERIES = 50_000

_VALUE_MAX = 256
_PREFIX = "org.apache.kafka."
_NOT_IN_NAMES = re.compile(r"[^a-zA-Z0-9_]+")

_WHO = ("client_id", "client_instance_id", "client_software_name", "client_software_version")

Attributes = tuple[tuple[str, str], ...]
Series = tuple[bytes, Attributes]


class ExportedMetrics:
    """Series by family. Loop only."""

    def __init__(self) -> None:
        #: Points that found no room.
        self.dropped_total = 0
        self.points_total = 0
        self._families: dict[tuple[str, bool], dict[Series, float]] = {}
        self._clients: dict[bytes, tuple[str, ...]] = {}
        self._count = 0

    def add(self, instance: ClientInstance, points: Iterable[Point]) -> None:
        """Takes what one client pushed."""
        client = instance.client
        self._clients[instance.instance_id] = (
            client["client_id"],
            uuid_to_string(instance.instance_id),
            client["client_software_name"],
            client["client_software_version"],
        )
        for point in points:
            self.points_total += 1
            attributes = tuple(
                (_label(name), value[:_VALUE_MAX]) for name, value in point.attributes
            )
            key = (instance.instance_id, attributes)
            family = self._families.setdefault((_name(point.name), point.is_sum), {})
            if key not in family:
                if self._count >= MAX_SERIES:
                    self.dropped_total += 1
                    continue
                self._count += 1
            before = family.get(key, 0.0) if point.is_delta else 0.0
            family[key] = before + point.value

    def forget(self, instance_id: bytes) -> None:
        """A client is gone, and its series with it."""
        if self._clients.pop(instance_id, None) is None:
            return
        for name, family in list(self._families.items()):
            for key in [key for key in family if key[0] == instance_id]:
                del family[key]
                self._count -= 1
            if not family:
                del self._families[name]

    def families(self) -> Iterator[tuple[Metric, Reading]]:
        """Everything, as the metrics port renders it."""
        for (name, is_sum), family in sorted(self._families.items()):
            labels = sorted({label for _, attributes in family for label, _ in attributes})
            reading: dict[tuple[str, ...], float] = {}
            for (instance_id, attributes), value in family.items():
                values = dict(attributes)
                row = (*self._clients[instance_id], *(values.get(each, "") for each in labels))
                reading[row] = value
            kind = "counter" if is_sum else "gauge"
            help_text = "Pushed by clients (KIP-714)."
            yield Metric(name, help_text, kind, (*_WHO, *labels), lambda: 0.0), reading


def _name(name: str) -> str:
    """org.apache.kafka.producer.node.request.latency.avg -> ottla_client_producer_..._avg"""
    text = _NOT_IN_NAMES.sub("_", name.removeprefix(_PREFIX)[:_VALUE_MAX])
    return "ottla_client_" + text.removesuffix("_total")


def _label(name: str) -> str:
    text = _NOT_IN_NAMES.sub("_", name[:_VALUE_MAX])
    return f"attribute_{text}" if text in _WHO or not text[:1].isalpha() else text
