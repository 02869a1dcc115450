"""The directory of one partition inside a log directory, and the segment files made in it."""

from __future__ import annotations

from collections.abc import Mapping

from ottla.storage.config import LogConfig
from ottla.storage.errors import CorruptIndex
from ottla.storage.files.layout import LEADER_EPOCH_CHECKPOINT, PARTITION_METADATA
from ottla.storage.files.log_directory import LogDirectory
from ottla.storage.files.open_files import OpenFiles
from ottla.storage.index.txn_index import AbortedTransaction, Rebuild
from ottla.storage.log.segment import Segment


class PartitionDirectory:
    """Where the files of one log are. `path` changes when the directory is renamed.

    `name` is `topic-partition`, also while the directory has another name (`-future`, `-delete`).
    `changes` counts those of its entries that a flush makes durable: segments that were created or
    removed, `partition.metadata`, a rename of the directory.
    """

    __slots__ = (
        "_files",
        "changes",
        "fs",
        "log_directory",
        "name",
        "partition",
        "path",
        "rebuild_aborted",
        "synced_changes",
        "topic",
    )

    def __init__(
        self, log_directory: LogDirectory, path: str, topic: str, partition: int, files: OpenFiles
    ) -> None:
        self.log_directory = log_directory
        self.fs = log_directory.fs
        self.path = path
        self.topic = topic
        self.partition = partition
        self.name = f"{topic}-{partition}"
        self._files = files
        #: Repairs the transaction indexes of its segments; None while the log is being opened.
        self.rebuild_aborted: Rebuild | None = None
        # An earlier process may not have synced it.
        self.changes = 1
        self.synced_changes = 0

    def __repr__(self) -> str:
        return f"PartitionDirectory({self.path})"

    @property
    def metadata_path(self) -> str:
        """The path of `partition.metadata`."""
        return f"{self.path}/{PARTITION_METADATA}"

    @property
    def leader_epoch_path(self) -> str:
        """The path of `leader-epoch-checkpoint`."""
        return f"{self.path}/{LEADER_EPOCH_CHECKPOINT}"

    def segment(
        self,
        base_offset: int,
        config: LogConfig,
        created_ms: int,
        sizes: Mapping[str, int] | None = None,
        suffix: str = "",
    ) -> Segment:
        """A segment in this directory; `sizes` as in `Segment`. Creates and opens no file."""
        segment = Segment(
            self.fs,
            self.path,
            base_offset,
            config,
            self._files,
            created_ms=created_ms,
            sizes=sizes if sizes is not None else {},
            suffix=suffix,
        )
        segment.txn_index.rebuild = self._rebuild
        return segment

    def _rebuild(self, base_offset: int, damage: CorruptIndex) -> list[AbortedTransaction]:
        if self.rebuild_aborted is None:
            raise damage
        return self.rebuild_aborted(base_offset, damage)
