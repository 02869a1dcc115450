"""TLS and SASL settings as users write them, in Java's names or in librdkafka's.

The result is plain data that can be pickled. Values may hold `${env:NAME}` and `${file:/path:key}`
(or `${file:/path}` for the whole file): they are looked up by `resolve` in the process that opens
the connection, so that the secret itself is in no plan, no checkpoint and no pickle.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from dataclasses import dataclass, field, fields, replace
from typing import Any, TypeVar

from pyspark_ottla import errors
from pyspark_ottla.errors import ConnectorError
from pyspark_ottla.options.oauth_options import OAUTH_SETTINGS, OAuthOptions, parse_oauth
from pyspark_ottla.options.values import OptionReader, invalid

PROTOCOLS = ("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL")
MECHANISMS = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER")

SECURITY_SETTINGS = (
    "security.protocol",
    "sasl.mechanism",
    "sasl.mechanisms",
    "sasl.jaas.config",
    "sasl.username",
    "sasl.password",
    "ssl.ca.location",
    "ssl.ca.pem",
    "ssl.certificate.location",
    "ssl.certificate.pem",
    "ssl.key.location",
    "ssl.key.pem",
    "ssl.key.password",
    "ssl.truststore.type",
    "ssl.truststore.location",
    "ssl.truststore.certificates",
    "ssl.keystore.type",
    "ssl.keystore.location",
    "ssl.keystore.certificate.chain",
    "ssl.keystore.key",
    "ssl.endpoint.identification.algorithm",
    "enable.ssl.certificate.verification",
    *OAUTH_SETTINGS,
)

_JAAS = re.compile(r"\s*(?P<module>[\w.$]+)\s+(?P<flag>\w+)(?P<options>.*?);\s*", re.DOTALL)
_JAAS_OPTION = re.compile(
    r"\s*(?P<name>[\w.]+)\s*=\s*(?:\"(?P<quoted>(?:[^\"\\]|\\.)*)\"|(?P<bare>[^\s\";]+))"
)
_REFERENCE = re.compile(r"\$\{(env|file):([^}]*)\}")


@dataclass(frozen=True, slots=True)
class SecurityOptions:
    """How to open a connection. Secrets are kept out of the repr."""

    protocol: str = "PLAINTEXT"
    mechanism: str = ""
    username: str = field(default="", repr=False)
    password: str = field(default="", repr=False)
    oauth: OAuthOptions | None = None
    ca_location: str = ""
    ca_pem: str = field(default="", repr=False)
    certificate_location: str = ""
    certificate_pem: str = field(default="", repr=False)
    key_location: str = ""
    key_pem: str = field(default="", repr=False)
    key_password: str = field(default="", repr=False)
    check_hostname: bool = True

    @property
    def uses_tls(self) -> bool:
        return self.protocol in ("SSL", "SASL_SSL")

    @property
    def uses_sasl(self) -> bool:
        return self.protocol.startswith("SASL_")


def parse_jaas(text: str, option: str) -> tuple[str, dict[str, str]]:
    """The login module's class name and its options. The text itself is in no error."""
    wanted = 'like: <LoginModule class> required username="..." password="...";'
    match = _JAAS.fullmatch(text if text.rstrip().endswith(";") else text + ";")
    if match is None:
        raise ConnectorError(
            errors.INVALID_OPTION, f"The option {option} is no JAAS entry", f"Expected one {wanted}"
        )
    found: dict[str, str] = {}
    position, body = 0, match.group("options")
    while body[position:].strip():
        entry = _JAAS_OPTION.match(body, position)
        if entry is None:
            raise ConnectorError(
                errors.INVALID_OPTION,
                f'The option {option} has something that is no name="value" after '
                f"{list(found) or 'the login module'}",
                f"Expected an entry {wanted}",
            )
        quoted = entry.group("quoted")
        bare: str = entry.group("bare") or ""
        found[entry.group("name")] = bare if quoted is None else re.sub(r"\\(.)", r"\1", quoted)
        position = entry.end()
    return match.group("module"), found


_MODULES = {
    "PlainLoginModule": ("PLAIN",),
    "ScramLoginModule": ("SCRAM-SHA-256", "SCRAM-SHA-512"),
    "OAuthBearerLoginModule": ("OAUTHBEARER",),
}


