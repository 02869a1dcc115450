"""The small text files, byte for byte as Kafka 3.9 writes them."""

import pytest

from ottla.storage.errors import CorruptFile
from ottla.storage.files.checkpoints import (
    parse_epoch_checkpoint,
    read_clean_shutdown,
    read_epoch_checkpoint,
    read_offset_checkpoint,
    read_partition_metadata,
    read_properties,
    write_clean_shutdown,
    write_epoch_checkpoint,
    write_offset_checkpoint,
    write_partition_metadata,
    write_properties,
)
from tests.doubles.memory_file_system import MemoryFileSystem

TOPIC_ID = bytes.fromhex("a8cf6a07f09b4001b2dfa161865af8df")


@pytest.fixture
def fs() -> MemoryFileSystem:
    system = MemoryFileSystem()
    system.make_directory("/d")
    return system


def put(fs: MemoryFileSystem, text: str) -> str:
    write_properties(fs, "/d/f", {})
    fs.overwrite("/d/f", text.encode())
    return "/d/f"


def test_offset_checkpoint(fs: MemoryFileSystem) -> None:
    write_offset_checkpoint(fs, "/d/f", {("a", 1): 0, ("b.c", 0): 42})
    assert fs.content("/d/f") == b"0\n2\na 1 0\nb.c 0 42\n"
    assert read_offset_checkpoint(fs, "/d/f") == {("a", 1): 0, ("b.c", 0): 42}
    assert fs.after_power_failure().content("/d/f") == fs.content("/d/f")


def test_no_file_and_kafkas_empty_file_hold_nothing(fs: MemoryFileSystem) -> None:
    assert read_offset_checkpoint(fs, "/d/none") == {}
    assert read_offset_checkpoint(fs, put(fs, "")) == {}
    assert read_offset_checkpoint(fs, put(fs, "0\n0\n")) == {}


@pytest.mark.parametrize(
    "text",
    [
        "1\n0\n",
        "0\n2\na 1 0\n",
        "0\n1\na 1\n",
        "0\n1\na x 0\n",
        "0\nmany\na 1 0\n",
        "0\n",
        "0\n1\na 1 1",
    ],
)
def test_a_damaged_offset_checkpoint(fs: MemoryFileSystem, text: str) -> None:
    with pytest.raises(CorruptFile):
        read_offset_checkpoint(fs, put(fs, text))


def test_bytes_that_are_no_text(fs: MemoryFileSystem) -> None:
    path = put(fs, "")
    fs.overwrite(path, b"\xff\xfe\x00\n")
    with pytest.raises(CorruptFile, match="not text"):
        read_offset_checkpoint(fs, path)


def test_epoch_checkpoint(fs: MemoryFileSystem) -> None:
    write_epoch_checkpoint(fs, "/d/f", [(0, 0), (4, 100)], sync=True)
    assert fs.content("/d/f") == b"0\n2\n0 0\n4 100\n"
    assert read_epoch_checkpoint(fs, "/d/f") == [(0, 0), (4, 100)]
    with pytest.raises(CorruptFile, match="epoch"):
        read_epoch_checkpoint(fs, put(fs, "0\n1\n1 2 3\n"))


def test_partition_metadata(fs: MemoryFileSystem) -> None:
    write_partition_metadata(fs, "/d/f", TOPIC_ID)
    assert fs.content("/d/f") == b"version: 0\ntopic_id: qM9qB_CbQAGy36Fhhlr43w"
    assert read_partition_metadata(fs, "/d/f") == TOPIC_ID
    assert read_partition_metadata(fs, "/d/none") is None


@pytest.mark.parametrize(
    "text", ["version: 1\ntopic_id: qM9qB_CbQAGy36FhhlrwQg", "version: 0\ntopic_id: abc", "junk",
             "version: 0\ntopic_id: AAAAAAAAAAAAAAAAAAAAAA", "version: 0\ntopic_id: qM\xff",
             "version: 0\ntopic_id: qM9qB_CbQAGy36Fhhlr43w\x01\x02"],
)  # fmt: skip
def test_damaged_partition_metadata(fs: MemoryFileSystem, text: str) -> None:
    with pytest.raises(CorruptFile):
        read_partition_metadata(fs, put(fs, text))


def test_properties(fs: MemoryFileSystem) -> None:
    text = "#\n#Sat Nov 21 07:43:47 UTC 2026\nbroker.id=0\n\ncluster.id=a\\=b\n"
    assert read_properties(fs, put(fs, text)) == {"broker.id": "0", "cluster.id": "a=b"}
    assert read_properties(fs, "/d/none") is None
    write_properties(fs, "/d/f", {"x": "1"})
    assert read_properties(fs, "/d/f") == {"x": "1"}
    with pytest.raises(CorruptFile, match="name=value"):
        read_properties(fs, put(fs, "junk\n"))


def test_clean_shutdown(fs: MemoryFileSystem) -> None:
    assert read_clean_shutdown(fs, "/d/f") is None
    write_clean_shutdown(fs, "/d/f", 12)
    assert fs.content("/d/f") == b'{"version":0,"brokerEpoch":12}'
    assert read_clean_shutdown(fs, "/d/f") == 12


@pytest.mark.parametrize("text", ["", "junk", "[]", "{}", '{"brokerEpoch":"x"}'])
def test_a_marker_counts_whatever_is_in_it(fs: MemoryFileSystem, text: str) -> None:
    assert read_clean_shutdown(fs, put(fs, text)) == -1


def test_an_epoch_checkpoint_in_memory() -> None:
    assert parse_epoch_checkpoint("x", b"0\n2\n0 0\n3 70\n") == [(0, 0), (3, 70)]
    assert parse_epoch_checkpoint("x", b"") == []
    for damaged in (b"0\n2\n0 0\n", b"1\n0\n", b"0\n1\n0 x\n", b"0\n1\n0 0", b"\xff\n"):
        with pytest.raises(CorruptFile):
            parse_epoch_checkpoint("x", damaged)
