"""Leader epochs of a log."""

import pytest

from ottla.storage.errors import CorruptFile
from ottla.storage.log.leader_epochs import LeaderEpochs
from tests.doubles.memory_file_system import MemoryFileSystem


@pytest.fixture
def epochs() -> LeaderEpochs:
    fs = MemoryFileSystem()
    fs.make_directory("/d")
    found = LeaderEpochs(fs, "/d/leader-epoch-checkpoint")
    for epoch, start in [(1, 10), (3, 20), (7, 50)]:
        found.assign(epoch, start)
    return found


def test_assigning_is_written_at_once(epochs: LeaderEpochs) -> None:
    assert epochs.entries == [(1, 10), (3, 20), (7, 50)]
    again = LeaderEpochs(epochs._fs, epochs.path)
    again.load()
    assert again.entries == epochs.entries
    assert epochs.latest_epoch == 7
    assert len(epochs) == 3
    assert epochs.requires_flush
    assert not again.requires_flush
    again.assign(9, 70)
    assert again.requires_flush


def test_the_newest_epoch_again_changes_nothing(epochs: LeaderEpochs) -> None:
    epochs.assign(7, 60)
    assert epochs.entries[-1] == (7, 50)
    epochs.assign(7, 45)
    assert epochs.entries == [(1, 10), (3, 20), (7, 45)]


def test_what_contradicts_a_new_epoch_goes(epochs: LeaderEpochs) -> None:
    epochs.assign(9, 50)
    assert epochs.entries == [(1, 10), (3, 20), (9, 50)]
    epochs.assign(4, 15)
    assert epochs.entries == [(1, 10), (4, 15)]


def test_impossible_epochs_are_refused(epochs: LeaderEpochs) -> None:
    with pytest.raises(ValueError, match="-1"):
        epochs.assign(-1, 0)


@pytest.mark.parametrize(
    ("asked", "response"),
    [
        (-1, (-1, -1)),  # nothing was known
        (0, (0, 10)),  # older than all: everything here came after it
        (1, (1, 20)),
        (2, (1, 20)),  # the largest that is not above
        (3, (3, 50)),
        (6, (3, 50)),
        (7, (7, 99)),  # the newest ends with the log
        (8, (-1, -1)),  # from the future
    ],
)
def test_end_offsets(epochs: LeaderEpochs, asked: int, response: tuple[int, int]) -> None:
    assert epochs.end_offset_for(asked, 99) == response


def test_end_offsets_without_epochs() -> None:
    assert LeaderEpochs(MemoryFileSystem(), "/x").end_offset_for(0, 9) == (-1, -1)


def test_epoch_for_offset(epochs: LeaderEpochs) -> None:
    assert [epochs.epoch_for_offset(o) for o in (9, 10, 19, 20, 49, 50, 900)] == [
        -1, 1, 1, 3, 3, 7, 7,
    ]  # fmt: skip


def test_truncation_from_the_end(epochs: LeaderEpochs) -> None:
    epochs.truncate_from_end(51)
    assert len(epochs) == 3
    epochs.truncate_from_end(50)
    assert epochs.entries == [(1, 10), (3, 20)]
    epochs.truncate_from_end(0)
    assert epochs.entries == []


@pytest.mark.parametrize(
    ("start", "left"),
    [
        (5, [(1, 10), (3, 20), (7, 50)]),
        (10, [(1, 10), (3, 20), (7, 50)]),
        (15, [(1, 15), (3, 20), (7, 50)]),
        (20, [(3, 20), (7, 50)]),
        (30, [(3, 30), (7, 50)]),
        (99, [(7, 99)]),
    ],
)
def test_truncation_from_the_start(
    epochs: LeaderEpochs, start: int, left: list[tuple[int, int]]
) -> None:
    epochs.truncate_from_start(start)
    assert epochs.entries == left


def test_clear_and_replace(epochs: LeaderEpochs) -> None:
    epochs.clear()
    assert epochs.latest_epoch == -1
    epochs.replace([(2, 5)])
    assert epochs.entries == [(2, 5)]


@pytest.mark.parametrize(
    "lines", [b"3 20\n1 30\n", b"3 20\n3 30\n", b"1 30\n3 20\n", b"1 20\n3 20\n"]
)
def test_a_file_out_of_order_is_not_believed(epochs: LeaderEpochs, lines: bytes) -> None:
    fs = epochs._fs
    assert isinstance(fs, MemoryFileSystem)
    fs.overwrite(epochs.path, b"0\n2\n" + lines)
    again = LeaderEpochs(fs, epochs.path)
    with pytest.raises(CorruptFile, match="out of order"):
        again.load()
    assert again.entries == []
    assert not again.requires_flush


def test_what_changes_nothing_writes_nothing(epochs: LeaderEpochs) -> None:
    fs = epochs._fs
    assert isinstance(fs, MemoryFileSystem)
    fs.calls.clear()
    epochs.assign(7, 50)
    epochs.assign(7, 60)
    epochs.truncate_from_end(51)
    epochs.truncate_from_start(5)
    epochs.truncate_from_start(10)
    assert fs.calls == []


def test_a_change_is_not_synced(epochs: LeaderEpochs) -> None:
    """The next flush does it: an append with a new epoch must not wait for the disk."""
    fs = epochs._fs
    assert isinstance(fs, MemoryFileSystem)
    epochs.assign(8, 70)
    assert "sync" not in [operation for operation, _ in fs.calls]