def _jaas_entries(jaas: str, mechanism: str) -> dict[str, str]:
    """The options of the login module, which must be one for the mechanism."""
    option = "kafka.sasl.jaas.config"
    module, entries = parse_jaas(jaas, option)
    name = module.rsplit(".", 1)[-1]  # also kafkashaded.org.apache..., as one vendor writes it
    if name == "Krb5LoginModule":
        raise _no_kerberos(f"the login module {name} in {option}")
    expected = _MODULES.get(name)
    if expected is None:
        raise ConnectorError(
            errors.UNSUPPORTED_OPTION,
            f"The option {option} uses the login module {name}, which is not supported",
            f"Supported are {', '.join(_MODULES)}",
        )
    if mechanism not in expected:
        raise ConnectorError(
            errors.CONFLICTING_OPTIONS,
            f"The login module {name} of {option} does not fit kafka.sasl.mechanism "
            f"{mechanism or '(not set)'}",
            f"Set kafka.sasl.mechanism to {' or '.join(expected)}",
        )
    return entries


def _no_kerberos(where: str) -> ConnectorError:
    return ConnectorError(
        errors.UNSUPPORTED_OPTION,
        f"Kerberos ({where}) is not supported",
        "Connect to a listener of the brokers that takes SCRAM-SHA-512, OAUTHBEARER or client "
        "certificates (security.protocol SSL); the brokers can have such a listener beside the "
        "one with Kerberos",
    )


def parse_security(reader: OptionReader) -> SecurityOptions:
    """Reads the `kafka.`-prefixed settings above; raises ConnectorError if they conflict."""

    def text(name: str) -> str:
        return reader.text(f"kafka.{name}") or ""

    protocol = reader.choice("kafka.security.protocol", "PLAINTEXT", PROTOCOLS)
    mechanism = username = password = ""
    oauth: OAuthOptions | None = None
    if protocol.startswith("SASL_"):
        mechanism = _parse_mechanism(reader, text)
        if mechanism == "OAUTHBEARER":
            jaas = text("sasl.jaas.config")
            oauth = parse_oauth(reader, _jaas_entries(jaas, mechanism) if jaas else {})
        else:
            username, password = _parse_password(text, mechanism)
    elif text("sasl.jaas.config") or text("sasl.password"):
        raise ConnectorError(
            errors.CONFLICTING_OPTIONS,
            f"SASL credentials are given, but kafka.security.protocol is {protocol}",
            "Set kafka.security.protocol to SASL_SSL (or SASL_PLAINTEXT on a trusted network)",
        )
    for store in ("truststore", "keystore"):
        kind = text(f"ssl.{store}.type").upper()
        if (text(f"ssl.{store}.location") or kind) and kind != "PEM":
            plain = "kafka.ssl.ca.location or kafka.ssl.ca.pem"
            if store == "keystore":
                plain = "kafka.ssl.certificate.pem and kafka.ssl.key.pem (or .location)"
            raise ConnectorError(
                errors.UNSUPPORTED_OPTION,
                f"The option kafka.ssl.{store}.location names a Java key store "
                f"({kind or 'JKS'}), which only Java reads",
                f"Export it as PEM (keytool -importkeystore, openssl pkcs12) and use {plain}",
            )
    if not reader.boolean("kafka.enable.ssl.certificate.verification", True):
        raise ConnectorError(
            errors.UNSUPPORTED_OPTION,
            "kafka.enable.ssl.certificate.verification is false, which would trust any server",
            "Name the brokers' certificate authority in kafka.ssl.ca.location or kafka.ssl.ca.pem",
        )
    keystore = text("ssl.keystore.location")  # a PEM key store holds both key and certificates
    algorithm = reader.text("kafka.ssl.endpoint.identification.algorithm")
    turned_off = "kafka.ssl.endpoint.identification.algorithm"
    if algorithm is not None and algorithm.lower() not in ("https", "none"):
        raise invalid(turned_off, algorithm, "https, or none (or empty) for no check")
    given_but_empty = algorithm is None and bool(reader.given([turned_off]))
    return SecurityOptions(
        protocol=protocol,
        mechanism=mechanism,
        username=username,
        password=password,
        oauth=oauth,
        ca_location=text("ssl.ca.location") or text("ssl.truststore.location"),
        ca_pem=text("ssl.ca.pem") or text("ssl.truststore.certificates"),
        certificate_location=text("ssl.certificate.location") or keystore,
        certificate_pem=text("ssl.certificate.pem") or text("ssl.keystore.certificate.chain"),
        key_location=text("ssl.key.location") or keystore,
        key_pem=text("ssl.key.pem") or text("ssl.keystore.key"),
        key_password=text("ssl.key.password"),
        check_hostname=not given_but_empty and (algorithm or "https").lower() == "https",
    )


