"""The directory of a partition."""

from ottla.storage.config import LogConfig
from ottla.storage.files.log_directory import LogDirectory
from ottla.storage.files.open_files import OpenFiles
from ottla.storage.log.partition_directory import PartitionDirectory
from tests.doubles.memory_file_system import MemoryFileSystem
from tests.doubles.storage_logs import NOW_MS


def test_the_name_is_that_of_the_partition_whatever_the_directory_is_called() -> None:
    fs = MemoryFileSystem()
    path = "/disk/t-0.abc-future"
    directory = PartitionDirectory(LogDirectory(fs, "/disk"), path, "t", 0, OpenFiles())
    assert directory.name == "t-0"
    assert directory.metadata_path == f"{path}/partition.metadata"
    directory.path = "/disk/t-0"
    assert directory.leader_epoch_path == "/disk/t-0/leader-epoch-checkpoint"
    assert repr(directory) == "PartitionDirectory(/disk/t-0)"


def test_a_segment_is_described_and_not_created() -> None:
    fs = MemoryFileSystem()
    directory = PartitionDirectory(LogDirectory(fs, "/disk"), "/disk/t-0", "t", 0, OpenFiles())
    sizes = {"00000000000000000005.log": 77}
    segment = directory.segment(5, LogConfig(), NOW_MS, sizes)
    assert (segment.base_offset, segment.size, segment.created_ms) == (5, 77, NOW_MS)
    assert directory.segment(9, LogConfig(), NOW_MS, suffix=".cleaned").size == 0
    assert fs.paths() == []
