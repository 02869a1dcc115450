"""The decoding of a task: batches of bytes in, batches of the query's columns out.

Bad records by mode: `failfast` raises at the first one, `dropmalformed` leaves them out and logs
how many, `permissive` keeps them with null and with why in the column `_corrupt`.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from ottla.protocol.topics import TopicPartition
from pyspark_ottla.decode import builders
from pyspark_ottla.decode.bad_record import BadRecordError, BadValueError
from pyspark_ottla.decode.field_decoder import FieldDecoder, field_decoder
from pyspark_ottla.decode.resolved import CORRUPT, ResolvedDecoding
from pyspark_ottla.errors import ConnectorError
from pyspark_ottla.offsets import describe
from pyspark_ottla.options.decode_options import DROP_MALFORMED, FAIL_FAST
from pyspark_ottla.read.arrays import numbers, truths
from pyspark_ottla.read.task_metrics import TaskMetrics
from pyspark_ottla.warnings_on_stderr import spark_logger

log = spark_logger()

# pyarrow has no type annotations; the aliases name its classes.
RecordBatch = Any
Array = Any
Schema = Any

# Bad records whose reasons are logged, one line each; the rest is in the count.
LOGGED_MAX = 5
BYTES_COLUMNS = ("key", "value")


class Decoded(NamedTuple):
    """A column, and what is wrong with those of its rows that are null for that."""

    column: Array
    bad: dict[int, BadRecordError]


def decode_column(decoder: FieldDecoder, contents: list[bytes | None]) -> Decoded:
    """Decodes each content; null stays null."""
    bad: dict[int, BadRecordError] = {}
    values: list[Any] = []
    for row, content in enumerate(contents):
        value = None
        if content is not None:
            try:
                value = decoder.parse(content)
            except BadRecordError as error:
                bad[row] = error
        values.append(value)
    try:
        return Decoded(decoder.build(values), bad)
    except builders.VALUE_ERRORS:
        pass
    for row, value in enumerate(values):  # which of them do not fit
        try:
            decoder.build([value])
        except builders.VALUE_ERRORS as error:
            bad[row] = BadRecordError(f"does not fit the columns: {_words(error)}")
            values[row] = None
    return Decoded(decoder.build(values), bad)


def _words(error: Exception) -> str:
    return str(error) if isinstance(error, BadValueError) else f"{type(error).__name__} {error}"


class TaskDecoding:
    """Decodes the batches of one partition; counts what is wrong."""

    def __init__(
        self,
        resolved: ResolvedDecoding,
        schema: Schema,
        partition: TopicPartition,
        metrics: TaskMetrics | None = None,
    ) -> None:
        self._metrics = metrics or TaskMetrics()
        self._schema = schema
        self._partition = partition
        self._mode = resolved.mode
        self._formats = {part.field: part.options.format for part in resolved.fields}
        names = set(schema.names)
        self._decoders = {
            part.field: field_decoder(part, schema.field(part.field).type)
            for part in resolved.fields
            if part.field in names
        }
        self._rows = 0
        self._first_reasons: list[str] = []

    def batches(self, raw: Iterable[RecordBatch]) -> Iterator[RecordBatch]:
        """What the query reads of each batch; logs at the end what was left out."""
        try:
            for batch in raw:
                begin = time.perf_counter()
                decoded = self._decode(batch)
                self._metrics.decode_seconds += time.perf_counter() - begin
                yield decoded
        finally:
            self._report()

    def _decode(self, batch: RecordBatch) -> RecordBatch:
        self._rows += batch.num_rows
        columns: dict[str, Array] = {}
        bad: dict[int, tuple[str, BadRecordError]] = {}
        for field, decoder in self._decoders.items():
            found = decode_column(decoder, batch.column(field).to_pylist())
            columns[field] = found.column
            for row, error in found.bad.items():
                bad.setdefault(row, (field, error))
        if bad:
            self._check(batch, bad)
        arrays = [
            self._corrupt(batch, bad, field.type)
            if field.name == CORRUPT
            else columns.get(field.name, batch.column(field.name))
            if field.name in columns
            else batch.column(field.name)
            for field in self._schema
        ]
        decoded = pa.RecordBatch.from_arrays(arrays, schema=self._schema)
        if bad and self._mode == DROP_MALFORMED:
            good = np.ones(batch.num_rows, np.bool_)
            good[list(bad)] = False
            return decoded.filter(truths(good))
        return decoded

    def _check(self, batch: RecordBatch, bad: dict[int, tuple[str, BadRecordError]]) -> None:
        """Raises for the first bad record if it is to fail the query."""
        self._metrics.bad_records += len(bad)
        for row in sorted(bad):
            if self._mode != FAIL_FAST and len(self._first_reasons) >= LOGGED_MAX:
                return
            field, error = bad[row]
            sentence = self._sentence(batch, row, field, error)
            if self._mode == FAIL_FAST:
                hint = (
                    "Set mode to permissive to keep such records with the column _corrupt, or to "
                    "dropmalformed to leave them out"
                )
                both = f"{error.hint}. {hint}" if error.hint else hint
                raise ConnectorError(error.condition, sentence, both)
            self._first_reasons.append(sentence)

    def _sentence(self, batch: RecordBatch, row: int, field: str, error: BadRecordError) -> str:
        offset = batch.column("offset")[row].as_py()
        return (
            f"The {field} ({self._formats[field]}) of the record at offset {offset} of "
            f"{describe(self._partition)} {error.reason}"
        )

    def _corrupt(
        self, batch: RecordBatch, bad: dict[int, tuple[str, BadRecordError]], kind: Any
    ) -> Array:
        count = batch.num_rows
        if not bad:
            return pa.nulls(count, kind)
        reasons: list[str | None] = [None] * count
        for row, (field, error) in bad.items():
            reasons[row] = f"the {field} {error.reason}"
        good = np.fromiter((reason is None for reason in reasons), np.bool_, count)
        raw = {name: self._only_bad(batch, name, good) for name in BYTES_COLUMNS}
        children = {"reason": builders.texts(kind.field("reason").type)(reasons), **raw}
        validity = numbers(np.zeros(count, np.int8), pa.int8(), good).buffers()[0]
        return pa.Array.from_buffers(
            kind, count, [validity], children=[children[part.name] for part in kind]
        )

    @staticmethod
    def _only_bad(batch: RecordBatch, name: str, good: Any) -> Array:
        rows = np.arange(len(good), dtype=np.int32)
        column = batch.column(name)
        return column.take(numbers(rows, pa.int32(), good)).cast(pa.binary())

    def _report(self) -> None:
        if not self._metrics.bad_records or self._mode == FAIL_FAST:
            return
        for sentence in self._first_reasons:
            log.warning("%s", sentence)
        log.warning(
            "%s %d of %d records of %s that could not be decoded",
            "Dropped" if self._mode == DROP_MALFORMED else "Kept in the column _corrupt",
            self._metrics.bad_records,
            self._rows,
            describe(self._partition),
        )