def _parse_mechanism(reader: OptionReader, text: Callable[[str], str]) -> str:
    name = "kafka.sasl.mechanisms" if text("sasl.mechanisms") else "kafka.sasl.mechanism"
    if text(name.removeprefix("kafka.")).upper() == "GSSAPI":
        raise _no_kerberos(f"{name} GSSAPI")
    return reader.choice(name, "", MECHANISMS)


def _parse_password(text: Callable[[str], str], mechanism: str) -> tuple[str, str]:
    jaas = text("sasl.jaas.config")
    if jaas:
        entries = _jaas_entries(jaas, mechanism)
        for wanted in ("username", "password"):
            if wanted not in entries:
                raise ConnectorError(
                    errors.INVALID_OPTION,
                    f"The option kafka.sasl.jaas.config has no {wanted}",
                    f'Add {wanted}="..." to the entry',
                )
        return entries["username"], entries["password"]
    if not mechanism or not text("sasl.username"):
        missing = "kafka.sasl.username" if mechanism else "kafka.sasl.mechanism"
        raise ConnectorError(
            errors.MISSING_OPTION,
            f"kafka.security.protocol is a SASL one, but {missing} is not set",
            "Set kafka.sasl.mechanism with kafka.sasl.username and kafka.sasl.password, "
            "or kafka.sasl.jaas.config",
        )
    return text("sasl.username"), text("sasl.password")


def _look_up(kind: str, argument: str) -> str:
    if kind == "env":
        value = os.environ.get(argument)
        if value is None:
            raise ConnectorError(
                errors.INVALID_OPTION,
                f"A kafka option refers to the environment variable {argument}, which is not set "
                "in this process",
                "It must be set for the driver and for every executor (spark.executorEnv.*)",
            )
        return value
    path, _, key = argument.partition(":")
    try:
        with open(path, encoding="utf-8") as file:
            content = file.read()
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is no text"
        raise ConnectorError(
            errors.INVALID_OPTION,
            f"A kafka option refers to the file {path}, which cannot be read: {why}",
            "It must be there on the driver and on every executor",
        ) from None
    if not key:
        return content.strip()
    for line in content.splitlines():
        name, separator, value = line.partition("=")
        if separator and name.strip() == key:
            return value.strip()
    raise ConnectorError(
        errors.INVALID_OPTION,
        f"A kafka option refers to {key} in the file {path}, which has no line {key}=...",
        "Add it, or leave the key out to use the whole file",
    )


def resolve(text: str) -> str:
    """`text` with its references replaced by what they stand for in this process."""
    return _REFERENCE.sub(lambda match: _look_up(match.group(1), match.group(2)), text)


def resolve_all(security: SecurityOptions) -> SecurityOptions:
    """The same with every reference replaced, in this process."""
    oauth = security.oauth
    if oauth is not None:
        oauth = replace(
            _resolved(oauth),
            extensions=tuple((name, resolve(value)) for name, value in oauth.extensions),
            claims=tuple((kind, name, resolve(value)) for kind, name, value in oauth.claims),
        )
    return replace(_resolved(security), oauth=oauth)


Options = TypeVar("Options", SecurityOptions, OAuthOptions)


def _resolved(options: Options) -> Options:
    changes: dict[str, Any] = {}
    for item in fields(options):
        value = getattr(options, item.name)
        if isinstance(value, str) and "${" in value:
            changes[item.name] = resolve(value)
    return replace(options, **changes)
