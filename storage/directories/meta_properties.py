"""`meta.properties`: the broker and cluster of a log directory. Version 0 is ZooKeeper mode."""

from __future__ import annotations

from typing import NamedTuple

from ottla.storage.errors import CorruptFile, InconsistentMetadata
from ottla.storage.files.checkpoints import read_properties, write_properties
from ottla.storage.files.fs import FileSystem
from ottla.storage.files.layout import META_PROPERTIES

_VERSION = "0"


class MetaProperties(NamedTuple):
    """The broker and the cluster of a log directory; None for what the file does not contain."""

    broker_id: int | None
    cluster_id: str | None


def read_meta_properties(fs: FileSystem, directory: str) -> MetaProperties | None:
    """The properties of the directory, None when the file does not exist.

    Raises CorruptFile, also for another version (KRaft mode has version 1), OSError.
    """
    path = f"{directory}/{META_PROPERTIES}"
    values = read_properties(fs, path)
    if values is None:
        return None
    version = values.get("version", _VERSION)
    if version != _VERSION:
        raise CorruptFile(path, f"version {version} is not that of a broker in ZooKeeper mode")
    broker_id = values.get("broker.id")
    try:
        return MetaProperties(
            None if broker_id is None else int(broker_id), values.get("cluster.id")
        )
    except ValueError:
        raise CorruptFile(path, f"broker.id {broker_id!r} is not a number") from None


def write_meta_properties(fs: FileSystem, directory: str, meta: MetaProperties) -> None:
    """Replaces the file; durable when this returns. Raises OSError."""
    values = {"broker.id": str(meta.broker_id), "version": _VERSION}
    if meta.cluster_id is not None:
        values["cluster.id"] = meta.cluster_id
    write_properties(fs, f"{directory}/{META_PROPERTIES}", values)


def common_meta_properties(found: dict[str, MetaProperties]) -> MetaProperties:
    """The properties that all directories (by path) share. Raises InconsistentMetadata."""
    broker_ids = {d: m.broker_id for d, m in found.items() if m.broker_id is not None}
    cluster_ids = {d: m.cluster_id for d, m in found.items() if m.cluster_id is not None}
    for what, values in (("broker.id", broker_ids), ("cluster.id", cluster_ids)):
        if len(set(values.values())) > 1:
            listed = ", ".join(f"{directory}: {value}" for directory, value in values.items())
            raise InconsistentMetadata(f"log directories have different {what} values: {listed}")
    return MetaProperties(
        next(iter(broker_ids.values()), None), next(iter(cluster_ids.values()), None)
    )
