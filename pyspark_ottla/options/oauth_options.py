"""The settings of SASL OAUTHBEARER: where tokens come from. In Java's names or in librdkafka's.

Tokens are made by the brokers' own unsecured scheme (for trying things), fetched from a token
endpoint with a client's id and secret, read from a file, or given by a function of the user's. The
result is plain data that can be pickled; `oauth_tokens` gets the tokens.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from pyspark_ottla import errors
from pyspark_ottla.errors import ConnectorError
from pyspark_ottla.options.values import OptionReader, invalid
from pyspark_ottla.transform import PATH as FUNCTION_PATH

OAUTH_SETTINGS = (
    "sasl.oauthbearer.token.endpoint.url",
    "sasl.oauthbearer.client.id",
    "sasl.oauthbearer.client.secret",
    # As Java's clients of 4.1 and newer have it.
    "sasl.oauthbearer.client.credentials.client.id",
    "sasl.oauthbearer.client.credentials.client.secret",
    "sasl.oauthbearer.scope",
    "sasl.oauthbearer.extensions",
    "sasl.oauthbearer.method",
    "sasl.oauthbearer.header.urlencode",
    "sasl.oauthbearer.token.function",
    "sasl.login.callback.handler.class",
    "sasl.login.read.timeout.ms",
)

UNSECURED = "unsecured"
ENDPOINT = "endpoint"
FILE = "file"
FUNCTION = "function"

# Java's classes that do what is done here.
_HANDLERS = ("OAuthBearerLoginCallbackHandler", "OAuthBearerUnsecuredLoginCallbackHandler")
_EXTENSION = re.compile(r"[A-Za-z]+")
_LIFETIME_SECONDS = 3600

Pairs = tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class OAuthOptions:
    """How to get a token. `source` is an address, a path or a function's name, by `kind`."""

    kind: str = ""
    source: str = ""
    client_id: str = field(default="", repr=False)
    client_secret: str = field(default="", repr=False)
    scope: str = ""
    encodes_credentials: bool = False
    timeout_ms: int = 10_000
    # Kafka's extensions of the mechanism, sent beside the token.
    extensions: Pairs = ()
    # Of an unsecured token: ("String", name, value) and the like, as its JAAS options have them.
    claims: tuple[tuple[str, str, str], ...] = ()
    principal_claim: str = "sub"
    lifetime_seconds: int = _LIFETIME_SECONDS


def parse_oauth(reader: OptionReader, jaas: Mapping[str, str]) -> OAuthOptions:
    """`jaas` holds the options of an OAuthBearerLoginModule, if there is one."""

    def text(name: str) -> str:
        return reader.text(f"kafka.sasl.{name}") or ""

    handler = text("login.callback.handler.class")
    if handler and not handler.endswith(_HANDLERS):
        raise ConnectorError(
            errors.UNSUPPORTED_OPTION,
            f"The option kafka.sasl.login.callback.handler.class names {handler}, and a Java class "
            "cannot run here",
            "Set kafka.sasl.oauthbearer.token.endpoint.url with a client's id and secret, or "
            "kafka.sasl.oauthbearer.token.function",
        )
    method = reader.choice("kafka.sasl.oauthbearer.method", "default", ("default", "oidc"))
    extensions = _extensions(text, jaas)
    function, url = text("oauthbearer.token.function"), text("oauthbearer.token.endpoint.url")
    if function and url:
        raise ConnectorError(
            errors.CONFLICTING_OPTIONS,
            "kafka.sasl.oauthbearer.token.function and kafka.sasl.oauthbearer.token.endpoint.url "
            "are both set",
            "Set the one that tokens come from",
        )
    if function:
        if FUNCTION_PATH.fullmatch(function) is None:
            option = "kafka.sasl.oauthbearer.token.function"
            raise invalid(option, function, "a function as package.module:function")
        return OAuthOptions(FUNCTION, function, extensions=extensions)
    if url:
        return _parse_endpoint(reader, text, url, jaas, extensions)
    unsecured = any(name.startswith("unsecuredLogin") for name in jaas)
    if unsecured and method != "oidc" and not handler.endswith(_HANDLERS[:1]):
        return _parse_unsecured(jaas, extensions)
    raise ConnectorError(
        errors.MISSING_OPTION,
        "kafka.sasl.mechanism is OAUTHBEARER, but no source of tokens is set",
        "Set kafka.sasl.oauthbearer.token.endpoint.url, with clientId and clientSecret in "
        "kafka.sasl.jaas.config or kafka.sasl.oauthbearer.client.id and .client.secret; or "
        "kafka.sasl.oauthbearer.token.function; or, for trying things only, "
        "unsecuredLoginStringClaim_sub in kafka.sasl.jaas.config",
    )


