"""The settings of the console that a start checks before it writes anything."""

from __future__ import annotations

from typing import TYPE_CHECKING
from urllib.parse import SplitResult, urlsplit

from ottla.broker.config.errors import ConfigError, raise_all

if TYPE_CHECKING:
    from collections.abc import Callable

    from ottla.broker.config.broker_config import BrokerConfig

# A token is not guessed: with letters and digits this is 95 bits.
MIN_TOKEN_CHARACTERS = 16

URL = "ottla.console.schema.registry.url"


def check_console(config: BrokerConfig) -> None:
    """Raises ConfigError for settings that would serve other machines without a token, and for
    those that the console could not use."""
    if not config.ottla_console_enable:
        return
    url = config.ottla_console_schema_registry_url
    checks: list[Callable[[], object]] = [
        lambda: _check_token(config.ottla_console_token, config.ottla_console_allow_remote),
        lambda: parse_principal(config.ottla_console_principal),
    ]
    if url is not None:
        checks.append(lambda: parse_registry_url(url))
    errors = []
    for check in checks:
        try:
            check()
        except ConfigError as error:
            errors.append(error)
    raise_all(errors)


def _check_token(token: str | None, allow_remote: bool) -> None:
    if allow_remote and not token:
        raise ConfigError(
            "ottla.console.allow.remote: other machines need a token; set ottla.console.token, or "
            "serve this machine only."
        )
    if token and len(token) < MIN_TOKEN_CHARACTERS:
        raise ConfigError(f"ottla.console.token: use {MIN_TOKEN_CHARACTERS} characters or more.")


def parse_principal(text: str) -> tuple[str, str]:
    """ "User:alice" of a setting as kind and name. Raises ConfigError."""
    kind, colon, name = text.partition(":")
    if not (kind and colon and name):
        raise ConfigError(
            f"ottla.console.principal: {text!r} is not a principal, such as User:alice"
        )
    return kind, name


def parse_registry_url(url: str) -> SplitResult:
    """The parts of the URL of a schema registry. Raises ConfigError for one that is not HTTP."""
    try:
        parts = urlsplit(url)
        usable = bool(parts.hostname) and (parts.port is None or parts.port >= 0)
    except ValueError:
        parts, usable = urlsplit(""), False
    if "@" in url:  # the error is logged: it has no password
        raise ConfigError(f"{URL} has a user; user and password are in {URL[:-3]}user.info")
    if parts.scheme not in ("http", "https") or not usable:
        raise ConfigError(f"{URL}: {url!r} is not a URL such as http://registry:8081")
    return parts
