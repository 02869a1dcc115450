"""The settings of the remote storage: names and values of Aiven's tiered storage plugin.

They are the broker's settings `rsm.config.*` without that prefix. A setting that Ottla does not
know is an error, as is one for a feature that Ottla does not have: an operator who moves a cluster
learns it at the start. Settings of the plugin that change nothing here are accepted.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from ottla.storage.errors import StorageError
from ottla.storage.remote.custom_metadata import FIELD_NAMES

FILE_SYSTEM = "filesystem"
S3 = "s3"
GCS = "gcs"
AZURE = "azure"

_PACKAGE = "io.aiven.kafka.tieredstorage"
#: The plugin's classes, and a short name for each.
BACKENDS = {
    f"{_PACKAGE}.storage.filesystem.FileSystemStorage": FILE_SYSTEM,
    f"{_PACKAGE}.storage.s3.S3Storage": S3,
    f"{_PACKAGE}.storage.gcs.GcsStorage": GCS,
    f"{_PACKAGE}.storage.azure.AzureBlobStorage": AZURE,
    FILE_SYSTEM: FILE_SYSTEM,
    S3: S3,
    GCS: GCS,
    AZURE: AZURE,
}
_MEMORY_CACHES = (f"{_PACKAGE}.fetch.cache.MemoryChunkCache", "memory")

# Accepted without effect: what the plugin needs for its own threads, caches and metrics.
_WITHOUT_EFFECT = frozenset({
    "key.prefix.mask",
    "metrics.num.samples",
    "metrics.recording.level",
    "metrics.sample.window.ms",
    "fetch.chunk.cache.get.timeout.ms",
    "fetch.chunk.cache.retention.ms",
    "fetch.chunk.cache.thread.pool.size",
    "fetch.indexes.cache.get.timeout.ms",
    "fetch.indexes.cache.retention.ms",
    "fetch.indexes.cache.size",
    "fetch.indexes.cache.thread.pool.size",
    "fetch.manifest.cache.get.timeout.ms",
    "fetch.manifest.cache.retention.ms",
    "fetch.manifest.cache.thread.pool.size",
    "storage.overwrite.enabled",
    "storage.aws.checksum.check.enabled",  # Ottla checks its own checksums with each read.
    "storage.s3.legacy.md5.plugin.enabled",
})  # fmt: skip
_COMMON = frozenset({
    "storage.backend.class",
    "chunk.size",
    "key.prefix",
    "compression.enabled",
    "compression.heuristic.enabled",
    "encryption.enabled",
    "segment.format",
    "upload.rate.limit.bytes.per.second",
    "custom.metadata.fields.include",
    "fetch.chunk.cache.class",
    "fetch.chunk.cache.size",
    "fetch.chunk.cache.prefetch.max.size",
    "fetch.manifest.cache.size",
})  # fmt: skip
_OF_BACKEND = {
    FILE_SYSTEM: frozenset({"storage.root"}),
    S3: frozenset({
        "storage.s3.bucket.name",
        "storage.s3.region",
        "storage.s3.endpoint.url",
        "storage.s3.path.style.access.enabled",
        "storage.s3.multipart.upload.part.size",
        "storage.s3.api.call.timeout",
        "storage.s3.api.call.attempt.timeout",
        "storage.s3.storage.class",
        "storage.aws.access.key.id",
        "storage.aws.secret.access.key",
        "storage.aws.session.token",
        "storage.aws.certificate.check.enabled",
    }),
    GCS: frozenset({
        "storage.gcs.bucket.name",
        "storage.gcs.endpoint.url",
        "storage.gcs.resumable.upload.chunk.size",
        "storage.gcs.credentials.default",
        "storage.gcs.credentials.json",
        "storage.gcs.credentials.path",
    }),
    AZURE: frozenset({
        "storage.azure.container.name",
        "storage.azure.account.name",
        "storage.azure.account.key",
        "storage.azure.sas.token",
        "storage.azure.endpoint.url",
        "storage.azure.upload.block.size",
    }),
}  # fmt: skip
# Begin of a setting: why it is refused.
_REFUSED = {
    "encryption.key.": "encryption is not supported",
    "iceberg.": "segments as Iceberg tables are not supported",
    "structure.provider.": "segments as Iceberg tables are not supported",
    "storage.proxy.": "SOCKS5 proxies are not supported",
    "storage.aws.credentials.": (
        "give storage.aws.access.key.id and storage.aws.secret.access.key, or the environment of"
        " the broker has the credentials"
    ),
    "storage.azure.connection.string": (
        "give storage.azure.account.name with storage.azure.account.key or storage.azure.sas.token"
    ),
    "fetch.chunk.cache.path": "a chunk cache on disk is not supported",
}

DEFAULT_CACHE_BYTES = 64 * 1024 * 1024
DEFAULT_PART_BYTES = 25 * 1024 * 1024
_MAX_INT = 0x7FFFFFFF


class RemoteStorageSettingsError(StorageError):
    """The settings of the remote storage are invalid or ask for what is not supported."""


@dataclass(frozen=True, slots=True)
class StoreSettings:
    """`storage` has the settings of the store itself, without the prefix `storage.`."""

    backend: str
    chunk_size: int
    key_prefix: str
    compression: bool
    compression_heuristic: bool
    upload_bytes_per_second: int | None
    custom_metadata_fields: tuple[str, ...]
    cache_bytes: int
    prefetch_bytes: int
    manifest_cache_size: int
    part_bytes: int
    storage: Mapping[str, str]


def parse_store_settings(settings: Mapping[str, str]) -> StoreSettings:
    """Raise RemoteStorageSettingsError with the name of the setting and what to do."""
    backend = _backend(settings)
    _check_names(settings, backend)
    _check_values(settings)
    reader = _Reader(settings)
    compression = reader.boolean("compression.enabled", False)
    heuristic = reader.boolean("compression.heuristic.enabled", False)
    if heuristic and not compression:
        raise RemoteStorageSettingsError(
            "compression.enabled must be true if compression.heuristic.enabled is"
        )
    rate = "upload.rate.limit.bytes.per.second"
    parts = {
        S3: ("storage.s3.multipart.upload.part.size", 5 * 1024 * 1024),
        GCS: ("storage.gcs.resumable.upload.chunk.size", 256 * 1024),
        AZURE: ("storage.azure.upload.block.size", 100 * 1024),
    }.get(backend)
    return StoreSettings(
        backend=backend,
        chunk_size=reader.integer("chunk.size", None, 1024, _MAX_INT // 2),
        key_prefix=settings.get("key.prefix", ""),
        compression=compression,
        compression_heuristic=heuristic,
        upload_bytes_per_second=(
            reader.integer(rate, None, 1024 * 1024, 1_000_000_000) if rate in settings else None
        ),
        custom_metadata_fields=_custom_metadata_fields(settings),
        cache_bytes=reader.integer("fetch.chunk.cache.size", DEFAULT_CACHE_BYTES, 0, 1 << 50),
        prefetch_bytes=reader.integer("fetch.chunk.cache.prefetch.max.size", 0, 0, _MAX_INT),
        manifest_cache_size=reader.integer("fetch.manifest.cache.size", 1000, 1, 1_000_000),
        part_bytes=(
            reader.integer(parts[0], DEFAULT_PART_BYTES, parts[1], _MAX_INT)
            if parts is not None
            else DEFAULT_PART_BYTES
        ),
        storage={
            name.removeprefix("storage."): value
            for name, value in settings.items()
            if name in _OF_BACKEND[backend]
        },
    )


def _backend(settings: Mapping[str, str]) -> str:
    name = "storage.backend.class"
    if name not in settings:
        raise RemoteStorageSettingsError(
            f"{name} is not set. It is one of: {', '.join(sorted(BACKENDS))}"
        )
    backend = BACKENDS.get(settings[name])
    if backend is None:
        raise RemoteStorageSettingsError(
            f"{name} is {settings[name]!r}. It must be one of: {', '.join(sorted(BACKENDS))}"
        )
    return backend


def _check_names(settings: Mapping[str, str], backend: str) -> None:
    known = _COMMON | _OF_BACKEND[backend] | _WITHOUT_EFFECT
    for name in sorted(set(settings) - known):
        for start, reason in _REFUSED.items():
            if name.startswith(start):
                raise RemoteStorageSettingsError(f"{name} cannot be used: {reason}")
        if any(name in names for names in _OF_BACKEND.values()):
            raise RemoteStorageSettingsError(
                f"{name} has no effect with storage.backend.class={backend}. Remove it"
            )
        raise RemoteStorageSettingsError(
            f"{name} is not known. The settings of the store are in docs/tiered-storage.md"
        )


def _check_values(settings: Mapping[str, str]) -> None:
    reader = _Reader(settings)
    if reader.boolean("encryption.enabled", False):
        raise RemoteStorageSettingsError(
            "encryption.enabled=true cannot be used: encryption is not supported. The encryption"
            " of the object store itself (SSE) can be used"
        )
    if settings.get("segment.format", "kafka").lower() != "kafka":
        raise RemoteStorageSettingsError(
            f"segment.format={settings['segment.format']} cannot be used: only kafka is supported"
        )
    cache = settings.get("fetch.chunk.cache.class")
    if cache is not None and cache not in _MEMORY_CACHES:
        raise RemoteStorageSettingsError(
            f"fetch.chunk.cache.class={cache} cannot be used: the cache is in memory,"
            f" {_MEMORY_CACHES[0]}"
        )
    storage_class = settings.get("storage.s3.storage.class", "STANDARD")
    if storage_class != "STANDARD":
        raise RemoteStorageSettingsError(
            f"storage.s3.storage.class={storage_class} cannot be used: only STANDARD is supported."
            " A lifecycle rule of the bucket can move objects to another class"
        )


def _custom_metadata_fields(settings: Mapping[str, str]) -> tuple[str, ...]:
    text = settings.get("custom.metadata.fields.include", "")
    fields = tuple(field.strip() for field in text.split(",") if field.strip())
    for field in fields:
        if field not in FIELD_NAMES:
            raise RemoteStorageSettingsError(
                f"custom.metadata.fields.include has {field!r}. It can have:"
                f" {', '.join(FIELD_NAMES)}"
            )
    return fields


class _Reader:
    def __init__(self, settings: Mapping[str, str]) -> None:
        self._settings = settings

    def boolean(self, name: str, default: bool) -> bool:
        text = self._settings.get(name)
        if text is None:
            return default
        if text.strip().lower() not in ("true", "false"):
            raise RemoteStorageSettingsError(f"{name} is {text!r}, expected true or false")
        return text.strip().lower() == "true"

    def integer(self, name: str, default: int | None, minimum: int, maximum: int) -> int:
        text = self._settings.get(name)
        if text is None:
            if default is None:
                raise RemoteStorageSettingsError(
                    f"{name} is not set. It needs a number from {minimum} to {maximum}"
                )
            return default
        try:
            value = int(text.strip())
        except ValueError:
            value = minimum - 1
        if not minimum <= value <= maximum:
            raise RemoteStorageSettingsError(
                f"{name} is {text!r}, expected a number from {minimum} to {maximum}"
            )
        return value