def _parse_endpoint(
    reader: OptionReader,
    text: Callable[[str], str],
    url: str,
    jaas: Mapping[str, str],
    extensions: Pairs,
) -> OAuthOptions:
    from urllib.parse import urlsplit

    option = "kafka.sasl.oauthbearer.token.endpoint.url"
    expected = "https://host/path of a token endpoint, or file:///path of a file with a token"
    try:
        parts = urlsplit(url)
        usable = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        raise invalid(option, "(not shown)", expected) from None
    if parts.username or parts.password:  # the value is not shown: it holds a password
        raise invalid(option, "(not shown)", f"{expected}, without a user name in it")
    if parts.scheme == "file" and parts.path:
        return OAuthOptions(FILE, parts.path, extensions=extensions)
    if not usable:
        raise invalid(option, url, expected)
    newer = "oauthbearer.client.credentials.client"
    client_id = jaas.get("clientId") or text("oauthbearer.client.id") or text(f"{newer}.id")
    client_secret = jaas.get("clientSecret") or text("oauthbearer.client.secret")
    client_secret = client_secret or text(f"{newer}.secret")
    for name, value in (("id", client_id), ("secret", client_secret)):
        if not value:
            raise ConnectorError(
                errors.MISSING_OPTION,
                f"{option} is set, but the client's {name} for it is not",
                f'Set kafka.sasl.oauthbearer.client.{name}, or client{name.title()}="..." in '
                "kafka.sasl.jaas.config",
            )
    return OAuthOptions(
        ENDPOINT,
        url,
        client_id,
        client_secret,
        jaas.get("scope") or text("oauthbearer.scope"),
        reader.boolean("kafka.sasl.oauthbearer.header.urlencode", False),
        reader.integer_or("kafka.sasl.login.read.timeout.ms", 10_000, minimum=1, maximum=600_000),
        extensions,
    )


def _parse_unsecured(jaas: Mapping[str, str], extensions: Pairs) -> OAuthOptions:
    option = "kafka.sasl.jaas.config"
    claims = []
    for name, value in jaas.items():
        match = re.fullmatch(r"unsecuredLogin(String|Number|List)Claim_(\w+)", name)
        if match is None:
            continue
        kind, claim = match.groups()
        if kind == "Number":
            try:
                float(value)
            except ValueError:
                raise invalid(f"{name} of {option}", value, "a number") from None
        claims.append((kind, claim, value))
    principal = jaas.get("unsecuredLoginPrincipalClaimName", "sub")
    if ("String", principal) not in [claim[:2] for claim in claims]:
        raise ConnectorError(
            errors.MISSING_OPTION,
            f"The option {option} does not name the user of its unsecured tokens",
            f'Add unsecuredLoginStringClaim_{principal}="..." to the entry',
        )
    lifetime = jaas.get("unsecuredLoginLifetimeSeconds", str(_LIFETIME_SECONDS))
    if not re.fullmatch(r"[1-9]\d{0,8}", lifetime, re.ASCII):
        name = f"unsecuredLoginLifetimeSeconds of {option}"
        raise invalid(name, lifetime, "a whole number of seconds")
    return OAuthOptions(
        UNSECURED,
        extensions=extensions,
        claims=tuple(claims),
        principal_claim=principal,
        lifetime_seconds=int(lifetime),
    )


def _extensions(text: Callable[[str], str], jaas: Mapping[str, str]) -> Pairs:
    """From `extension_name` of a JAAS entry, and from librdkafka's `name=value,name=value`."""
    found: dict[str, str] = {}
    for entry in filter(None, text("oauthbearer.extensions").split(",")):
        name, _, value = entry.partition("=")
        found[name.strip()] = value.strip()
    for option, value in jaas.items():
        for prefix in ("extension_", "unsecuredLoginExtension_"):
            if option.startswith(prefix):
                found[option.removeprefix(prefix)] = value
    for name, value in found.items():
        if _EXTENSION.fullmatch(name) is None or name == "auth" or "\x01" in value:
            raise ConnectorError(
                errors.INVALID_OPTION,
                f"The SASL extension {name!r} is none: its name must be of letters only, and not "
                "auth",
                "Correct extension_<name> in kafka.sasl.jaas.config, or "
                "kafka.sasl.oauthbearer.extensions",
            )
    return tuple(sorted(found.items()))
