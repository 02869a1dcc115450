"""The options of a schema registry, and where a field's schema is in it.

Values may hold `${env:NAME}` and `${file:/path:key}`, which the process that connects looks up.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from urllib.parse import urlsplit

from pyspark_ottla import errors
from pyspark_ottla.errors import ConnectorError
from pyspark_ottla.options.values import INT_MAX, OptionReader, invalid

PREFIX = "schema.registry."
REGISTRY_OPTIONS = (
    "schema.registry.url",
    "schema.registry.basic.auth.user.info",
    "schema.registry.bearer.auth.token",
    "schema.registry.ssl.ca.location",
    "schema.registry.ssl.certificate.location",
    "schema.registry.ssl.key.location",
    "schema.registry.ssl.key.password",
    "schema.registry.timeout.ms",
)
TIMEOUT_MS = 15_000


@dataclass(frozen=True, slots=True)
class RegistryOptions:
    """How to reach a registry. Secrets are kept out of the repr."""

    urls: tuple[str, ...]
    user_info: str = field(default="", repr=False)
    token: str = field(default="", repr=False)
    ca_location: str = ""
    certificate_location: str = ""
    key_location: str = ""
    key_password: str = field(default="", repr=False)
    timeout_ms: int = TIMEOUT_MS  # for a look-up with all its retries

    @property
    def name(self) -> str:
        return "the schema registry " + ", ".join(self.urls)


def parse_registry(reader: OptionReader) -> RegistryOptions | None:
    """None without a URL; raises ConnectorError."""

    def text(name: str) -> str:
        return reader.text(PREFIX + name) or ""

    given = text("url")
    if not given:
        others = [option for option in REGISTRY_OPTIONS if reader.text(option) is not None]
        if others:
            raise ConnectorError(
                errors.MISSING_OPTION, f"The option {others[0]} is set, but {PREFIX}url is not"
            )
        return None
    urls = tuple(url.strip().rstrip("/") for url in given.split(",") if url.strip())
    for url in urls:
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname or parts.query:
            raise invalid(f"{PREFIX}url", given, "http://host:port or https://host:port")
        if "@" in parts.netloc:
            # It would be in every plan and in every error text.
            raise ConnectorError(
                errors.INVALID_OPTION,
                f"The option {PREFIX}url holds a user or a password",
                f"Set {PREFIX}basic.auth.user.info to ${{env:NAME}} instead",
            )
    user_info, token = text("basic.auth.user.info"), text("bearer.auth.token")
    if user_info and token:
        raise ConnectorError(
            errors.CONFLICTING_OPTIONS,
            f"{PREFIX}basic.auth.user.info and {PREFIX}bearer.auth.token are both set",
            "Set one of them",
        )
    if user_info and ":" not in user_info:
        raise ConnectorError(
            errors.INVALID_OPTION,
            f"The option {PREFIX}basic.auth.user.info has no colon",
            "Expected user:password, or ${env:NAME}",
        )
    key, certificate = text("ssl.key.location"), text("ssl.certificate.location")
    if key and not certificate:
        raise ConnectorError(
            errors.MISSING_OPTION,
            f"{PREFIX}ssl.key.location is set, but {PREFIX}ssl.certificate.location is not",
        )
    return RegistryOptions(
        urls=urls,
        user_info=user_info,
        token=token,
        ca_location=text("ssl.ca.location"),
        certificate_location=certificate,
        key_location=key,
        key_password=text("ssl.key.password"),
        timeout_ms=reader.integer_or(f"{PREFIX}timeout.ms", TIMEOUT_MS, minimum=1, maximum=INT_MAX),
    )
