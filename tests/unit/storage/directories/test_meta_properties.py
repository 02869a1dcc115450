"""meta.properties of ZooKeeper mode."""

import pytest

from ottla.storage.directories.meta_properties import (
    MetaProperties,
    common_meta_properties,
    read_meta_properties,
    write_meta_properties,
)
from ottla.storage.errors import CorruptFile, InconsistentMetadata
from tests.doubles.memory_file_system import MemoryFileSystem


@pytest.fixture
def fs() -> MemoryFileSystem:
    system = MemoryFileSystem()
    system.make_directory("/d")
    return system


def test_what_is_written_is_read(fs: MemoryFileSystem) -> None:
    assert read_meta_properties(fs, "/d") is None
    write_meta_properties(fs, "/d", MetaProperties(5, "bOS1Lo-MQy6q2ZIuCBiq-g"))
    assert read_meta_properties(fs, "/d") == (5, "bOS1Lo-MQy6q2ZIuCBiq-g")
    text = fs.content("/d/meta.properties")
    assert text == b"#\nbroker.id=5\nversion=0\ncluster.id=bOS1Lo-MQy6q2ZIuCBiq-g\n"


@pytest.mark.parametrize("text", [b"version=1\nnode.id=1\n", b"version=0\nbroker.id=x\n"])
def test_another_mode_or_junk_is_refused(fs: MemoryFileSystem, text: bytes) -> None:
    write_meta_properties(fs, "/d", MetaProperties(5, None))
    fs.overwrite("/d/meta.properties", text)
    with pytest.raises(CorruptFile):
        read_meta_properties(fs, "/d")


def test_directories_have_to_agree() -> None:
    assert common_meta_properties({}) == (None, None)
    assert common_meta_properties(
        {"/a": MetaProperties(1, None), "/b": MetaProperties(None, "c")}
    ) == (1, "c")
    with pytest.raises(InconsistentMetadata, match=r"cluster\.id"):
        common_meta_properties({"/a": MetaProperties(1, "x"), "/b": MetaProperties(1, "y")})
