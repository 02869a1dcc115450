"""The transactional ids of one host, used again and again by its tasks.

Brokers keep a transactional id and its producer id for days, so a query must not take new ones for
each batch. But an id is in use for longer than the task that opened a transaction with it: until
the driver has ended the transaction. If another task took the id in between, the coordinator would
abort the transaction.

The Python processes of a host therefore share numbered slots. A slot is a file that is locked while
a task writes, and holds the last batch it was used for. It is free if no process holds the lock and
a later batch has been decided, because the driver ends the transactions of a batch before it
decides the next one. The number of slots is about twice that of the tasks of a batch on this host,
however many processes Spark starts and ends. Each host has ids of its own, so a task that Spark has
given up never touches the id of another one.
"""

from __future__ import annotations

import hashlib
import os
import platform
import stat
import tempfile
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from pyspark_ottla.write.decisions import transactional_id

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]

# Far more than the tasks of two batches that one host runs.
SLOTS_MAX = 1_000_000
BOOT_ID_FILE = "/proc/sys/kernel/random/boot_id"

# Without a directory that can be shared, ids are the process's own; a forked process is another.
_own_hosts: dict[int, str] = {}
_own_slots: dict[tuple[int, str], int] = {}


def shared_directory() -> str | None:
    """A directory of this user and host only; None where there can be none."""
    if fcntl is None:
        return None
    path = os.path.join(tempfile.gettempdir(), f"pyspark-ottla-{os.getuid()}")
    try:
        os.makedirs(path, mode=0o700, exist_ok=True)
        found = os.lstat(path)
    except OSError:
        return None
    # Another user could have made it first, to read or change what is in it.
    safe = stat.S_ISDIR(found.st_mode) and found.st_uid == os.getuid() and not found.st_mode & 0o077
    return path if safe else None


def host_name(directory: str) -> str:
    """Twelve hexadecimal digits for this host; others after it was started again.

    A copy of the file system on another host (an image) is another host, too.
    """
    path = os.path.join(directory, "host")
    if not os.path.exists(path):
        whole = f"{path}-{uuid.uuid4().hex}"
        with open(whole, "x", encoding="ascii") as file:
            file.write(uuid.uuid4().hex)
        with suppress(FileExistsError):
            os.link(whole, path)  # unlike a rename, leaves the file of another process alone
        os.unlink(whole)
    with open(path, encoding="ascii") as file:
        parts = [file.read(), platform.node()]
    with suppress(OSError), open(BOOT_ID_FILE, encoding="ascii") as file:
        parts.append(file.read())
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:12]


@contextmanager
def claimed_id(name: str, batch_id: int, decided: int) -> Iterator[str]:
    """A transactional id that no other task uses, for a task of that batch.

    `name` is that of the write, and `decided` the last batch for which there is a decision (-1 if
    there is none).
    """
    directory = shared_directory()
    claimed = None if directory is None else _claim(directory, name, batch_id, decided)
    if claimed is None:
        yield _process_id(name)
        return
    identifier, descriptor = claimed
    try:
        yield identifier
    finally:
        os.close(descriptor)  # and unlocks it


def _claim(directory: str, name: str, batch_id: int, decided: int) -> tuple[str, int] | None:
    """The id of a free slot and its locked file; None where files cannot be locked or written.

    Writes of the same name to several clusters share the slots. As each of them notes a higher
    batch than it found, a slot is never taken too early. The addresses of the brokers are no
    part of the file's name: they may change while transactions of the query are in use.
    """
    key = hashlib.sha256(name.encode()).hexdigest()[:24]
    with suppress(OSError):
        host = host_name(directory)
        for slot in range(SLOTS_MAX):
            path = os.path.join(directory, f"{key}-{host}-{slot}")
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
            is_free = False
            try:
                is_free = _take(descriptor, batch_id, decided)
            finally:
                if not is_free:
                    os.close(descriptor)
            if is_free:
                return transactional_id(name, host, slot), descriptor
    return None


def _take(descriptor: int, batch_id: int, decided: int) -> bool:
    """Locks the slot and notes the batch in it, if it is free. Raises OSError."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    used = os.pread(descriptor, 32, 0)
    if used and not (used.isdigit() and int(used) < decided):
        return False
    os.ftruncate(descriptor, 0)
    os.pwrite(descriptor, b"%d" % batch_id, 0)
    return True


def _process_id(name: str) -> str:
    """An id that no task has used before."""
    process = os.getpid()
    host = _own_hosts.setdefault(process, uuid.uuid4().hex[:12])
    slot = _own_slots[process, name] = _own_slots.get((process, name), -1) + 1
    return transactional_id(name, host, slot)
