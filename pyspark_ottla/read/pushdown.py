"""Filters that Spark pushes down, as bounds on what has to be read at all.

Only to read less: every filter is handed back, and Spark applies it to the rows again. A filter
on anything but topic, partition, offset or timestamp is ignored. Filters are distinguished
by the names of their classes, so that this works without Spark and with any version of it.
"""

from __future__ import annotations

import datetime
import math
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from pyspark_ottla.offsets import OFFSET_MAX, OffsetRange, Offsets
from pyspark_ottla.read.planning import Cluster

EPOCH = datetime.datetime(1970, 1, 1, tzinfo=datetime.timezone.utc)


class Bounds(NamedTuple):
    """What a record must have to pass all filters; None is no bound."""

    topics: frozenset[str] | None = None
    topic_prefix: str = ""
    partitions: frozenset[int] | None = None
    offset_min: int = 0
    offset_end: int = OFFSET_MAX  # the first offset that is too large
    timestamp_min_ms: int | None = None

    def allows(self, piece: OffsetRange) -> bool:
        topic, partition = piece.partition
        return (
            (self.topics is None or topic in self.topics)
            and topic.startswith(self.topic_prefix)
            and (self.partitions is None or partition in self.partitions)
        )


def bounds_of(filters: Iterable[Any]) -> Bounds:
    """The bounds that all of the filters together make."""
    bounds = Bounds()
    for one in filters:
        attribute = getattr(one, "attribute", None)
        if not isinstance(attribute, tuple) or len(attribute) != 1:
            continue
        bounds = _narrowed(bounds, type(one).__name__, attribute[0], getattr(one, "value", None))
    return bounds


def _narrowed(bounds: Bounds, kind: str, column: str, value: Any) -> Bounds:
    """`bounds` and one filter more; the same bounds if the filter narrows nothing."""
    # Values of other columns may be lists and structs, which no set holds.
    values = _values(kind, value) if column in ("topic", "partition", "offset") else None
    if column == "topic":
        if values is not None:
            return bounds._replace(topics=_both(bounds.topics, values))
        if kind == "StringStartsWith" and str(value).startswith(bounds.topic_prefix):
            return bounds._replace(topic_prefix=str(value))
    elif column == "partition" and values is not None:
        return bounds._replace(partitions=_both(bounds.partitions, values))
    elif column == "offset":
        return _narrowed_offsets(bounds, kind, value, values)
    elif column == "timestamp" and kind in ("GreaterThan", "GreaterThanOrEqual", "EqualTo"):
        milliseconds = _milliseconds(value)
        if milliseconds is not None:
            least = max(milliseconds, bounds.timestamp_min_ms or milliseconds)
            return bounds._replace(timestamp_min_ms=least)
    return bounds


def _values(kind: str, value: Any) -> frozenset[Any] | None:
    if kind in ("EqualTo", "EqualNullSafe"):
        return frozenset({value})
    if kind == "In":
        return frozenset(value)
    return None


def _both(known: frozenset[Any] | None, more: frozenset[Any]) -> frozenset[Any]:
    return more if known is None else known & more


def _narrowed_offsets(
    bounds: Bounds, kind: str, value: Any, values: frozenset[Any] | None
) -> Bounds:
    numbers = [number for number in values or {value} if isinstance(number, int)]
    if not numbers:
        return bounds
    low, end = bounds.offset_min, bounds.offset_end
    if values is not None:
        low, end = max(low, min(numbers)), min(end, max(numbers) + 1)
    elif kind in ("GreaterThan", "GreaterThanOrEqual"):
        low = max(low, numbers[0] + (kind == "GreaterThan"))
    elif kind in ("LessThan", "LessThanOrEqual"):
        end = min(end, numbers[0] + (kind == "LessThanOrEqual"))
    return bounds._replace(offset_min=low, offset_end=end)


def _milliseconds(value: Any) -> int | None:
    """A record's timestamp has no finer part, so a bound between two of them goes up."""
    if not isinstance(value, datetime.datetime) or value.tzinfo is None:
        return None
    return math.ceil((value - EPOCH) / datetime.timedelta(milliseconds=1))


def narrow(cluster: Cluster, ranges: Sequence[OffsetRange], bounds: Bounds) -> list[OffsetRange]:
    """The ranges without what no record of can pass; may be empty.

    A lower bound on timestamps is exact, as brokers find the first record with at least that
    timestamp. An upper one is not used: later records may have earlier timestamps.
    """
    chosen = [piece for piece in ranges if bounds.allows(piece)]
    first: Offsets = {}
    if bounds.timestamp_min_ms is not None and bounds.timestamp_min_ms >= 0:
        wanted = {piece.partition: bounds.timestamp_min_ms for piece in chosen}
        first = cluster.offsets_at(wanted)
    narrowed: list[OffsetRange] = []
    for piece in chosen:
        found = first.get(piece.partition, piece.start)
        begin = max(piece.start, bounds.offset_min, piece.end if found < 0 else found)
        stop = min(piece.end, bounds.offset_end)
        if begin < stop:
            narrowed.append(piece._replace(start=begin, end=stop))
    return narrowed
