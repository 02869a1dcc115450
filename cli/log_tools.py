"""`ottla log dump|verify|index-check`: log directories looked at offline, as JSON.

Each function writes to `out` and gives the exit code: 0 when all is well, 1 when something is
wrong with the files, 2 when they could not be read at all.
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from itertools import islice
from typing import TextIO

from ottla.storage.errors import CorruptFile
from ottla.storage.inspection.dump import dump_file
from ottla.storage.inspection.fsck import PartitionCheck, partition_directories

WELL, WRONG, UNREADABLE = 0, 1, 2


def dump(
    paths: Sequence[str | os.PathLike[str]],
    out: TextIO,
    *,
    records: bool = False,
    payload: bool = False,
    limit: int | None = None,
) -> int:
    """What is in each file: one JSON object a line, for each batch, index entry or producer.

    `records` adds the records of each batch, `payload` their keys, values and headers. `limit` is
    for the lines of each file.
    """
    code = WELL
    for path in map(os.path.abspath, paths):
        try:
            values = dump_file(path, records=records or payload, payload=payload)
            for value in islice(values, limit):
                if "damaged" in value or value.get("checksum_valid") is False:
                    code = max(code, WRONG)
                _write(out, {"file": path, **value})
        except CorruptFile as damage:
            code = max(code, WRONG)
            _write(out, {"file": path, "damaged": damage.reason})
        except (OSError, ValueError) as error:
            code = UNREADABLE
            _write(out, {"file": path, "error": str(error)})
    return code


def verify(paths: Sequence[str | os.PathLike[str]], out: TextIO, *, deep: bool = False) -> int:
    """Whether log directories, or directories of partitions, are sound: one JSON object for each.

    Checksums, offsets, indexes, snapshots, epochs; with `deep` every record is decompressed.
    """
    return _check(paths, out, deep=deep, indexes_only=False)


def index_check(paths: Sequence[str | os.PathLike[str]], out: TextIO) -> int:
    """Whether the indexes fit their logs: one JSON object for each partition."""
    return _check(paths, out, deep=False, indexes_only=True)


def _check(
    paths: Sequence[str | os.PathLike[str]], out: TextIO, *, deep: bool, indexes_only: bool
) -> int:
    code = WELL
    for path in map(os.path.abspath, paths):
        try:
            directories = partition_directories(path)
        except OSError as error:
            code = UNREADABLE
            _write(out, {"directory": path, "error": str(error)})
            continue
        for directory in directories:
            try:
                check = PartitionCheck(directory, deep=deep).run(indexes_only=indexes_only)
            except OSError as error:
                code = UNREADABLE
                _write(out, {"directory": directory, "error": str(error)})
                continue
            if check.problems:
                code = max(code, WRONG)
            _write(out, check.as_dict())
    return code


def _write(out: TextIO, value: dict[str, object]) -> None:
    out.write(json.dumps(value) + "\n")
