"""Records that were taken out of service without being deleted, and why.

Whatever deletes, renames, truncates or skips records without the request of a client or an operator
needs two independent facts that agree (docs/operations.md). Where they do not agree, the
bytes are set aside: they stay on the same disk, no timer deletes them, and `ottla log set-aside`
lists them, takes them back and discards them. There are two forms, and Kafka ignores both:

- a whole log is renamed to `orders-0.<32 hex digits>-stray`, with a note in `set-aside.json`;
- a part of a log is a file beside its segments, with the reason and the suffix in its name:
  `00000000000000000042.log.after-gap.set-aside`.
"""

from __future__ import annotations

import errno
import json
import re
from collections.abc import Iterable
from enum import StrEnum
from typing import NamedTuple

from ottla.storage.errors import CorruptFile
from ottla.storage.files.fs import FileSystem, read_file, replace_file
from ottla.storage.files.layout import (
    STRAY_DIRECTORY_SUFFIX,
    offset_of_file,
    parse_partition_directory,
)

NOTE_FILE = "set-aside.json"
SET_ASIDE_SUFFIX = ".set-aside"

# A note is written by this module: a line of JSON.
_NOTE_BYTES_MAX = 64 << 10
# What a note says becomes the name of a directory again.
_TOPIC_NAME = re.compile(r"[a-zA-Z0-9._-]{1,249}")
# Errors of a note that another hand has put there or made unreadable; the disk is well.
_NO_NOTE = frozenset((errno.EISDIR, errno.ENOTDIR, errno.EACCES, errno.EPERM, errno.ELOOP))
# A name is tried with numbers while it is taken: each is a file that an earlier damage left.
_SAME_NAME_MAX = 1000


class Reason(StrEnum):
    """Why records were set aside. The values are in file names and in `set-aside.json`."""

    #: The partition is assigned to other brokers.
    NOT_ASSIGNED = "not-assigned"
    #: The topic is not in ZooKeeper.
    TOPIC_GONE = "topic-gone"
    #: A topic of the same name was created with another topic id.
    TOPIC_RECREATED = "topic-recreated"
    #: Another log directory has the partition, too.
    SECOND_COPY = "second-copy"
    #: A copy for another log directory (`-future`) that was not complete.
    INCOMPLETE_MOVE = "incomplete-move"
    #: Offsets before it are missing.
    AFTER_GAP = "after-gap"
    #: It begins below the end of the records before it.
    OVERLAP = "overlap"
    #: Bytes that are damaged, with valid records behind the damage.
    DAMAGED = "damaged"
    #: A checkpoint says that the log starts behind them.
    BELOW_LOG_START = "below-log-start"
    #: Truncated although they were below the high watermark.
    TRUNCATED_COMMITTED = "truncated-committed"
    #: `ottla log set-aside restore` put another log into its place.
    REPLACED = "replaced"
    #: A `-stray` directory without a note: of Kafka or an earlier version.
    UNKNOWN = "unknown"


class Note(NamedTuple):
    """The facts about a whole log that is set aside.

    `needs_attention`: the facts did not agree, so it may be the only copy of its records. False for
    a log that two independent facts say is not needed; it is kept all the same.
    """

    reason: Reason
    #: One sentence for the operator, with the facts that disagreed.
    detail: str
    needs_attention: bool = True
    set_aside_ms: int = -1


class SetAside(NamedTuple):
    """A whole log or a part of one. `path` is its directory or file."""

    path: str
    topic: str
    partition: int
    reason: Reason
    detail: str
    needs_attention: bool
    set_aside_ms: int
    #: Of its first record, as its name says; None for a whole log, and a file without an offset.
    base_offset: int | None

    @property
    def is_log(self) -> bool:
        """Whether it is a whole log: a directory."""
        return not self.path.endswith(SET_ASIDE_SUFFIX)


def write_note(
    fs: FileSystem, directory: str, note: Note, log: tuple[str, int] | None = None
) -> None:
    """Write the note into a directory that is renamed next. Durable. Raises OSError.

    `log` is (topic, partition), as the name of the directory has it if it is not given: the new
    name may have a part of a long topic name only.
    """
    if log is None:
        parsed = parse_partition_directory(directory.rpartition("/")[2])
        log = None if parsed is None or parsed[2] else parsed[:2]
    fields = {
        "version": 1,
        **({} if log is None else {"topic": log[0], "partition": log[1]}),
        "reason": note.reason.value,
        "detail": note.detail,
        "needs_attention": note.needs_attention,
        "set_aside_ms": note.set_aside_ms,
    }
    content = json.dumps(fields).encode() + b"\n"
    replace_file(fs, f"{directory}/{NOTE_FILE}", content, sync=True)


