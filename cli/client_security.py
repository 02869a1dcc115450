"""TLS and SASL of a command, from the properties of --command-config.

The stores of Java's clients (`ssl.truststore.*`, `ssl.keystore.*`) are read as the broker reads its
own. The settings of librdkafka (`ssl.ca.location` and others) name PEM files, and come first.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack

from ottla.broker.config.errors import ConfigError
from ottla.cli.output import usage
from ottla.protocol.client.security import Security

_PEM_WAY = "Or name PEM files: ssl.ca.location, and ssl.certificate.location with ssl.key.location."


def client_security(properties: Mapping[str, str], files: ExitStack) -> Security:
    """The settings, which name files that exist until `files` is closed. A store that cannot be
    read is wrong usage."""
    try:
        if Security.from_properties(properties).uses_tls:
            properties = {**properties, **_pem_files(properties, files)}
        return Security.from_properties(properties)
    except (ValueError, ConfigError) as error:
        raise usage(f"--command-config: {error}") from None


def _pem_files(properties: Mapping[str, str], files: ExitStack) -> dict[str, str]:
    """PEM files of what the settings of a Java client name; none where others name files."""
    from ottla.broker.config.key_stores import (  # not for commands without TLS
        check_sources,
        inline_keys,
        inline_trust,
        read_keys,
        read_trust,
    )
    from ottla.broker.config.pem_files import as_file

    def text(name: str) -> str | None:
        return properties.get(name) or None

    check_sources(text)
    found = {}
    trusted, keys = None, None
    key_password = text("ssl.key.password")
    try:
        if text("ssl.ca.location"):
            pass
        elif path := text("ssl.truststore.location"):
            trusted = read_trust(
                "ssl.truststore", path, text("ssl.truststore.type"), text("ssl.truststore.password")
            )
        elif inline := text("ssl.truststore.certificates"):
            trusted = inline_trust(inline)
        if text("ssl.certificate.location"):
            pass
        elif path := text("ssl.keystore.location"):
            password = text("ssl.keystore.password")
            # As Java: of several keys the first that it would prefer.
            keys = read_keys(
                "ssl.keystore", path, text("ssl.keystore.type"), password, key_password
            )[0]
        elif (key := text("ssl.keystore.key")) and (
            chain := text("ssl.keystore.certificate.chain")
        ):
            keys = inline_keys(key, chain, key_password)
    except ConfigError as error:
        if "ottla[keystores]" in str(error):
            raise ConfigError(f"{error} {_PEM_WAY}") from None
        raise
    if trusted is not None:
        found["ssl.ca.location"] = files.enter_context(as_file(trusted))
    if keys is not None:
        found["ssl.certificate.location"] = files.enter_context(as_file(keys.pem))
        # Without a password OpenSSL would ask for it on the terminal.
        found["ssl.key.password"] = keys.password or ""
    return found
