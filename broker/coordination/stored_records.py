"""Replays the records of one partition of an internal topic, of any kind."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator

from ottla.protocol.records.errors import RecordsError
from ottla.protocol.records.reader import iterate_entries, read_entry
from ottla.protocol.records.record import Record

_MAX_SKIPPED_LOGGED = 10  # log lines about skipped records in one load


class UnreadableRecord(ValueError):
    """A key or value is not in Kafka's format; the message has the reason."""


class StoredRecords:
    """Skips unreadable records; logs the first ones and counts all in `skipped`."""

    __slots__ = ("_index", "_logger", "_subject", "_topic", "skipped")

    def __init__(self, topic: str, index: int, subject: str, logger: logging.Logger) -> None:
        """`subject` is what is loaded, for the log lines."""
        self._topic = topic
        self._index = index
        self._subject = subject
        self._logger = logger
        self.skipped = 0

    def replay(
        self, chunks: Iterator[memoryview], replay_record: Callable[[Record], None]
    ) -> Iterator[None]:
        """Yield after each record and each chunk. `replay_record` raises UnreadableRecord."""
        for chunk in chunks:
            data = bytes(chunk)
            try:
                for position, header in iterate_entries(data):
                    for record in read_entry(data, position, header, check_crc=False):
                        try:
                            replay_record(record)
                        except UnreadableRecord as problem:
                            self._skip(str(problem))
                        yield
            except RecordsError as problem:
                self._skip(f"a batch is corrupt: {problem}")
            yield

    def _skip(self, problem: str) -> None:
        self.skipped += 1
        if self.skipped <= _MAX_SKIPPED_LOGGED:
            self._logger.warning(
                "Loading %s from %s-%d: skipping a record: %s",
                self._subject,
                self._topic,
                self._index,
                problem,
                extra={"topic": self._topic, "partition": self._index},
            )

    def describe(self) -> str:
        """Return the suffix for a summary of the state."""
        return f", {self.skipped} unreadable records" if self.skipped else ""
