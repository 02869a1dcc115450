"""The options for reading tiered segments straight from the store (KIP-405).

The settings of the store are those of the broker, `rsm.config.*`, with `ottla.remote.` before them,
or they are in a properties file that the executors have. Their values may hold `${env:NAME}` and
`${file:/path:key}`, which each executor resolves, so that secrets are in no plan.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from pyspark_ottla import errors
from pyspark_ottla.errors import ConnectorError
from pyspark_ottla.options.values import OptionReader

REMOTE_OPTIONS = ("ottla.remote.read", "ottla.remote.config.file", "ottla.remote.onError")
STORE_SETTING = "ottla.remote.rsm.config."

BROKER, DIRECT = "broker", "direct"
FAIL = "fail"
# Used if the settings have none: segments have their own.
_CHUNK_BYTES = 4 << 20


@dataclass(frozen=True, slots=True)
class RemoteOptions:
    """How tiered segments are read; equal for tasks that can share an open store."""

    read: str = BROKER
    on_error: str = BROKER
    config_file: str | None = None
    #: Without the prefix, by name. Kept out of the repr: a value may be a secret.
    settings: tuple[tuple[str, str], ...] = field(default=(), repr=False)

    @property
    def is_direct(self) -> bool:
        return self.read == DIRECT


def without_store_settings(options: Mapping[str, str]) -> dict[str, str]:
    """`options` with names in lower case, less the settings of the store."""
    return {name: value for name, value in options.items() if not name.startswith(STORE_SETTING)}


def parse_remote_options(reader: OptionReader, options: Mapping[str, str]) -> RemoteOptions:
    """`options` have names in lower case. Raises ConnectorError for settings that cannot be."""
    settings = {
        name.removeprefix(STORE_SETTING): value.strip()
        for name, value in options.items()
        if name.startswith(STORE_SETTING)
    }
    found = RemoteOptions(
        reader.choice("ottla.remote.read", BROKER, (BROKER, DIRECT)),
        reader.choice("ottla.remote.onError", BROKER, (BROKER, FAIL)),
        reader.text("ottla.remote.config.file"),
        tuple(sorted(settings.items())),
    )
    if not found.is_direct:
        return found
    if settings and found.config_file is not None:
        raise ConnectorError(
            errors.CONFLICTING_OPTIONS,
            f"ottla.remote.config.file and {STORE_SETTING}{min(settings)} are both set",
            "Put all settings of the store into one of them",
        )
    if not settings and found.config_file is None:
        raise ConnectorError(
            errors.MISSING_OPTION,
            "ottla.remote.read is direct, but no option says where the segments are",
            f"Set {STORE_SETTING}storage.backend.class and the other settings of the store as the "
            "brokers have them, or ottla.remote.config.file",
        )
    # A file may be on the executors only, and a reference may be one of theirs.
    if settings and not any("${" in value for value in settings.values()):
        _check(settings)
    return found


def settings_for_reading(settings: Mapping[str, str]) -> dict[str, str]:
    """Without what is for copies. A task reads each chunk once, so none is kept."""
    found = {"chunk.size": str(_CHUNK_BYTES)} | dict(settings)
    found.pop("upload.rate.limit.bytes.per.second", None)
    return found | {"fetch.chunk.cache.size": "0", "fetch.chunk.cache.prefetch.max.size": "0"}


def invalid_store_settings(error: Exception) -> ConnectorError:
    """The error for settings that no store can be opened with."""
    return ConnectorError(
        errors.INVALID_OPTION,
        f"The settings of the store of tiered segments ({STORE_SETTING}*) are invalid: "
        f"{str(error).rstrip('.')}",
        "Use those of the brokers (rsm.config.*)",
    )


def _check(settings: Mapping[str, str]) -> None:
    from ottla.storage.remote.store_settings import (
        RemoteStorageSettingsError,
        parse_store_settings,
    )

    try:
        parse_store_settings(settings_for_reading(settings))
    except RemoteStorageSettingsError as error:
        raise invalid_store_settings(error) from None
