"""Kafka's small text files: offset and leader epoch checkpoints, clean shutdown, properties.

An offset checkpoint has a version (0), the number of entries, and one entry a line, `topic
partition offset`. A leader epoch checkpoint looks the same with `epoch start_offset` lines. All are
replaced atomically. Functions that write may run in worker threads, but not two at once for the
same file.
"""

from __future__ import annotations

import base64
from collections.abc import Iterable, Mapping

from ottla.storage.errors import CorruptFile
from ottla.storage.files.fs import FileSystem, read_file, replace_file

_VERSION = "0"
# 100,000 partitions with long names. A larger file is not a checkpoint.
_CHECKPOINT_BYTES_MAX = 64 << 20
_PROPERTIES_BYTES_MAX = 1 << 20

_INT32_MAX = (1 << 31) - 1
_INT64_MAX = (1 << 63) - 1
_DIGITS_MAX = 19

Offsets = dict[tuple[str, int], int]


def read_offset_checkpoint(fs: FileSystem, path: str) -> Offsets:
    """Offsets by (topic, partition); empty when there is no such file.

    Raises CorruptFile when the format is invalid, OSError when the file cannot be read.
    """
    found: Offsets = {}
    for line in _read_entries(fs, path):
        fields = line.split()
        if len(fields) != 3:
            raise CorruptFile(path, f"{line!r} is not `topic partition offset`")
        partition, offset = map(_number, fields[1:])
        if not (0 <= partition <= _INT32_MAX and 0 <= offset <= _INT64_MAX):
            raise CorruptFile(path, f"{line!r} is not `topic partition offset`")
        found[fields[0], partition] = offset
    return found


def _number(text: str) -> int:
    """A number as Kafka writes it, -1 for any other text: Python accepts `1_000`."""
    digits = text.isascii() and text.isdigit() and len(text) <= _DIGITS_MAX
    return int(text) if digits else -1


def write_offset_checkpoint(
    fs: FileSystem, path: str, offsets: Mapping[tuple[str, int], int]
) -> None:
    """Replace the file; durable when this returns. Raises OSError."""
    lines = [f"{topic} {partition} {offset}" for (topic, partition), offset in offsets.items()]
    _write_entries(fs, path, lines, sync=True)


def read_epoch_checkpoint(fs: FileSystem, path: str) -> list[tuple[int, int]]:
    """(leader epoch, start offset) in the order of the file; empty when there is no such file.

    Raises CorruptFile, OSError.
    """
    return _epochs(path, _read_entries(fs, path))


def parse_epoch_checkpoint(path: str, content: bytes) -> list[tuple[int, int]]:
    """As `read_epoch_checkpoint`, of a content that is in memory. Raises CorruptFile."""
    return _epochs(path, _entries(path, content))


def _epochs(path: str, lines: list[str]) -> list[tuple[int, int]]:
    found = []
    for line in lines:
        numbers = list(map(_number, line.split()))
        if len(numbers) != 2 or not (
            0 <= numbers[0] <= _INT32_MAX and 0 <= numbers[1] <= _INT64_MAX
        ):
            raise CorruptFile(path, f"{line!r} is not `epoch start_offset`")
        found.append((numbers[0], numbers[1]))
    return found


def write_epoch_checkpoint(
    fs: FileSystem, path: str, entries: Iterable[tuple[int, int]], *, sync: bool
) -> None:
    """Replace the file; durable when this returns only with `sync`. Raises OSError."""
    _write_entries(fs, path, [f"{epoch} {start}" for epoch, start in entries], sync=sync)


def _write_entries(fs: FileSystem, path: str, lines: list[str], *, sync: bool) -> None:
    text = "".join(f"{line}\n" for line in (_VERSION, str(len(lines)), *lines))
    replace_file(fs, path, text.encode(), sync=sync)


def _read_entries(fs: FileSystem, path: str) -> list[str]:
    try:
        content = read_file(fs, path, _CHECKPOINT_BYTES_MAX)
    except FileNotFoundError:
        return []
    return _entries(path, content)


