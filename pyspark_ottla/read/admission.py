"""The streaming reader with limits and Trigger.AvailableNow; importable from Spark 4.2 on."""

from __future__ import annotations

from collections.abc import Mapping

from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxRows,
    ReadMinRows,
    SupportsTriggerAvailableNow,
)

from pyspark_ottla.offsets import Json, to_json_dict
from pyspark_ottla.read.stream import Limit
from pyspark_ottla.read.stream_reader import BaseStreamReader


class AdmissionStreamReader(BaseStreamReader, SupportsTriggerAvailableNow):
    """Spark has one kind of limit at a time; where the options name several, the others are applied
    on top of the one that Spark hands back."""

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802 - Spark's name
        options = self._options
        if options.offsets_max_per_trigger is not None:
            return ReadMaxRows(options.offsets_max_per_trigger)
        if options.bytes_max_per_trigger is not None:
            return ReadMaxBytes(options.bytes_max_per_trigger)
        if options.offsets_min_per_trigger is not None:
            return ReadMinRows(options.offsets_min_per_trigger)
        return ReadAllAvailable()

    def latestOffset(  # noqa: N802 - Spark's name
        self, start: Mapping[str, Json], limit: ReadLimit
    ) -> dict[str, Json]:
        options = self._options
        if isinstance(limit, ReadAllAvailable):
            return self.next_end(start, Limit(everything=True))
        offsets_max, bytes_max = options.offsets_max_per_trigger, options.bytes_max_per_trigger
        if isinstance(limit, ReadMaxRows):
            offsets_max = limit.max_rows
        elif isinstance(limit, ReadMaxBytes):
            bytes_max = limit.max_bytes
        return self.next_end(start, Limit(offsets=offsets_max, bytes=bytes_max))

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802 - Spark's name
        self.tracker.freeze()

    def reportLatestOffset(self) -> dict[str, Json] | None:  # noqa: N802 - Spark's name
        latest = self.tracker.latest()
        return to_json_dict(latest) if latest else None
