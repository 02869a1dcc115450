"""A look at the records of a topic: from an offset, a time or the end, with a filter.

Each look is bounded in records, bytes and time, and says how much it has read. Records are fetched
from the leaders and decoded in worker threads. A look to be downloaded has whole records as the
lines of `ottla consume --json`; one to be shown has what fits on a page
(`record_views`).
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from copy import copy
from functools import partial
from time import monotonic
from typing import TYPE_CHECKING, Any, NamedTuple

from ottla.broker.observability.console.access import Refused
from ottla.broker.observability.console.cluster_client import (
    EARLIEST,
    LATEST,
    NoResponse,
    list_offsets,
)
from ottla.broker.observability.console.record_views import matches, record_row, whole_row
from ottla.broker.security.authorization.acl_types import Operation, ResourceType
from ottla.protocol.errors import ErrorCode, KafkaError, error_name
from ottla.protocol.messages.fetch import (
    FetchPartition,
    FetchRequest,
    FetchResponse,
    FetchTopic,
)
from ottla.protocol.records.batch import BatchHeader
from ottla.protocol.records.errors import RecordsError
from ottla.protocol.records.reader import iterate_entries, read_entry
from ottla.protocol.topics import TopicPartition

if TYPE_CHECKING:
    from ottla.broker.observability.console.access import Viewer
    from ottla.broker.observability.console.cluster_client import ClusterClient
    from ottla.broker.observability.console.schemas import SchemaRegistry
    from ottla.broker.runtime.tasks import WorkerPool
    from ottla.protocol.records.record import Record


# Partitions that one look reads, from each a part of the bounds below.
MAX_PARTITIONS = 64
# The most that one look reads. A record that the filter drops counts, too.
MAX_SCANNED = 50_000
MAX_BYTES = 16 << 20
FETCH_BYTES = 1 << 20
# Of one look with all that it waits for; what was read until then is shown. With the time of a
# schema registry it is less than a page has.
LOOK_SECONDS = 6.0
# Of that for the offsets, so that a silent broker leaves time to read from the others.
OFFSETS_SECONDS = 3.0
# Of one batch.
MAX_DECOMPRESSED_BYTES = 8 << 20
# Records and bytes of one download: a browser keeps them in memory, as the broker does meanwhile.
MAX_DOWNLOADED = 5000
MAX_DOWNLOADED_BYTES = 8 << 20
# Rows of a look at several partitions: each partition keeps as many until the last is read. A row
# has some 20 kB at the most.
MAX_ROWS_OF_SEVERAL = 50
# How many are made together; others wait for so long, within the deadline of the HTTP port.
MAX_LOOKS = 2
WAIT_SECONDS = 2.0
# Without a filter a look at the newest records goes back this far for each record that it shows:
# markers and compacted offsets have no record.
_BACK = 2


class Query(NamedTuple):
    """A search. `partition` -1 means all. Exactly one of the starts holds: `offset` if it
    is 0 or more, `time_ms` if it is, else the newest records."""

    topic: str
    partition: int
    offset: int
    time_ms: int
    key: str
    value: str
    limit: int
    view: str = "auto"  # one of `record_views.VIEWS`
    whole: bool = False  # whole records for a file, in place of what a page shows
    frames: bool = False  # whether data with the id of a schema is decoded

    @property
    def has_filter(self) -> bool:
        return bool(self.key or self.value)

    @property
    def from_end(self) -> bool:
        return self.offset < 0 and self.time_ms < 0


class _Scan:
    """One partition of a look: where it is, and what it has found."""

    def __init__(self, index: int, start: int, end: int) -> None:
        self.index = index
        self.first = self.position = start
        self.end = end
        self.rows: list[dict[str, Any]] = []
        self.scanned = 0
        self.bytes = 0
        self.kept = 0  # bytes of whole records
        self.room = MAX_DOWNLOADED_BYTES
        self.is_reading = False
        self.dropped = False  # whether older records were, in favor of newer ones
        self.problem = ""

    @property
    def is_done(self) -> bool:
        return self.position >= self.end or bool(self.problem)

    def wants(self, query: Query) -> bool:
        """Whether the look goes on in this partition."""
        return query.from_end or (len(self.rows) < query.limit and self.kept < self.room)

    def keep(self, query: Query, record: Record) -> bool:
        """Add a record that matches; false when this was the last one of the look."""
        if query.whole:
            row, size = whole_row(record, query.topic, self.index)
            self.kept += size
        else:
            row = record_row(record, self.index, query.view, frames=query.frames)
        self.rows.append(row)
        if not query.from_end:
            return self.wants(query)
        while len(self.rows) > query.limit or (self.kept > self.room and len(self.rows) > 1):
            self.kept -= self.rows.pop(0).get("size", 0)
            self.dropped = True
        return True


class Browser:
    """Reads committed records of partitions anywhere in the cluster."""

    def __init__(
        self, client: ClusterClient, workers: WorkerPool, registry: SchemaRegistry | None = None
    ) -> None:
        self._client = client
        self._workers = workers
        self._registry = registry
        self._looks = asyncio.Semaphore(MAX_LOOKS)

    async def read(
        self,
        query: Query,
        viewer: Viewer,
        positions: Mapping[int, int] | None = None,
        deadline: float | None = None,
    ) -> bytes:
        """The JSON of `look`, made in a worker thread."""
        found = await self.look(query, viewer, positions, deadline)
        return await self._workers.run(_encoded, found)

    async def look(
        self,
        query: Query,
        viewer: Viewer,
        positions: Mapping[int, int] | None = None,
        deadline: float | None = None,
    ) -> dict[str, Any]:
        """At most `limit` records of each look, ordered by time, with where the next look begins.

        With `positions`, by partition, it begins there. At the `deadline` it ends with what was
        read until then, by itself after LOOK_SECONDS. KafkaError when the viewer may not read the
        topic or there is none; Refused when other looks take too long."""
        viewer.require(Operation.READ, ResourceType.TOPIC, query.topic)
        deadline = monotonic() + LOOK_SECONDS if deadline is None else deadline
        try:
            async with asyncio.timeout(WAIT_SECONDS):
                await self._looks.acquire()
        except TimeoutError:
            raise Refused(
                "503 Service Unavailable",
                f"{MAX_LOOKS} other pages search records now; try again in some seconds",
            ) from None
        try:
            return await self._look(query, viewer, positions, deadline)
        finally:
            self._looks.release()

    async def _look(
        self, query: Query, viewer: Viewer, positions: Mapping[int, int] | None, deadline: float
    ) -> dict[str, Any]:
        partitions = self.partitions(query)
        query = query._replace(frames=self._registry is not None)
        if query.whole:
            query = query._replace(limit=max(1, query.limit // len(partitions)))
        elif len(partitions) > 1:
            query = query._replace(limit=min(query.limit, MAX_ROWS_OF_SEVERAL))
        offsets = partial(list_offsets, self._client, viewer, partitions)
        left = max(0.0, min(OFFSETS_SECONDS, deadline - monotonic()))
        ends, starts = await asyncio.gather(
            offsets(LATEST, seconds=left), offsets(EARLIEST, seconds=left)
        )
        problems = list(dict.fromkeys([*ends.problems, *starts.problems]))
        count = len(self._client.metadata.snapshot.topics[query.topic].partitions)
        if query.partition < 0 and count > len(partitions):
            problems.append(
                f"Only the first {len(partitions)} of {count} partitions are read: choose one of "
                "the others to read it."
            )
        sought = None
        if query.offset < 0 and query.time_ms >= 0:
            sought = await offsets(query.time_ms, seconds=max(0.0, deadline - monotonic()))
            problems.extend(sought.problems)
        scans = []
        for partition in partitions:
            if partition not in ends.found or partition not in starts.found:
                if not problems:
                    problems.append(f"Partition {partition.partition} cannot be read now.")
                continue
            low, high = starts.found[partition], ends.found[partition]
            first = self._first(query, low, high, len(partitions))
            if sought is not None:
                if partition not in sought.found:
                    continue
                found = sought.found[partition]
                first = high if found < 0 else found
            if positions is not None:
                first = max(low, min(positions.get(partition.partition, high), high))
            scan = _Scan(partition.partition, first, high)
            scan.room = MAX_DOWNLOADED_BYTES // len(partitions)
            scans.append(scan)
        await self._run(query, scans, viewer, deadline)
        problems.extend(scan.problem for scan in scans if scan.problem)
        result = _result(query, scans, list(dict.fromkeys(problems)), starts.found, ends.found)
        whole = count if query.partition < 0 else 1
        result["read"] = sum(not scan.problem for scan in scans)
        result["unread"] = whole - result["read"]
        result["may_produce"] = viewer.may(Operation.WRITE, ResourceType.TOPIC, query.topic)
        if positions is not None:
            # Or a page that follows would go on at the end, when such a partition is back.
            read = {scan.index for scan in scans}
            result["partitions"] += [
                dict.fromkeys(("start_offset", "end_offset", "first", "next"), positions[index])
                | {"partition": index}
                for _, index in partitions
                if index in positions and index not in read
            ]
        if self._registry is not None and not query.whole:
            result["problems"] += await self._registry.decode(result["records"])
        return result

    def partitions(self, query: Query) -> list[TopicPartition]:
        """The partitions that a look reads. KafkaError if there are none."""
        topic = self._client.metadata.snapshot.topics.get(query.topic)
        if topic is None:
            raise KafkaError(
                ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"There is no topic {query.topic[:249]}."
            )
        if query.partition < 0:
            indexes = sorted(topic.partitions)[:MAX_PARTITIONS]
        elif query.partition in topic.partitions:
            indexes = [query.partition]
        else:
            raise KafkaError(
                ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
                f"Partition {query.topic[:249]}-{query.partition} does not exist.",
            )
        return [TopicPartition(query.topic, index) for index in indexes]

    @staticmethod
    def _first(query: Query, low: int, high: int, partitions: int) -> int:
        if query.offset >= 0:
            return max(low, min(query.offset, high))
        back = query.limit if not query.has_filter else MAX_SCANNED // partitions
        return max(low, high - back * (1 if query.has_filter else _BACK))

    async def _run(
        self, query: Query, scans: Sequence[_Scan], viewer: Viewer, deadline: float
    ) -> None:
        """Rounds of one fetch for each partition, until there is enough or a bound is reached."""
        while monotonic() < deadline:
            open_scans = [scan for scan in scans if not scan.is_done and scan.wants(query)]
            scanned = sum(scan.scanned for scan in scans)
            read = sum(scan.bytes for scan in scans)
            if not open_scans or scanned >= MAX_SCANNED or read >= MAX_BYTES:
                return
            room = max(64 << 10, min(FETCH_BYTES, (MAX_BYTES - read) // len(open_scans)))
            fetches = (self._fetch(query, scan, room, viewer) for scan in open_scans)
            with suppress(TimeoutError):
                async with asyncio.timeout(deadline - monotonic()):
                    await asyncio.gather(*fetches)
        for scan in scans:
            if scan.is_reading:
                scan.problem = f"Partition {scan.index} was not read in time."

    async def _fetch(self, query: Query, scan: _Scan, room: int, viewer: Viewer) -> None:
        scan.is_reading = True
        # A thread that is too late does not change what is shown.
        read = copy(scan)
        read.rows = list(scan.rows)
        await self._read(query, read, room, viewer)
        vars(scan).update(vars(read), is_reading=False)

    async def _read(self, query: Query, scan: _Scan, room: int, viewer: Viewer) -> None:
        partition = TopicPartition(query.topic, scan.index)
        state = self._client.metadata.snapshot.partition(*partition)
        if state is None or state.leader < 0:
            scan.problem = f"Partition {scan.index} has no leader."
            return
        row = FetchPartition(
            partition=scan.index, fetch_offset=scan.position, partition_max_bytes=room
        )
        request = FetchRequest(
            max_wait_ms=0,
            min_bytes=0,
            max_bytes=room,
            topics=[FetchTopic(topic=query.topic, partitions=[row])],
        )
        try:
            response = await self._client.ask(viewer, state.leader, request, FetchResponse)
        except NoResponse as problem:
            scan.problem = str(problem)
            return
        data = response.responses[0].partitions[0] if response.responses else None
        if response.error_code or data is None or data.error_code:
            code = response.error_code or (data.error_code if data else ErrorCode.NETWORK_EXCEPTION)
            scan.problem = f"Partition {scan.index} cannot be read: {error_name(code)}."
            return
        records = data.records
        before = scan.position
        try:
            await self._workers.run(_decode, query, scan, records)
        except RecordsError as error:
            scan.problem = f"Partition {scan.index} has a damaged batch: {error}."
        if scan.position == before:
            # Nothing whole came: the end of the log, or an offset that is gone.
            scan.position = scan.end


def _encoded(found: dict[str, Any]) -> bytes:
    if found["whole"]:
        # The lines of the file, in place of the rows.
        lines = [row["line"] for row in found["records"]]
        omitted = [length for row in found["records"] for length in row["omitted"]]
        found = {
            **found,
            "records": len(lines),
            "text": "".join(lines),
            "omitted": {"values": len(omitted), "bytes": sum(omitted)},
        }
    return json.dumps(found, ensure_ascii=False).encode("utf-8", "replace")


def _decode(query: Query, scan: _Scan, records: Any) -> None:
    """In a worker thread. Records of a local leader are a part of a file."""
    if records is None:
        return
    data = records.read() if hasattr(records, "read") else bytes(records)
    scan.bytes += len(data)
    for position, header in iterate_entries(data):
        if isinstance(header, BatchHeader):
            next_position = header.last_offset + 1
            if header.is_control or next_position <= scan.position:
                scan.position = max(scan.position, next_position)
                continue
        found = read_entry(data, position, header, max_decompressed_bytes=MAX_DECOMPRESSED_BYTES)
        for record in found:
            if record.offset < scan.position or record.offset >= scan.end:
                continue
            scan.scanned += 1
            if matches(record, query.key, query.value) and not scan.keep(query, record):
                scan.position = record.offset + 1
                return
        if isinstance(header, BatchHeader):
            scan.position = max(scan.position, header.last_offset + 1)
        elif found:
            scan.position = max(scan.position, found[-1].offset + 1)


def _result(
    query: Query,
    scans: Sequence[_Scan],
    problems: list[str],
    starts: dict[TopicPartition, int],
    ends: dict[TopicPartition, int],
) -> dict[str, Any]:
    rows = sorted(
        (row for scan in scans for row in scan.rows),
        key=lambda row: (row["time_ms"], row["partition"], row["offset"]),
    )
    if not query.whole:
        rows = rows[-query.limit :] if query.from_end else rows[: query.limit]
    # A record that is not shown now is shown by the next look.
    shown = {(row["partition"], row["offset"]) for row in rows}
    positions = {}
    for scan in scans:
        left = [row["offset"] for row in scan.rows if (scan.index, row["offset"]) not in shown]
        positions[scan.index] = min([scan.position, *left]) if not query.from_end else scan.position
    at_end = all(positions[scan.index] >= scan.end for scan in scans)
    lowest = {scan.index: starts[TopicPartition(query.topic, scan.index)] for scan in scans}
    is_cut = any(scan.dropped or scan.first > lowest[scan.index] for scan in scans)
    return {
        "topic": query.topic,
        "partition": query.partition,
        "partitions": [
            {
                "partition": scan.index,
                "start_offset": lowest[scan.index],
                "end_offset": ends[TopicPartition(query.topic, scan.index)],
                "first": scan.first,
                "next": positions[scan.index],
            }
            for scan in scans
        ],
        "records": rows,
        "scanned": sum(scan.scanned for scan in scans),
        "scanned_bytes": sum(scan.bytes for scan in scans),
        "at_end": at_end,
        # Whether there are more records in the direction of the look.
        "is_cut": is_cut if query.from_end else not at_end,
        # Whether that is because it has found as much as it may return.
        "is_full": any(scan.dropped if query.from_end else not scan.wants(query) for scan in scans),
        "problems": problems,
        "whole": query.whole,
    }
