"""One record as a reader sees it, of whatever magic it was."""

from typing import NamedTuple

Headers = list[tuple[str, bytes | None]]

# The fields of a record that is written: (timestamp_ms, key, value, headers).
NewRecord = tuple[int, bytes | None, bytes | None, Headers | None]


class Record(NamedTuple):
    """`timestamp` is in ms since 1970, -1 where the format or the writer gave none.

    `timestamp_type` is 0 (CreateTime), 1 (LogAppendTime) or -1 (magic 0 has no timestamps).
    """

    offset: int
    timestamp: int
    timestamp_type: int
    key: bytes | None
    value: bytes | None
    headers: Headers
