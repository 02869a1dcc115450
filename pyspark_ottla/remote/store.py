"""The store of tiered segments as a process of Spark has it: opened once, kept for later tasks."""

from __future__ import annotations

import os
import platform
import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING

from pyspark_ottla import errors
from pyspark_ottla.errors import ConnectorError
from pyspark_ottla.options.remote_options import (
    RemoteOptions,
    invalid_store_settings,
    settings_for_reading,
)
from pyspark_ottla.options.security_options import resolve

if TYPE_CHECKING:
    from ottla.storage.remote.object_remote_storage import ObjectRemoteStorage

_FILE_SETTING = "rsm.config."
# Stores of different settings in one process; a session has one or two.
_STORES_MAX = 4

# The process id is there because Spark forks its workers: connections are not shared.
_stores: dict[tuple[int, RemoteOptions], ObjectRemoteStorage] = {}


def open_store(options: RemoteOptions) -> ObjectRemoteStorage:
    """The store of these options; sends no request. Raises ConnectorError.

    References in the settings are resolved here, in this process.
    """
    key = (os.getpid(), options)
    store = _stores.get(key)
    if store is None:
        if options.config_file is not None:
            settings = _read_settings(options.config_file)
        else:
            settings = {name: resolve(value) for name, value in options.settings}
        store = _open(settings)
        while len(_stores) >= _STORES_MAX:
            oldest = next(iter(_stores))
            closed = _stores.pop(oldest)
            if oldest[0] == os.getpid():
                closed.close()
        _stores[key] = store
    return store


def _open(settings: Mapping[str, str]) -> ObjectRemoteStorage:
    try:
        from ottla.storage.remote.open_remote_storage import open_remote_storage
        from ottla.storage.remote.store_settings import RemoteStorageSettingsError
    except ImportError as error:
        raise _missing(error) from None
    try:
        return open_remote_storage(settings_for_reading(settings))
    except RemoteStorageSettingsError as error:
        if "pip install" in str(error):
            raise _missing(error) from None
        raise invalid_store_settings(error) from None


def _read_settings(path: str) -> dict[str, str]:
    """The settings `rsm.config.*` of a properties file: name=value, one a line."""
    try:
        with open(path, encoding="utf-8") as file:
            lines = [line.strip() for line in file]
    except (OSError, UnicodeDecodeError) as error:
        raise ConnectorError(
            errors.INVALID_OPTION,
            f"ottla.remote.config.file {path} cannot be read on {platform.node()}: {error}",
            "Every executor needs the file",
        ) from None
    found = {}
    for line in lines:
        name, _, value = line.partition("=")
        if name.strip().startswith(_FILE_SETTING):
            found[name.strip().removeprefix(_FILE_SETTING)] = resolve(value.strip())
    return found


def _missing(error: Exception) -> ConnectorError:
    return ConnectorError(
        errors.MISSING_DEPENDENCY,
        f"The Python of {platform.node()} ({sys.executable}) lacks a package that reading tiered "
        f"segments from the store needs: {str(error).rstrip('.')}",
        "Install ottla with the extra tiered on every executor, or set ottla.remote.read to broker",
    )
