"""Metrics that clients pushed, on this broker's metrics port.

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

# Series of one client instance, of one address and of all. Kafka's clients push some fifty each. An
# instance id costs nothing, so instances of one address share a bound, too. A scrape reads 10,000
# series on the loop in 40 ms.
MAX_SERIES_OF_CLIENT = 1_000
MAX_SERIES_OF_ADDRESS = 5_000
MAX_SERIES = 10_000

# Of the text that a scrape gets: it is made at once, and Prometheus has to take it in ten seconds.
MAX_BYTES_OF_CLIENT = 1 << 20
MAX_BYTES = 8 << 20

# Each row of a family has all labels of the family.
MAX_LABELS_OF_FAMILY = 8

# Points of one push that are read; adding one takes up to 16 us on the loop.
MAX_POINTS = 2_000

_LABEL_MAX = 64
_VALUE_MAX = 256
# Of a row beside its texts: names of the labels of the client, quotes, the value.
_ROW_BYTES = 160
_PREFIX = "org.apache.kafka."
_NOT_IN_NAMES = re.compile(r"[^a-zA-Z0-9_]+")

_WHO = ("client_id", "client_instance_id", "client_software_name", "client_software_version")

Attributes = tuple[tuple[str, str], ...]
Series = tuple[bytes, Attributes]
FamilyName = tuple[str, bool]  # and whether it is a counter


class _Usage:
    """The memory that one client, one address or all of them take."""

    __slots__ = ("series", "size")

    def __init__(self) -> None:
        self.series = 0
        self.size = 0

    def add(self, series: int, size: int) -> None:
        self.series += series
        self.size += size


class _Family:
    __slots__ = ("labels", "values")

    def __init__(self) -> None:
        self.labels: set[str] = set()
        self.values: dict[Series, float] = {}


class _Client:
    __slots__ = ("address", "sizes", "who")

    def __init__(self, who: tuple[str, ...], address: str) -> None:
        self.who = who
        self.address = address
        #: Bytes in a scrape by family and series.
        self.sizes: dict[tuple[FamilyName, Series], int] = {}


class ExportedMetrics:
    """Series by family. Loop only."""

    def __init__(self) -> None:
        #: Points that found no room.
        self.dropped_total = 0
        self.points_total = 0
        self._families: dict[FamilyName, _Family] = {}
        self._clients: dict[bytes, _Client] = {}
        self._usage_of_client: dict[bytes, _Usage] = {}
        self._usage_of_address: dict[str, _Usage] = {}
        self._usage = _Usage()

    def add(self, instance: ClientInstance, points: Iterable[Point]) -> None:
        """Take what one client pushed."""
        instance_id = instance.instance_id
        client = self._clients.get(instance_id)
        if client is None:
            client = self._clients[instance_id] = _client(instance)
        for point in points:
            self.points_total += 1
            attributes = tuple(
                (_label(name), value[:_VALUE_MAX]) for name, value in point.attributes
            )
            series = (instance_id, attributes)
            name = (_name(point.name), point.is_sum)
            family = self._families.get(name)
            if family is None or series not in family.values:
                if not self._has_room(client, instance_id, name, series):
                    self.dropped_total += 1
                    continue
                family = self._families.setdefault(name, _Family())
                family.labels.update(label for label, _ in attributes)
            before = family.values.get(series, 0.0) if point.is_delta else 0.0
            family.values[series] = before + point.value

    def _has_room(
        self, client: _Client, instance_id: bytes, name: FamilyName, series: Series
    ) -> bool:
        """Whether a new series fits in; if so, it is counted."""
        labels = {label for label, _ in series[1]}
        family = self._families.get(name)
        if len(labels | family.labels if family else labels) > MAX_LABELS_OF_FAMILY:
            return False
        texts = (name[0], *client.who, *(text for pair in series[1] for text in pair))
        size = sum(map(len, texts)) + _ROW_BYTES
        own = self._usage_of_client.setdefault(instance_id, _Usage())
        shared = self._usage_of_address.setdefault(client.address, _Usage())
        if (
            own.series >= MAX_SERIES_OF_CLIENT
            or shared.series >= MAX_SERIES_OF_ADDRESS
            or self._usage.series >= MAX_SERIES
            or own.size + size > MAX_BYTES_OF_CLIENT
            or self._usage.size + size > MAX_BYTES
        ):
            return False
        for usage in (own, shared, self._usage):
            usage.add(1, size)
        client.sizes[name, series] = size
        return True

    def forget(self, instance_id: bytes) -> None:
        """A client is gone, and its series with it."""
        client = self._clients.pop(instance_id, None)
        if client is None:
            return
        self._usage_of_client.pop(instance_id, None)
        shared = self._usage_of_address.get(client.address)
        for (name, series), size in client.sizes.items():
            family = self._families[name]
            del family.values[series]
            if not family.values:
                del self._families[name]
            self._usage.add(-1, -size)
            if shared is not None:
                shared.add(-1, -size)
        if shared is not None and not shared.series:
            del self._usage_of_address[client.address]

    def families(self) -> Iterator[tuple[Metric, Reading]]:
        """Everything, as the metrics port renders it."""
        for (name, is_sum), family in sorted(self._families.items()):
            labels = sorted(family.labels)
            reading: dict[tuple[str, ...], float] = {}
            for (instance_id, attributes), value in family.values.items():
                values = dict(attributes)
                row = (*self._clients[instance_id].who, *(values.get(each, "") for each in labels))
                reading[row] = value
            kind = "counter" if is_sum else "gauge"
            help_text = "Pushed by clients (KIP-714)."
            yield Metric(name, help_text, kind, (*_WHO, *labels), lambda: 0.0), reading


def _client(instance: ClientInstance) -> _Client:
    client = instance.client
    who = (
        client["client_id"][:_VALUE_MAX],
        uuid_to_string(instance.instance_id),
        client["client_software_name"][:_VALUE_MAX],
        client["client_software_version"][:_VALUE_MAX],
    )
    return _Client(who, client.get("client_source_address", ""))


def _name(name: str) -> str:
    """org.apache.kafka.producer.node.request.latency.avg -> ottla_client_producer_..._avg"""
    text = _NOT_IN_NAMES.sub("_", name.removeprefix(_PREFIX)[:_VALUE_MAX])
    return "ottla_client_" + text.removesuffix("_total")


def _label(name: str) -> str:
    text = _NOT_IN_NAMES.sub("_", name[:_LABEL_MAX])
    return f"attribute_{text}" if text in _WHO or not text[:1].isalpha() else text
