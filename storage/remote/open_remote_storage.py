"""Opens the remote storage that the settings `rsm.config.*` describe."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping

from ottla.storage.files.fs import FileSystem, RealFileSystem
from ottla.storage.remote.local_object_store import LocalObjectStore
from ottla.storage.remote.object_files import ObjectFiles
from ottla.storage.remote.object_remote_storage import ObjectRemoteStorage
from ottla.storage.remote.object_store import ObjectStore, StoreIdentity
from ottla.storage.remote.read_ahead import Background
from ottla.storage.remote.segment_source import RateLimit
from ottla.storage.remote.store_settings import (
    FILE_SYSTEM,
    RemoteStorageSettingsError,
    StoreSettings,
    parse_store_settings,
)


def open_remote_storage(
    settings: Mapping[str, str],
    *,
    fs: FileSystem | None = None,
    clock: Callable[[], float] | None = None,
    sleep: Callable[[float], None] | None = None,
    background: Background | None = None,
    sends_files: bool = False,
    cluster_id: str | None = None,
) -> ObjectRemoteStorage:
    """Open the storage of the broker's `settings`, without `rsm.config.`. Sends no request to it.

    `clock` and `sleep` (in seconds, as `time.monotonic` and `time.sleep`) are needed if there is a
    rate limit for copies. `background` starts a function in a worker thread, such as the `submit`
    of an executor: with it `fetch.chunk.cache.prefetch.max.size` has an effect. With `sends_files`
    segments in a folder are returned as parts of files, for `os.sendfile`. With `cluster_id`
    nothing is copied to a store or deleted there that is not known as the store of that cluster.

    Raises RemoteStorageSettingsError.
    """
    parsed = parse_store_settings(settings)
    fs = RealFileSystem() if fs is None else fs
    rate_limit = None
    if parsed.upload_bytes_per_second is not None:
        if clock is None or sleep is None:
            raise RemoteStorageSettingsError(
                "upload.rate.limit.bytes.per.second cannot be used here: there is no clock"
            )
        rate_limit = RateLimit(parsed.upload_bytes_per_second, clock, sleep)
    store = _open_store(parsed, fs)
    files = None
    if sends_files and isinstance(store, LocalObjectStore):
        files = ObjectFiles(store)
    identity = None
    if cluster_id is not None:
        identity = StoreIdentity(store, parsed.key_prefix, cluster_id, _place(parsed))
    return ObjectRemoteStorage(store, parsed, fs, rate_limit, background, files, identity)


def _place(settings: StoreSettings) -> str:
    """The name of the store in a log line."""
    if settings.backend == FILE_SYSTEM:
        return f"The folder {os.path.abspath(settings.storage.get('root', ''))}"
    for name in ("s3.bucket.name", "gcs.bucket.name", "azure.container.name"):
        if name in settings.storage:
            return f"The bucket or container {settings.storage[name]}"
    return f"The store {settings.backend}"


def _open_store(settings: StoreSettings, fs: FileSystem) -> ObjectStore:
    if settings.backend == FILE_SYSTEM:
        root = settings.storage.get("root", "")
        if not root:
            raise RemoteStorageSettingsError("storage.root is not set. It needs a directory")
        root = os.path.abspath(root)
        if not fs.exists(root):
            raise RemoteStorageSettingsError(f"storage.root {root} does not exist. Create it")
        return LocalObjectStore(fs, root)
    from ottla.storage.remote.cloud_object_store import open_cloud_object_store

    return open_cloud_object_store(settings)
