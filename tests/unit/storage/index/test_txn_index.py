"""The index of aborted transactions."""

from collections.abc import Iterator

import pytest

from ottla.storage.errors import CorruptIndex
from ottla.storage.files.fs import READ_ONLY
from ottla.storage.index.txn_index import AbortedTransaction, TransactionIndex
from tests.doubles.memory_file_system import MemoryFileSystem

PATH = "/d/00000000000000000000.txnindex"
A = AbortedTransaction(7, 0, 10, 5)
B = AbortedTransaction(8, 5, 20, 21)
C = AbortedTransaction(7, 30, 40, 41)
LOG_BYTES = 10_000


@pytest.fixture
def fs() -> MemoryFileSystem:
    system = MemoryFileSystem()
    system.make_directory("/d")
    return system


def filled(fs: MemoryFileSystem) -> TransactionIndex:
    index = TransactionIndex(fs, PATH, 0, 0, LOG_BYTES)
    for entry in (A, B, C):
        index.append(entry)
    return index


def test_there_is_no_file_before_the_first_entry(fs: MemoryFileSystem) -> None:
    index = TransactionIndex(fs, PATH, 0, 0, LOG_BYTES)
    assert not index.exists
    assert index.entries() == []
    assert not fs.exists(PATH)


def test_entries_are_written_as_kafka_writes_them(fs: MemoryFileSystem) -> None:
    index = TransactionIndex(fs, PATH, 0, 0, LOG_BYTES)
    index.append(B)
    assert fs.content(PATH).hex() == "0000" + "".join(f"{number:016x}" for number in (8, 5, 20, 21))


def test_entries_come_back(fs: MemoryFileSystem) -> None:
    filled(fs)
    again = TransactionIndex(fs, PATH, 0, 3 * 34, LOG_BYTES)
    assert again.entries() == [A, B, C]
    with pytest.raises(ValueError, match="does not come after"):
        again.append(A)


def test_collecting_what_touches_a_range(fs: MemoryFileSystem) -> None:
    index = filled(fs)
    found: list[AbortedTransaction] = []
    assert index.collect(0, 5, found) is True  # after A every later one begins behind offset 5
    assert found == [A]
    found = []
    assert index.collect(11, 35, found) is True
    assert found == [B, C]
    found = []
    assert index.collect(0, 100, found) is False
    assert found == [A, B, C]


def test_a_stable_offset_above_the_marker_hides_no_later_transaction(
    fs: MemoryFileSystem,
) -> None:
    """Kafka writes such entries for batches that a follower fetched at once."""
    index = TransactionIndex(fs, PATH, 0, 0, LOG_BYTES)
    first, second = AbortedTransaction(7, 0, 4, 25), AbortedTransaction(7, 13, 22, 25)
    index.append_all([first, second])
    found: list[AbortedTransaction] = []
    index.collect(0, 25, found)
    assert found == [first, second]
    found = []
    assert index.collect(0, 5, found) is True
    assert found == [first]


class CountedEntries(list[AbortedTransaction]):
    """Counts how many of them are read."""

    reads = 0

    def __getitem__(self, index: int) -> AbortedTransaction:  # type: ignore[override]
        self.reads += 1
        return super().__getitem__(index)

    def __iter__(self) -> Iterator[AbortedTransaction]:
        for index in range(len(self)):
            yield self[index]


def test_a_reader_at_the_end_does_not_pass_all_transactions(fs: MemoryFileSystem) -> None:
    """Each fetch of each read_committed consumer collects, on the loop."""
    index = TransactionIndex(fs, PATH, 0, 0, LOG_BYTES)
    index.append_all([AbortedTransaction(7, 2 * n, 2 * n + 1, 2 * n + 2) for n in range(10_000)])
    index._entries = entries = CountedEntries(index.entries())
    found: list[AbortedTransaction] = []
    assert index.collect(19_997, 30_000, found) is False
    assert [entry.first_offset for entry in found] == [19_996, 19_998]
    assert entries.reads < 20


def test_truncation(fs: MemoryFileSystem) -> None:
    index = filled(fs)
    index.truncate_to(20)
    assert index.entries() == [A]
    assert TransactionIndex(fs, PATH, 0, 34, LOG_BYTES).entries() == [A]
    index.truncate_to(0)
    assert not index.exists
    assert not fs.exists(PATH)


@pytest.mark.parametrize(
    ("damage", "reason"),
    [
        (lambda content: content[:-1], "multiple"),
        (lambda content: b"\x00\x09" + content[2:], "version 9"),
        (lambda content: content[:18] + b"\xff" * 8 + content[26:], "is not of this segment"),
        (lambda content: content[34:] + content[:34], "does not come after"),
    ],
)
def test_damage_is_noticed(fs: MemoryFileSystem, damage: object, reason: str) -> None:
    filled(fs)
    content = damage(fs.content(PATH))  # type: ignore[operator]  # one of the functions above
    fs.overwrite(PATH, content)
    index = TransactionIndex(fs, PATH, 0, len(content), LOG_BYTES)
    with pytest.raises(CorruptIndex, match=reason):
        index.entries()
    index.reset()
    assert index.entries() == []


@pytest.mark.parametrize("how", ["truncated", "undone", "reset"])
def test_removed_entries_do_not_come_back_with_the_name_of_the_file(
    fs: MemoryFileSystem, how: str
) -> None:
    """A removal is on disk after a sync of the directory only, which a flush does not need."""
    index = TransactionIndex(fs, PATH, 0, 0, LOG_BYTES)
    undo = index.append_all([A])
    descriptor = fs.open(PATH, READ_ONLY)
    fs.sync(descriptor)
    fs.sync_directory("/d")
    if how == "truncated":
        index.truncate_to(0)
    elif how == "undone":
        undo()
    else:
        index.reset()
    assert not fs.exists(PATH)
    assert fs.after_power_failure().content(PATH) == b""


def test_a_file_that_is_longer_than_its_log_is_not_read(fs: MemoryFileSystem) -> None:
    index = TransactionIndex(fs, PATH, 0, 1 << 50, LOG_BYTES)
    with pytest.raises(CorruptIndex, match="1125899906842624 bytes, more than its log"):
        index.entries()
    index.rebuild = lambda *_: [A]
    assert index.entries() == [A]
