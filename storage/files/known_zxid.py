"""The newest zxid that a broker has seen, in a file of each log directory.

Everything that is written to ZooKeeper has a zxid of its own, and they rise. So a registration with
one that is not above all that the broker has seen means that the tree is an older copy of itself:
restored from a backup, or that of another host. What it says about logs is not true any more then.

`ottla-zookeeper-zxid` is one line of JSON. Kafka ignores it. `tree` identifies the tree by the
zxid and the time at which its cluster id was created: a copy of the directory of ZooKeeper has the
same, a tree that was written anew, as by a migration to another ensemble, has others.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterable

from ottla.storage.errors import CorruptFile
from ottla.storage.files.fs import FileSystem, read_file, replace_file

logger = logging.getLogger("ottla.storage")

KNOWN_ZXID_FILE = "ottla-zookeeper-zxid"

# A line of JSON with two numbers and a short text.
_BYTES_MAX = 4 << 10


def read_known_zxid(fs: FileSystem, directories: Iterable[str], tree: str) -> int:
    """The newest zxid in the files of `directories` for this tree; -1 if there is none.

    A file that cannot be read is ignored with a log line.
    """
    return max((_read(fs, directory, tree) for directory in directories), default=-1)


def _read(fs: FileSystem, directory: str, tree: str) -> int:
    path = f"{directory}/{KNOWN_ZXID_FILE}"
    try:
        fields = json.loads(read_file(fs, path, _BYTES_MAX))
        return int(fields["zxid"]) if fields["tree"] == tree else -1
    except FileNotFoundError:
        return -1
    except (OSError, CorruptFile, ValueError, KeyError, TypeError) as error:
        logger.warning("Ignoring %s, which the next registration replaces: %s", path, error)
        return -1


def write_known_zxid(
    fs: FileSystem, directory: str, tree: str, zxid: int, *, sync: bool = True
) -> None:
    """Replace the file of one directory, durably with `sync`. Raises OSError."""
    fields = {"version": 1, "tree": tree, "zxid": zxid}
    content = json.dumps(fields).encode() + b"\n"
    replace_file(fs, f"{directory}/{KNOWN_ZXID_FILE}", content, sync=sync)