def _entries(path: str, content: bytes) -> list[str]:
    # Kafka 3.9 creates the checkpoint of the cleaner as an empty file.
    if not content:
        return []
    if not content.endswith(b"\n"):
        raise CorruptFile(path, "the file is truncated")
    try:
        lines = content.decode().splitlines()
    except UnicodeDecodeError:
        raise CorruptFile(path, "the file is not text") from None
    if lines[0].strip() != _VERSION:
        raise CorruptFile(path, f"unknown version {lines[0]!r}")
    entries = [line for line in lines[2:] if line.strip()]
    if len(lines) < 2 or _number(lines[1].strip()) != len(entries):
        raise CorruptFile(path, f"{len(entries)} entries do not match the count in the second line")
    return entries


def read_properties(fs: FileSystem, path: str) -> dict[str, str] | None:
    """A Java properties file of plain `name=value` lines, or None when there is no such file."""
    try:
        content = read_file(fs, path, _PROPERTIES_BYTES_MAX)
    except FileNotFoundError:
        return None
    found = {}
    for line in content.decode("latin-1").splitlines():
        text = line.strip()
        if not text or text[0] in "#!":
            continue
        name, sign, value = text.partition("=")
        if not sign:
            raise CorruptFile(path, f"{line[:60]!r} is not `name=value`")
        # Java escapes `:`, `=`, `#` and `!` in values with a backslash.
        found[name.strip()] = value.strip().replace("\\", "")
    return found


def write_properties(fs: FileSystem, path: str, values: Mapping[str, str]) -> None:
    """Replace the file; durable when this returns. Raises OSError."""
    text = "#\n" + "".join(f"{name}={value}\n" for name, value in values.items())
    replace_file(fs, path, text.encode("latin-1"), sync=True)


def read_partition_metadata(fs: FileSystem, path: str) -> bytes | None:
    """The topic id (16 bytes) of `partition.metadata`, or None when there is no such file.

    Raises CorruptFile, OSError.
    """
    try:
        content = read_file(fs, path, _PROPERTIES_BYTES_MAX)
    except FileNotFoundError:
        return None
    fields = {}
    for line in content.decode("latin-1").splitlines():
        name, _, value = line.partition(":")
        fields[name.strip()] = value.strip()
    if fields.get("version") != "0":
        raise CorruptFile(path, f"unknown version {fields.get('version')!r}")
    text = fields.get("topic_id", "") + "=="
    try:
        topic_id = base64.b64decode(text, altchars=b"-_", validate=True)
    except ValueError:  # also of a text that is not ASCII
        topic_id = b""
    if len(topic_id) != 16 or not any(topic_id):
        raise CorruptFile(path, f"invalid topic id {fields.get('topic_id')!r}")
    return topic_id


def write_partition_metadata(fs: FileSystem, path: str, topic_id: bytes) -> None:
    """Replace the file. Durable after the next flush: a lost file is written again."""
    text = base64.urlsafe_b64encode(topic_id).rstrip(b"=").decode()
    replace_file(fs, path, f"version: 0\ntopic_id: {text}".encode(), sync=False)


def read_clean_shutdown(fs: FileSystem, path: str) -> int | None:
    """The broker epoch of the clean shutdown file, -1 if it has none, None without the file.

    As in Kafka, the existence of the file marks a clean shutdown, whatever its content. A directory
    of that name, or a large file, was not written by a broker: as if there were none.
    """
    import json

    try:
        content = read_file(fs, path, _PROPERTIES_BYTES_MAX)
    except (FileNotFoundError, CorruptFile):
        return None
    try:
        epoch = json.loads(content)["brokerEpoch"]
    except (ValueError, TypeError, KeyError, RecursionError):
        return -1
    return epoch if isinstance(epoch, int) else -1


def write_clean_shutdown(fs: FileSystem, path: str, broker_epoch: int) -> None:
    """Write the clean shutdown file; durable when this returns. Raises OSError."""
    text = f'{{"version":0,"brokerEpoch":{broker_epoch}}}'
    replace_file(fs, path, text.encode(), sync=True)
