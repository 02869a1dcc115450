"""A client of schema registries that have Confluent's REST interface.

The driver fetches the schema of the columns, executors the schemas that records name by id. What a
registry returns under an id never changes, so each process keeps it.
"""

from __future__ import annotations

import base64
import json
import ssl
import time
from collections import OrderedDict
from http.client import HTTPException
from typing import Any, NamedTuple
from urllib.error import HTTPError
from urllib.parse import quote
from urllib.request import HTTPRedirectHandler, HTTPSHandler, Request, build_opener

from pyspark_ottla import errors
from pyspark_ottla.errors import ConnectorError
from pyspark_ottla.options.registry_options import RegistryOptions
from pyspark_ottla.options.security_options import resolve

# Far more than any schema; a bound on what is kept of a wrong server's response.
RESPONSE_BYTES_MAX = 8 << 20
# Schemas that refer to others: more than any hand-written set has.
REFERENCES_MAX = 500
PAUSE_FIRST_SECONDS = 0.1
PAUSE_MAX_SECONDS = 2.0
ERROR_TEXT_MAX = 200
# Schemas kept in a process; a topic has a few ids, and each schema is some kilobytes.
CACHE_MAX = 1000
ACCEPT = "application/vnd.schemaregistry.v1+json, application/json"

# The query for Protobuf's file descriptors in base64.
SERIALIZED = "?format=serialized"
FORMATS = {"AVRO": "avro", "PROTOBUF": "protobuf", "JSON": "json"}


class Schema(NamedTuple):
    """A schema as the registry has it. References come first needed, first."""

    format: str
    text: str
    references: tuple[tuple[str, str], ...] = ()  # the name it is imported by, and its text
    schema_id: int | None = None


class SchemaNotFoundError(Exception):
    """The registry does not know the id, the subject or the version."""


class _NoDescriptorsError(Exception):
    """The registry does not return a Protobuf schema as descriptors."""


class _NoRedirects(HTTPRedirectHandler):
    """Credentials are for the address that the user has named."""

    def redirect_request(self, *_: object) -> None:
        return None


