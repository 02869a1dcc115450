"""`ottla log dump|verify|index-check`: inspect log directories offline, as JSON.

Each function writes to `out` and returns the exit code: 0 if the files are valid, 1 if one is
damaged, 2 if one could not be read.
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

VALID, DAMAGED, UNREADABLE = 0, 1, 2


def dump(
    paths: Sequence[str | os.PathLike[str]],
    out: TextIO,
    *,
    records: bool = False,
    payload: bool = False,
    limit: int | None = None,
) -> int:
    """The content of each file: one JSON object a line, for each batch, index entry or producer.

    `records` adds the records of each batch, `payload` their keys, values and headers. `limit`
    is the maximum number of lines of each file.
    """
    code = VALID
    for path in map(os.path.abspath, paths):
        try:
            if os.path.isdir(path):
                raise ValueError(
                    "it is a directory: name its files, or check it with `ottla log verify`"
                )
            values = dump_file(path, records=records or payload, payload=payload)
            for value in islice(values, limit):
                if "damaged" in value or value.get("checksum_valid") is False:
                    code = max(code, DAMAGED)
                _write(out, {"file": path, **value})
        except CorruptFile as damage:
            code = max(code, DAMAGED)
            _write(out, {"file": path, "damaged": damage.reason})
        except (OSError, ValueError) as error:
            code = UNREADABLE
            _write(out, {"file": path, "error": str(error)})
    return code


def verify(paths: Sequence[str | os.PathLike[str]], out: TextIO, *, deep: bool = False) -> int:
    """Verifies log directories or partition directories: one JSON object for each partition.

    Checks checksums, offsets, indexes, snapshots, epochs; with `deep` every record is decompressed.
    """
    return _check(paths, out, deep=deep, indexes_only=False)


def index_check(paths: Sequence[str | os.PathLike[str]], out: TextIO) -> int:
    """Verifies that indexes match their logs: one JSON object for each partition."""
    return _check(paths, out, deep=False, indexes_only=True)


def _check(
    paths: Sequence[str | os.PathLike[str]], out: TextIO, *, deep: bool, indexes_only: bool
) -> int:
    code = VALID
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
                code = max(code, DAMAGED)
            _write(out, check.as_dict())
    return code


def _write(out: TextIO, value: dict[str, object]) -> None:
    out.write(json.dumps(value) + "\n")
