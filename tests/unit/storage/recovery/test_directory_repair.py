"""Half-done things in a partition's directory."""

import pytest

from ottla.storage.files.fs import CREATE_EMPTY, write_fully
from ottla.storage.recovery.directory_repair import clean_directory
from tests.doubles.memory_file_system import MemoryFileSystem
from tests.doubles.storage_logs import batch_of

PATH = "/d/t-0"


@pytest.fixture
def fs() -> MemoryFileSystem:
    system = MemoryFileSystem()
    system.make_directory(PATH)
    return system


def put(fs: MemoryFileSystem, name: str, content: bytes = b"") -> None:
    descriptor = fs.open(f"{PATH}/{name}", CREATE_EMPTY)
    write_fully(fs, descriptor, content, 0) if content else None
    fs.close(descriptor)


def segment(fs: MemoryFileSystem, base: int, suffix: str = "", records: int = 10) -> None:
    stem = f"{base:020d}"
    put(fs, f"{stem}.log{suffix}", bytes(batch_of(records, base_offset=base)))
    put(fs, f"{stem}.index{suffix}")
    put(fs, f"{stem}.timeindex{suffix}")


def aside(fs: MemoryFileSystem) -> list[str]:
    return sorted(name for name in fs.list_files(PATH) if name.endswith(".set-aside"))


def bases(fs: MemoryFileSystem, *, is_compacted: bool = True) -> list[int]:
    names = clean_directory(fs, PATH, is_compacted=is_compacted)
    assert names == fs.list_files(PATH)
    return sorted(int(name[:20]) for name in names if name.endswith(".log"))


def test_a_clean_directory_is_left_alone(fs: MemoryFileSystem) -> None:
    segment(fs, 0)
    put(fs, "leader-epoch-checkpoint")
    put(fs, "00000000000000000010.snapshot")
    before = fs.paths()
    assert bases(fs) == [0]
    assert fs.paths() == before


def test_what_was_on_its_way_out_or_never_complete_goes(fs: MemoryFileSystem) -> None:
    segment(fs, 0)
    segment(fs, 10, ".deleted")
    segment(fs, 0, ".cleaned")
    put(fs, "leader-epoch-checkpoint.tmp")
    assert bases(fs) == [0]
    assert len(fs.paths()) == 3


def test_a_complete_swap_is_finished(fs: MemoryFileSystem) -> None:
    segment(fs, 0)
    segment(fs, 10)
    segment(fs, 20)
    segment(fs, 0, ".swap", records=20)  # took the place of the first two
    size = len(fs.content(f"{PATH}/{0:020d}.log.swap"))
    assert bases(fs) == [0, 20]
    assert len(fs.content(f"{PATH}/{0:020d}.log")) == size


def test_a_swap_that_was_interrupted_while_renaming_is_finished(fs: MemoryFileSystem) -> None:
    segment(fs, 0, ".deleted")
    segment(fs, 10)
    put(fs, f"{0:020d}.log.swap", bytes(batch_of(20, base_offset=0)))
    put(fs, f"{0:020d}.index")  # had its name already
    put(fs, f"{0:020d}.timeindex.swap")
    segment(fs, 20)
    assert bases(fs) == [0, 20]


def test_a_swap_whose_rest_is_not_complete_is_undone(fs: MemoryFileSystem) -> None:
    """`.cleaned` files at or below: a segment was being split, and not all parts are there."""
    segment(fs, 0)
    segment(fs, 10)
    segment(fs, 10, ".swap", records=5)
    segment(fs, 20, ".swap")
    segment(fs, 5, ".cleaned")
    assert bases(fs) == [0, 10]
    for base in (0, 10):
        assert fs.content(f"{PATH}/{base:020d}.log") == bytes(batch_of(10, base_offset=base))
    assert aside(fs) == [f"{20:020d}.log.swap.overlap.set-aside"], "of no segment that is there"


@pytest.mark.parametrize("position", [3, 20, 60, 200])
def test_a_damaged_swap_replaces_nothing(fs: MemoryFileSystem, position: int) -> None:
    for base in (0, 10, 20):
        segment(fs, base)
    segment(fs, 0, ".swap", records=20)
    path = f"{PATH}/{0:020d}.log.swap"
    content = bytearray(fs.content(path))
    content[position] ^= 0xFF
    fs.overwrite(path, bytes(content))
    assert bases(fs) == [0, 10, 20]
    assert fs.content(f"{PATH}/{0:020d}.log") == bytes(batch_of(10, base_offset=0))
    assert aside(fs) == [f"{0:020d}.log.swap.damaged.set-aside"]
    assert not [path for path in fs.paths() if path.endswith(".swap")]


def test_a_damaged_swap_is_kept_if_it_is_the_only_copy(fs: MemoryFileSystem) -> None:
    segment(fs, 10)
    segment(fs, 20)
    segment(fs, 0, ".swap", records=20)
    path = f"{PATH}/{0:020d}.log.swap"
    fs.overwrite(path, fs.content(path)[:-1])
    assert bases(fs) == [0, 10, 20]
    assert aside(fs) == []


@pytest.mark.parametrize(("records", "is_compacted"), [(20, False), (100, True)])
def test_what_a_swap_replaces_without_proof_is_set_aside(
    fs: MemoryFileSystem, records: int, is_compacted: bool
) -> None:
    """The log was not compacted, or its active segment would be replaced."""
    for base in (0, 10, 20):
        segment(fs, base)
    segment(fs, 0, ".swap", records=records)
    replaced = [0, 10] if records == 20 else [0, 10, 20]
    assert bases(fs, is_compacted=is_compacted) == [0, *(b for b in (20,) if b not in replaced)]
    assert aside(fs) == [f"{base:020d}.log.overlap.set-aside" for base in replaced]
    # Whatever happens to such files, they are not segments.
    segment(fs, 0, ".swap", records=records)
    assert len(aside(fs)) == len(replaced)


def test_indexes_without_a_log_go(fs: MemoryFileSystem, caplog: pytest.LogCaptureFixture) -> None:
    segment(fs, 0)
    put(fs, f"{30:020d}.index")
    put(fs, f"{30:020d}.txnindex")
    put(fs, f"{30:020d}.snapshot")
    assert bases(fs) == [0]
    assert fs.exists(f"{PATH}/{30:020d}.snapshot")
    assert caplog.text.count("which has no log file") == 2
