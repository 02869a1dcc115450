"""Objects in S3 and compatible stores, Google Cloud Storage and Azure Blob Storage.

The package obstore does the work, from the extra `tiered`. It is imported when a store is opened.
It retries requests with exponential back-off and has a deadline for each. A large object is
uploaded in parts, which are visible only when the last request has joined them.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from ottla.storage.files.fs import Buffer
from ottla.storage.remote.object_store import StoredObject
from ottla.storage.remote.remote_storage import (
    RemoteObjectCorruptError,
    RemoteResourceNotFoundError,
    RemoteStorageError,
)
from ottla.storage.remote.store_settings import (
    AZURE,
    GCS,
    S3,
    RemoteStorageSettingsError,
    StoreSettings,
)

if TYPE_CHECKING:
    from types import ModuleType

# A request that has no response after this time fails, and is retried if it may be.
DEFAULT_REQUEST_TIMEOUT_MS = 30_000
# No retry begins later, so an operation ends after this time and one request timeout.
DEFAULT_OPERATION_TIMEOUT_MS = 60_000
_MAX_RETRIES = 8
_FIRST_BACK_OFF = timedelta(milliseconds=100)
_MAX_BACK_OFF = timedelta(seconds=5)
_CONNECT_TIMEOUT = timedelta(seconds=5)
# Parts of one object in memory at the same time: one that is sent, one that is filled.
_PARTS_AT_ONCE = 2
# A body that breaks off is read once more; obstore retries only what had no response.
_BODY_ATTEMPTS = 3
_LIST_CHUNK = 1000
# What obstore says of a response with status 401 or 403, and the code in its body.
_DENIED = re.compile(r"status code: (40[13] \w+)")
_CODE = re.compile(r"<Code>(\w{1,64})</Code>")
# Where obstore looks for the credentials of a virtual machine when it has found no others.
_METADATA_SERVICE = "169.254.169.254"

_READ = "read"
_WRITE = "write"
_DELETE = "delete"
_LIST = "list"


class CloudObjectStore:
    """`store` is a store of obstore."""

    def __init__(self, obstore: ModuleType, store: Any, part_bytes: int) -> None:
        self._obstore = obstore
        self._store = store
        self._part_bytes = part_bytes

    def put(self, key: str, content: Iterable[Buffer]) -> int:
        parts = _Parts(content)
        with _mapped_errors(_WRITE, key):
            first = parts.take(self._part_bytes)
            if parts.is_finished:
                self._obstore.put(self._store, key, first, use_multipart=False)
                return parts.size
            self._obstore.put(
                self._store,
                key,
                parts.all_after(first),
                use_multipart=True,
                chunk_size=self._part_bytes,
                max_concurrency=_PARTS_AT_ONCE,
            )
        if parts.error is not None:
            raise parts.error
        # A response that was lost may have been that of another upload of the same key.
        stored = self.size(key)
        if stored != parts.size:
            raise RemoteStorageError(
                f"The object {key} has {stored} bytes after its upload, expected {parts.size}"
            )
        return stored

    def get(self, key: str, limit: int) -> bytes:
        size = self.size(key)
        if size > limit:
            raise RemoteObjectCorruptError(
                f"The object {key} has {size} bytes, expected at most {limit}"
            )
        return bytes(self.get_range(key, 0, size)) if size else b""

    def get_range(self, key: str, position: int, size: int) -> memoryview:
        def read() -> memoryview:
            with _mapped_errors(_READ, key):
                content = self._obstore.get_range(self._store, key, start=position, length=size)
                # A copy of some MB would hold the GIL, and the event loop, for milliseconds.
                return memoryview(content)

        content = _with_attempts(read)
        if len(content) != size:
            raise RemoteObjectCorruptError(
                f"The object {key} ends at {position + len(content)}, expected {size} bytes from"
                f" {position} on"
            )
        return content

    def size(self, key: str) -> int:
        with _mapped_errors(_READ, key):
            size: int = self._obstore.head(self._store, key)["size"]
        return size

    def delete(self, keys: Sequence[str]) -> None:
        # One request each: a request for many has no order.
        for key in keys:
            try:
                with _mapped_errors(_DELETE, key):
                    self._obstore.delete(self._store, key)
            except RemoteResourceNotFoundError:
                continue

    def list(self, prefix: str) -> Iterator[StoredObject]:
        # The store lists whole directories, a prefix may end within a name.
        directory = prefix.rpartition("/")[0]
        with _mapped_errors(_LIST, prefix):
            for found in self._obstore.list(
                self._store, prefix=directory or None, chunk_size=_LIST_CHUNK
            ):
                for item in found:
                    if item["path"].startswith(prefix):
                        modified_ms = int(item["last_modified"].timestamp() * 1000)
                        yield StoredObject(item["path"], item["size"], modified_ms)

    def close(self) -> None:
        return


class _Parts:
    """The content of an object, of which the size is known at the end only."""

    def __init__(self, content: Iterable[Buffer]) -> None:
        self._content = iter(content)
        self.size = 0
        self.is_finished = False
        self.error: BaseException | None = None

    def take(self, size: int) -> bytes:
        """The parts up to `size` bytes or a little more, joined."""
        taken: list[Buffer] = []
        while self.size <= size:
            part = next(self._content, None)
            if part is None:
                self.is_finished = True
                break
            taken.append(part)
            self.size += len(part)
        return b"".join(taken)

    def all_after(self, first: bytes) -> Iterator[Buffer]:
        """An error ends the upload: obstore reports its text only, so it is kept here."""
        yield first
        try:
            for part in self._content:
                self.size += len(part)
                if part:
                    yield part
        except BaseException as error:
            self.error = error
            raise


class _AccessDeniedError(RemoteStorageError):
    """The credentials are wrong, or do not allow the request."""


def _with_attempts(read: Callable[[], memoryview]) -> memoryview:
    for _ in range(_BODY_ATTEMPTS - 1):
        try:
            return read()
        except (RemoteResourceNotFoundError, _AccessDeniedError):
            raise
        except RemoteStorageError:
            continue
    return read()


@contextmanager
def _mapped_errors(action: str, key: str) -> Iterator[None]:
    try:
        yield
    except FileNotFoundError as error:
        if action in (_WRITE, _LIST):
            raise RemoteStorageError(
                f"Cannot {action} the object {key}: the bucket, container or upload does not exist"
            ) from error
        raise RemoteResourceNotFoundError(f"The object {key} does not exist") from None
    except RemoteStorageError:
        raise
    except Exception as error:  # obstore raises its own errors, OSError and ValueError
        message = str(error).split("\n", 1)[0]
        what = f"Cannot {action} the object {key}"
        if _METADATA_SERVICE in message:
            raise _AccessDeniedError(
                f"{what}: there are no credentials. Set them in the settings of the store, or in"
                " the environment"
            ) from None
        denied = _DENIED.search(message)
        if denied is not None:
            # The text of the response may have the access key and what was signed.
            code = _CODE.search(message)
            reason = code[1] if code else denied[1]
            raise _AccessDeniedError(
                f"{what}: the store denies access ({reason}). Check the credentials and what they"
                " allow"
            ) from None
        raise RemoteStorageError(f"{what}: {message}") from error


def open_cloud_object_store(settings: StoreSettings) -> CloudObjectStore:
    """Send no request. Raises RemoteStorageSettingsError."""
    try:
        import obstore
        from obstore import store as stores
    except ImportError:
        raise RemoteStorageSettingsError(
            f"storage.backend.class={settings.backend} needs the package obstore:"
            " pip install 'ottla[tiered]'"
        ) from None
    storage = settings.storage
    builders = {S3: _s3_config, GCS: _gcs_config, AZURE: _azure_config}
    classes: dict[str, Any] = {
        S3: stores.S3Store,
        GCS: stores.GCSStore,
        AZURE: stores.AzureStore,
    }
    config = builders[settings.backend](storage)
    try:
        store = classes[settings.backend](
            config=config,
            client_options=_client_options(storage),
            retry_config=_retry_config(storage),
        )
    except Exception as error:
        message = str(error).split("\n", 1)[0]
        raise RemoteStorageSettingsError(
            f"The settings of the store {settings.backend} are invalid: {message}"
        ) from error
    return CloudObjectStore(obstore, store, settings.part_bytes)


def _client_options(storage: Mapping[str, str]) -> dict[str, object]:
    timeout_ms = _milliseconds(storage, "s3.api.call.attempt.timeout", DEFAULT_REQUEST_TIMEOUT_MS)
    return {
        "connect_timeout": _CONNECT_TIMEOUT,
        "timeout": timedelta(milliseconds=timeout_ms),
        "allow_http": _endpoint(storage).startswith("http://"),
        "allow_invalid_certificates": not _boolean(
            storage, "aws.certificate.check.enabled", default=True
        ),
    }


def _retry_config(storage: Mapping[str, str]) -> dict[str, object]:
    timeout_ms = _milliseconds(storage, "s3.api.call.timeout", DEFAULT_OPERATION_TIMEOUT_MS)
    return {
        "max_retries": _MAX_RETRIES,
        "backoff": {"init_backoff": _FIRST_BACK_OFF, "max_backoff": _MAX_BACK_OFF, "base": 2},
        "retry_timeout": timedelta(milliseconds=timeout_ms),
    }


def _endpoint(storage: Mapping[str, str]) -> str:
    for name in ("s3.endpoint.url", "gcs.endpoint.url", "azure.endpoint.url"):
        if name in storage:
            return storage[name]
    return ""


def _s3_config(storage: Mapping[str, str]) -> dict[str, object]:
    config: dict[str, object] = {
        "bucket": _required(storage, "s3.bucket.name"),
        "region": _required(storage, "s3.region"),
        "virtual_hosted_style_request": not _boolean(
            storage,
            "s3.path.style.access.enabled",
            # Servers at an address of their own seldom have a name for each bucket.
            default="s3.endpoint.url" in storage,
        ),
    }
    if "s3.endpoint.url" in storage:
        config["endpoint"] = storage["s3.endpoint.url"]
    if "aws.access.key.id" in storage:
        config["access_key_id"] = storage["aws.access.key.id"]
        config["secret_access_key"] = _required(storage, "aws.secret.access.key")
        if "aws.session.token" in storage:
            config["session_token"] = storage["aws.session.token"]
    return config


def _gcs_config(storage: Mapping[str, str]) -> dict[str, object]:
    config: dict[str, object] = {"bucket": _required(storage, "gcs.bucket.name")}
    if "gcs.endpoint.url" in storage:
        config["base_url"] = storage["gcs.endpoint.url"]
    if "gcs.credentials.json" in storage:
        config["service_account_key"] = storage["gcs.credentials.json"]
    elif "gcs.credentials.path" in storage:
        config["application_credentials"] = storage["gcs.credentials.path"]
    return config


def _azure_config(storage: Mapping[str, str]) -> dict[str, object]:
    config: dict[str, object] = {
        "container_name": _required(storage, "azure.container.name"),
        "account_name": _required(storage, "azure.account.name"),
    }
    for name, key in (
        ("azure.account.key", "account_key"),
        ("azure.sas.token", "sas_key"),
        ("azure.endpoint.url", "endpoint"),
    ):
        if name in storage:
            config[key] = storage[name]
    return config


def _required(storage: Mapping[str, str], name: str) -> str:
    value = storage.get(name, "")
    if not value:
        raise RemoteStorageSettingsError(f"storage.{name} is not set")
    return value


def _boolean(storage: Mapping[str, str], name: str, *, default: bool) -> bool:
    text = storage.get(name)
    if text is None:
        return default
    if text.strip().lower() not in ("true", "false"):
        raise RemoteStorageSettingsError(f"storage.{name} is {text!r}, expected true or false")
    return text.strip().lower() == "true"


def _milliseconds(storage: Mapping[str, str], name: str, default: int) -> int:
    text = storage.get(name)
    if text is None:
        return default
    if not text.strip().isdecimal() or not 0 < int(text) <= 86_400_000:
        raise RemoteStorageSettingsError(
            f"storage.{name} is {text!r}, expected 1 to 86400000 milliseconds"
        )
    return int(text)
