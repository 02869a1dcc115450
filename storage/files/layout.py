"""Formatting and parsing the names of files and directories. The names are those of Kafka 3.9.

A log directory (`log.dirs`) contains a few files and one directory per partition::

    meta.properties  .lock  .kafka_cleanshutdown
    recovery-point-offset-checkpoint  replication-offset-checkpoint
    log-start-offset-checkpoint       cleaner-offset-checkpoint
    orders-0/                         a partition
    orders-0.<32 hex digits>-delete/  being deleted
    orders-0.<32 hex digits>-future/  a copy that is being moved from another log directory
    orders-0.<32 hex digits>-stray/   on disk, but no longer a replica of this broker

A partition directory contains segments, named after their base offset in 20 digits, and two small
text files::

    00000000000000000000.log        record batches without gaps, in the format of the wire protocol
    00000000000000000000.index      offset -> position
    00000000000000000000.timeindex  timestamp -> offset
    00000000000000000000.txnindex   aborted transactions (only if there are any)
    00000000000000000042.snapshot   producer state as of offset 42 (exclusive)
    leader-epoch-checkpoint         leader epoch -> first offset
    partition.metadata              topic id

Suffixes of segment files: `.deleted` is deleted after a delay, compaction is writing `.cleaned`,
`.swap` is complete and replaces the segments with the same offsets.
"""

from __future__ import annotations

from collections.abc import Callable

LOG_SUFFIX = ".log"
INDEX_SUFFIX = ".index"
TIME_INDEX_SUFFIX = ".timeindex"
TXN_INDEX_SUFFIX = ".txnindex"
SNAPSHOT_SUFFIX = ".snapshot"
SEGMENT_SUFFIXES = (LOG_SUFFIX, INDEX_SUFFIX, TIME_INDEX_SUFFIX, TXN_INDEX_SUFFIX)

DELETED_SUFFIX = ".deleted"
CLEANED_SUFFIX = ".cleaned"
SWAP_SUFFIX = ".swap"

DELETE_DIRECTORY_SUFFIX = "-delete"
FUTURE_DIRECTORY_SUFFIX = "-future"
STRAY_DIRECTORY_SUFFIX = "-stray"

META_PROPERTIES = "meta.properties"
LOCK_FILE = ".lock"
CLEAN_SHUTDOWN_FILE = ".kafka_cleanshutdown"
RECOVERY_POINT_CHECKPOINT = "recovery-point-offset-checkpoint"
HIGH_WATERMARK_CHECKPOINT = "replication-offset-checkpoint"
LOG_START_CHECKPOINT = "log-start-offset-checkpoint"
CLEANER_CHECKPOINT = "cleaner-offset-checkpoint"
LEADER_EPOCH_CHECKPOINT = "leader-epoch-checkpoint"
PARTITION_METADATA = "partition.metadata"

# Directories in a log directory that are not partitions: Kafka's remote index cache, and one that
# file systems create.
NOT_PARTITIONS = frozenset({"remote-log-index-cache", "lost+found"})

_OFFSET_DIGITS = 20
_OFFSET_MAX = (1 << 63) - 1
_UNIQUE_DIGITS = 32
# A file name may have 255 bytes; the suffix of a directory takes up to 42 of them.
_NAME_LENGTH_MAX = 255


def segment_file_name(base_offset: int, suffix: str) -> str:
    """`00000000000000000042.log`"""
    return f"{base_offset:020d}{suffix}"


def offset_of_file(name: str) -> int | None:
    """The offset before the first dot, or None when the name does not start with one.

    A number that no offset can have is none: the file is not of a log.
    """
    digits, dot, _ = name.partition(".")
    if not dot or len(digits) != _OFFSET_DIGITS or not (digits.isascii() and digits.isdigit()):
        return None
    offset = int(digits)
    return offset if offset <= _OFFSET_MAX else None


def partition_directory_name(topic: str, partition: int) -> str:
    """`orders-0`"""
    return f"{topic}-{partition}"


def unique_directory_name(topic: str, partition: int, unique: str, suffix: str) -> str:
    """`orders-0.<unique><suffix>`. A long topic name is truncated to the limit of file systems."""
    if len(unique) != _UNIQUE_DIGITS:
        raise ValueError(f"{unique!r} does not have {_UNIQUE_DIGITS} digits")
    tail = f"-{partition}.{unique}{suffix}"
    return topic[: _NAME_LENGTH_MAX - len(tail)] + tail


def parse_partition_directory(name: str) -> tuple[str, int, str] | None:
    """(topic, partition, suffix) of a partition directory; the suffix is empty for a live one.

    None when the name is not that of a partition. A topic name that `unique_directory_name` has
    truncated stays truncated, as in Kafka: after a restart the copy of a topic with a name of more
    than 211 characters is not recognised.
    """
    if name in NOT_PARTITIONS:
        return None
    suffix = ""
    for candidate in (DELETE_DIRECTORY_SUFFIX, FUTURE_DIRECTORY_SUFFIX, STRAY_DIRECTORY_SUFFIX):
        stem, dot, unique = name.removesuffix(candidate).rpartition(".")
        if name.endswith(candidate) and dot and len(unique) == _UNIQUE_DIGITS:
            name, suffix = stem, candidate
            break
    topic, dash, digits = name.rpartition("-")
    if not topic or not dash or not (digits.isascii() and digits.isdigit()):
        return None
    if digits != str(int(digits)):  # `t-00` is not the log of `t-0`, which may be there as well
        return None
    return topic, int(digits), suffix


# Returns the 32 hex digits of a directory name. A parameter so that tests are reproducible.
UniqueName = Callable[[], str]
