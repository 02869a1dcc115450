"""The results of appends and reads."""

from __future__ import annotations

from typing import NamedTuple

from ottla.storage.files.open_files import FileSlice


class AppendInfo:
    """The result of an append (Kafka: `LogAppendInfo`).

    With `duplicate` nothing was written: the batch is in the log already, at these offsets.
    `log_append_time` in ms is -1 unless the topic uses LogAppendTime; a duplicate has the time of
    the first append. `bytes` is the number of bytes written, after any recompression.
    """

    __slots__ = (
        "bytes",
        "duplicate",
        "first_offset",
        "last_offset",
        "log_append_time",
        "log_start_offset",
        "max_timestamp",
    )

    def __init__(
        self,
        first_offset: int,
        last_offset: int,
        max_timestamp: int,
        log_append_time: int,
        log_start_offset: int,
        size: int,
        duplicate: bool = False,
    ) -> None:
        self.first_offset = first_offset
        self.last_offset = last_offset
        self.max_timestamp = max_timestamp
        self.log_append_time = log_append_time
        self.log_start_offset = log_start_offset
        self.bytes = size
        self.duplicate = duplicate

    def __repr__(self) -> str:
        fields = ", ".join(f"{name}={getattr(self, name)}" for name in self.__slots__)
        return f"AppendInfo({fields})"


class ReadInfo:
    """The result of a read (Kafka: `FetchDataInfo`).

    `slice` is None when there is no batch below the upper bound. Its first batch contains the
    requested offset, or the next existing one, and may begin before it: `first_batch_base_offset`.
    The aborted transactions, (producer id, first offset) in order of first offset, are filled in
    with `read_committed` only.
    """

    __slots__ = ("aborted_transactions", "first_batch_base_offset", "slice")

    def __init__(self, first_batch_base_offset: int) -> None:
        self.slice: FileSlice | None = None
        self.first_batch_base_offset = first_batch_base_offset
        self.aborted_transactions: list[tuple[int, int]] = []

    def __repr__(self) -> str:
        fields = ", ".join(f"{name}={getattr(self, name)}" for name in self.__slots__)
        return f"ReadInfo({fields})"


class RemoteLogState(NamedTuple):
    """State of records that a replica never had: from the store, up to where it begins."""

    #: (leader epoch, start offset), ascending.
    epochs: list[tuple[int, int]]
    #: The content of a producer snapshot; None if there is none.
    producer_snapshot: bytes | None
    now_ms: int
