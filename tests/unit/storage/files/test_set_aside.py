"""The notes and names of what is set aside."""

import errno

import pytest

from ottla.storage.files.fs import replace_file
from ottla.storage.files.set_aside import (
    NOTE_FILE,
    Note,
    Reason,
    aside_name,
    of_directory,
    of_files,
    original_name,
    read_note,
    set_file_aside,
    write_note,
)
from tests.doubles.memory_file_system import MemoryFileSystem

STRAY = "/disk/a.b-3." + "0" * 32 + "-stray"


def test_a_note_is_read_back() -> None:
    fs = MemoryFileSystem()
    fs.make_directory(STRAY)
    note = Note(Reason.SECOND_COPY, "/other has it, too", needs_attention=False, set_aside_ms=5)
    write_note(fs, STRAY, note)
    assert read_note(fs, STRAY) == note
    found = of_directory(fs, STRAY)
    assert found is not None
    assert (found.topic, found.partition, found.base_offset) == ("a.b", 3, None)
    assert found[3:7] == note


@pytest.mark.parametrize(
    "content",
    [b"", b"{", b"[]", b"\xff", b'{"reason": "x"}', b'{"reason": "replaced"}', b"1" * 70_000],
)
def test_a_damaged_note_hides_no_log(content: bytes) -> None:
    fs = MemoryFileSystem()
    fs.make_directory(STRAY)
    replace_file(fs, f"{STRAY}/{NOTE_FILE}", content, sync=False)
    note = read_note(fs, STRAY)
    assert note.reason is Reason.UNKNOWN
    assert note.needs_attention


def test_other_directories_are_not_set_aside() -> None:
    fs = MemoryFileSystem()
    for name in ("a-0", "a-0." + "0" * 32 + "-delete", "a-stray", "x"):
        assert of_directory(fs, f"/disk/{name}") is None


def test_a_file_keeps_its_bytes_and_says_why() -> None:
    fs = MemoryFileSystem()
    fs.make_directory("/disk/a-0")
    name = f"{42:020d}.log"
    for content in (b"first", b"second", b"third"):
        replace_file(fs, f"/disk/a-0/{name}", content, sync=False)
        set_file_aside(fs, f"/disk/a-0/{name}", Reason.AFTER_GAP)
    found = of_files(fs.list_files("/disk/a-0"), "/disk/a-0", "a", 0)
    assert sorted(item.path.rpartition("/")[2] for item in found) == sorted(
        [
            f"{name}.after-gap.set-aside",
            f"{name}.after-gap.2.set-aside",
            f"{name}.after-gap.3.set-aside",
        ]
    )
    assert {(item.reason, item.base_offset) for item in found} == {(Reason.AFTER_GAP, 42)}


def test_a_name_that_is_always_taken_ends() -> None:
    taken = {"x.replaced.set-aside", *(f"x.replaced.{n}.set-aside" for n in range(2, 1000))}
    with pytest.raises(OSError, match="discard"):
        aside_name(taken, "x", Reason.REPLACED)


@pytest.mark.parametrize(
    ("name", "original"),
    [
        ("1.log.after-gap.set-aside", "1.log"),
        ("1.log.after-gap.2.set-aside", "1.log"),
        ("1.log.later-version.set-aside", "1.log.later-version"),
        ("1.log.set-aside", "1.log"),
        ("leader-epoch-checkpoint.damaged.set-aside", "leader-epoch-checkpoint"),
        ("1.log.damaged.set-aside.replaced.set-aside", "1.log"),
        ("1.log", "1.log"),
        (".set-aside", ""),
    ],
)
def test_the_name_before(name: str, original: str) -> None:
    assert original_name(name) == original


def test_a_note_has_the_whole_topic_name() -> None:
    fs = MemoryFileSystem()
    fs.make_directory("/disk/a.b-3")
    write_note(fs, "/disk/a.b-3", Note(Reason.SECOND_COPY, ""))
    fs.replace("/disk/a.b-3", f"/disk/a-3.{'0' * 32}-stray")
    found = of_directory(fs, f"/disk/a-3.{'0' * 32}-stray")
    assert found is not None
    assert (found.topic, found.partition) == ("a.b", 3)


@pytest.mark.parametrize("topic", ["a.b/../../etc", "a.b" + "c" * 300, "a.b\n", 5, "other"])
def test_a_topic_name_that_cannot_be_one_is_not_believed(topic: object) -> None:
    fs = MemoryFileSystem()
    fs.make_directory(STRAY)
    write_note(fs, STRAY, Note(Reason.SECOND_COPY, ""), (topic, 3))  # type: ignore[arg-type]
    found = of_directory(fs, STRAY)
    assert found is not None
    assert (found.topic, found.reason) == ("a.b", Reason.SECOND_COPY)


@pytest.mark.parametrize("code", [errno.EISDIR, errno.EACCES, errno.ELOOP])
def test_a_note_that_others_made_unreadable_is_none(code: int) -> None:
    fs = MemoryFileSystem()
    fs.make_directory(STRAY)
    write_note(fs, STRAY, Note(Reason.SECOND_COPY, ""))
    fs.fail("open", code)
    assert read_note(fs, STRAY).reason is Reason.UNKNOWN
    fs.fail("open", errno.EIO)
    with pytest.raises(OSError, match="Input/output"):
        read_note(fs, STRAY)