def read_note(fs: FileSystem, directory: str) -> Note:
    """The note of a `-stray` directory; one with UNKNOWN if there is none that can be read.

    Raises OSError.
    """
    return _read_note(fs, directory)[0]


def _read_note(fs: FileSystem, directory: str) -> tuple[Note, object, object]:
    """The note with the topic and the partition, None where it has none."""
    try:
        fields = json.loads(read_file(fs, f"{directory}/{NOTE_FILE}", _NOTE_BYTES_MAX))
        note = Note(
            Reason(fields["reason"]),
            str(fields["detail"]),
            bool(fields["needs_attention"]),
            int(fields["set_aside_ms"]),
        )
        return note, fields.get("topic"), fields.get("partition")
    except FileNotFoundError:
        detail = "Kafka or an earlier version of Ottla renamed it"
    except CorruptFile as damage:
        detail = f"its {NOTE_FILE} cannot be read: {damage.reason}"
    except OSError as error:
        if error.errno not in _NO_NOTE:
            raise
        detail = f"its {NOTE_FILE} cannot be read: {error.strerror}"
    except (ValueError, KeyError, TypeError, RecursionError):
        detail = f"its {NOTE_FILE} cannot be read"
    return Note(Reason.UNKNOWN, detail), None, None


def aside_name(taken: Iterable[str], name: str, reason: Reason) -> str:
    """`<name>.<reason>.set-aside`, with a number if the name is one of `taken`. Raises OSError."""
    names = set(taken)
    candidate = f"{name}.{reason}{SET_ASIDE_SUFFIX}"
    for number in range(2, _SAME_NAME_MAX):
        if candidate not in names:
            return candidate
        candidate = f"{name}.{reason}.{number}{SET_ASIDE_SUFFIX}"
    raise OSError(f"{name} was set aside {_SAME_NAME_MAX} times; discard some of them")


def set_file_aside(fs: FileSystem, path: str, reason: Reason) -> str:
    """Rename a file of a log. Returns the new path. Not durable: the caller syncs the directory.

    Raises OSError.
    """
    directory, _, name = path.rpartition("/")
    target = f"{directory}/{aside_name(fs.list_files(directory), name, reason)}"
    fs.replace(path, target)
    return target


def of_directory(fs: FileSystem, path: str) -> SetAside | None:
    """A whole log in a `-stray` directory; None for any other directory. Raises OSError."""
    parsed = parse_partition_directory(path.rpartition("/")[2])
    if parsed is None or parsed[2] != STRAY_DIRECTORY_SUFFIX:
        return None
    note, noted, partition = _read_note(fs, path)
    topic = parsed[0]
    # The name of the directory may have the first part of a long topic name only.
    is_right = isinstance(noted, str) and noted.startswith(topic) and partition == parsed[1]
    if is_right and _TOPIC_NAME.fullmatch(str(noted)):
        topic = str(noted)
    return SetAside(
        path,
        topic,
        parsed[1],
        note.reason,
        note.detail,
        needs_attention=note.needs_attention,
        set_aside_ms=note.set_aside_ms,
        base_offset=None,
    )


def of_files(names: Iterable[str], directory: str, topic: str, partition: int) -> list[SetAside]:
    """The parts that are set aside among the file names of a partition directory."""
    found = []
    for name in sorted(names):
        if not name.endswith(SET_ASIDE_SUFFIX):
            continue
        found.append(
            SetAside(
                f"{directory}/{name}",
                topic,
                partition,
                reason_of_file(name),
                "",
                needs_attention=True,
                set_aside_ms=-1,
                base_offset=offset_of_file(name),
            )
        )
    return found


def original_name(name: str) -> str:
    """The name that a file had before it was set aside; `name` for another file."""
    if not name.endswith(SET_ASIDE_SUFFIX):
        return name
    words = name.removesuffix(SET_ASIDE_SUFFIX).split(".")
    if len(words) > 2 and words[-1].isdigit():
        words.pop()
    if len(words) > 1 and words[-1] in set(Reason):
        words.pop()
    return original_name(".".join(words))


def reason_of_file(name: str) -> Reason:
    """The reason in the name of a file that is set aside."""
    words = name.removesuffix(SET_ASIDE_SUFFIX).split(".")
    for word in reversed(words):
        try:
            return Reason(word)
        except ValueError:
            continue
    return Reason.UNKNOWN