class Registry:
    """One registry; not thread safe. Every call raises ConnectorError when it is unavailable."""

    def __init__(self, options: RegistryOptions) -> None:
        self._options = options
        self._headers = {"Accept": ACCEPT}
        if options.user_info:
            encoded = base64.b64encode(resolve(options.user_info).encode()).decode()
            self._headers["Authorization"] = f"Basic {encoded}"
        elif options.token:
            self._headers["Authorization"] = f"Bearer {resolve(options.token)}"
        self._opener = build_opener(_NoRedirects, HTTPSHandler(context=self._context()))
        self._by_id: OrderedDict[tuple[int, str], Schema] = OrderedDict()

    @property
    def name(self) -> str:
        return self._options.name

    def by_id(self, schema_id: int, format_: str) -> Schema:
        """Raises SchemaNotFoundError; the schema may be of another format than requested."""
        key = (schema_id, format_)
        if key not in self._by_id:
            schema = self._fetch(f"/schemas/ids/{schema_id}", format_)
            if len(self._by_id) >= CACHE_MAX:
                self._by_id.popitem(last=False)
            self._by_id[key] = schema._replace(schema_id=schema_id)
        return self._by_id[key]

    def by_subject(self, subject: str, version: int | None, format_: str) -> Schema:
        """The version of a subject, or its latest; raises SchemaNotFoundError."""
        path = _version_path(subject, "latest" if version is None else str(version))
        schema = self._fetch(path, format_)
        if schema.schema_id is None:
            raise self._not_a_registry()
        return schema

    def _fetch(self, path: str, format_: str) -> Schema:
        """A schema with its references; Protobuf as descriptors if the registry has all of them.

        Some registries do not know descriptors, some fail for schemas with references. Text needs
        a compiler, so it comes second.
        """
        if format_ == "protobuf":
            try:
                schema = self._schema(path, SERIALIZED)
            except _NoDescriptorsError:
                pass
            else:
                if all(map(is_base64, (schema.text, *dict(schema.references).values()))):
                    return schema
        return self._schema(path, "")

    def _schema(self, path: str, query: str) -> Schema:
        found = self._get(path + query)
        text = found.get("schema")
        if not isinstance(text, str):
            raise self._not_a_registry()
        references: dict[str, str] = {}
        self._collect(found, query, references, set())
        kind = str(found.get("schemaType") or "AVRO")
        schema_id = found.get("id")
        return Schema(
            FORMATS.get(kind, kind),
            text,
            tuple(references.items()),
            schema_id if isinstance(schema_id, int) else None,
        )

    def _collect(
        self, found: dict[str, Any], query: str, into: dict[str, str], seen: set[str]
    ) -> None:
        """References of references first, each once."""
        for reference in found.get("references") or []:
            name, subject = str(reference["name"]), str(reference["subject"])
            if name in seen:
                continue
            seen.add(name)
            if len(seen) > REFERENCES_MAX:
                raise ConnectorError(
                    errors.REGISTRY_UNAVAILABLE,
                    f"A schema in {self.name} refers to more than {REFERENCES_MAX} others",
                )
            other = self._get(_version_path(subject, str(reference["version"])) + query)
            self._collect(other, query, into, seen)
            into[name] = str(other.get("schema", ""))

    def _get(self, path: str) -> dict[str, Any]:
        """The JSON object at a path of any of the addresses, within the deadline."""
        deadline = time.monotonic() + self._options.timeout_ms / 1000
        pause = PAUSE_FIRST_SECONDS
        while True:
            urls = self._options.urls
            for number, url in enumerate(urls):
                # An equal share of the time, so that one address without a response is not all.
                share = (deadline - time.monotonic()) / (len(urls) - number)
                try:
                    return self._get_once(url + path, max(0.001, share))
                except HTTPError as error:
                    with error:
                        why = self._check_status(error, path)
                except (OSError, HTTPException) as error:
                    why = self._reason(error)
            if time.monotonic() + pause > deadline:
                raise self._unavailable(why)
            time.sleep(pause)
            pause = min(pause * 2, PAUSE_MAX_SECONDS)

    def _get_once(self, url: str, seconds: float) -> dict[str, Any]:
        deadline = time.monotonic() + seconds
        request = Request(url, headers=self._headers)
        parts: list[bytes] = []
        with self._opener.open(request, timeout=seconds) as response:
            while part := response.read1(1 << 16):
                parts.append(part)
                if sum(map(len, parts)) > RESPONSE_BYTES_MAX:
                    raise self._not_a_registry()
                if time.monotonic() > deadline:
                    raise TimeoutError("timed out")
        try:
            found = json.loads(b"".join(parts))
        except (ValueError, RecursionError):
            raise self._not_a_registry() from None
        if not isinstance(found, dict):
            raise self._not_a_registry()
        return found

    def _check_status(self, error: HTTPError, path: str) -> str:
        """Why to retry; raises for what no retry changes."""
        if error.code == 404 and self._has_error_code(error):
            raise SchemaNotFoundError(path)
        if error.code in (401, 403):
            raise ConnectorError(
                errors.AUTHENTICATION_FAILED,
                f"{self._capital()} rejects the credentials ({error.code})",
                "Check schema.registry.basic.auth.user.info or schema.registry.bearer.auth.token",
            )
        if path.endswith(SERIALIZED) and error.code not in (408, 429):
            raise _NoDescriptorsError
        if error.code < 500 and error.code not in (408, 429):
            raise self._unavailable(f"it returned {error.code} {error.reason}".rstrip())
        return f"it returned {error.code} {error.reason}".rstrip()

    @staticmethod
    def _has_error_code(error: HTTPError) -> bool:
        """A registry's own 404 is JSON with an error_code; that of another server is not."""
        try:
            found = json.loads(error.read(RESPONSE_BYTES_MAX))
        except (OSError, ValueError, RecursionError, HTTPException):
            return False
        return isinstance(found, dict) and "error_code" in found

    def _reason(self, error: Exception) -> str:
        reason = getattr(error, "reason", error)
        if isinstance(reason, ssl.SSLCertVerificationError):
            raise ConnectorError(
                errors.REGISTRY_UNAVAILABLE,
                f"The certificate of {self.name} is not trusted: {reason.verify_message}",
                "Set schema.registry.ssl.ca.location to the certificate of its authority (PEM)",
            ) from None
        return str(reason)[:ERROR_TEXT_MAX] or type(reason).__name__

    def _context(self) -> ssl.SSLContext:
        options = self._options
        given = (options.ca_location, options.certificate_location, options.key_location)
        files = [file for file in given if file]
        try:
            context = ssl.create_default_context(cafile=options.ca_location or None)
            if options.certificate_location:
                password = resolve(options.key_password) if options.key_password else None
                context.load_cert_chain(
                    options.certificate_location, options.key_location or None, password
                )
        except (OSError, ssl.SSLError) as error:
            raise ConnectorError(
                errors.INVALID_OPTION,
                f"A file of schema.registry.ssl.* cannot be used ({', '.join(files)}): {error}",
                "It must be PEM, and be there on the driver and on every executor",
            ) from None
        return context

    def _capital(self) -> str:
        return self.name[:1].upper() + self.name[1:]

    def _unavailable(self, why: str) -> ConnectorError:
        return ConnectorError(
            errors.REGISTRY_UNAVAILABLE,
            f"{self._capital()} cannot be used: {why}",
            "Check schema.registry.url, or raise schema.registry.timeout.ms; executors need to "
            "reach it, too",
        )

    def _not_a_registry(self) -> ConnectorError:
        return self._unavailable("its response is not that of a schema registry")


def _version_path(subject: str, version: str) -> str:
    return f"/subjects/{quote(subject, safe='')}/versions/{version}"


def is_base64(text: str) -> bool:
    """Not so the text of a `.proto` file, which has spaces and semicolons."""
    try:
        base64.b64decode("".join(text.split("\n")), validate=True)
    except ValueError:
        return False
    return True


_registries: dict[RegistryOptions, Registry] = {}


def registry_of(options: RegistryOptions) -> Registry:
    """The registry of this process with what it has fetched before."""
    if options not in _registries:
        _registries[options] = Registry(options)
    return _registries[options]
