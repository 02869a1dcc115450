"""The user that a client certificate stands for (`ssl.principal.mapping.rules`).

The name of a certificate is written as Java does (RFC 2253: the last part first), because rules
and access lists of an existing cluster match that text: `CN=writer,OU=apps,O=acme,C=DE`.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

from ottla.broker.config.errors import ConfigError
from ottla.broker.requests.request_context import Principal

ANONYMOUS = Principal("User", "ANONYMOUS")

# What RFC 2253 has a short name for; all others go by number, with the value in hexadecimal DER.
_SHORT_NAMES = {
    "commonName": "CN",
    "localityName": "L",
    "stateOrProvinceName": "ST",
    "organizationName": "O",
    "organizationalUnitName": "OU",
    "countryName": "C",
    "streetAddress": "STREET",
    "domainComponent": "DC",
    "userId": "UID",
}

_IA5_STRING = 0x16
_EMAIL_NUMBER = "1.2.840.113549.1.9.1"

_RULE = re.compile(
    r"\s*(?:(?P<default>DEFAULT)|RULE:(?P<pattern>(?:\\.|[^\\/])*)/(?P<replacement>(?:\\.|[^\\/])*)"
    r"/(?P<case>[LU]?))\s*(?:,|\n|$)"
)


class UnknownCertificate(ValueError):
    """No rule makes a user of the certificate's name; the connection cannot be used."""


class _Rule(NamedTuple):
    pattern: re.Pattern[str] | None  # None: DEFAULT, the name as it is
    replacement: str
    case: str


def principal_reader(rules: str) -> Callable[[dict[str, Any]], Principal]:
    """A function from a verified certificate (as `ssl` presents it) to its principal.

    Without a certificate it is ANONYMOUS, as in Kafka. ConfigError when a rule is ill-formed; the
    function raises UnknownCertificate.
    """
    parsed = _parse(rules)

    def read(certificate: dict[str, Any]) -> Principal:
        if not certificate:
            return ANONYMOUS
        return Principal("User", _apply(parsed, distinguished_name(certificate)))

    return read


def distinguished_name(certificate: dict[str, Any]) -> str:
    """The subject as RFC 2253 writes it."""
    parts = []
    for several in reversed(certificate.get("subject", ())):
        parts.append("+".join(_attribute(kind, value) for kind, value in several))
    return ",".join(parts)


def _attribute(kind: str, value: str) -> str:
    short = _SHORT_NAMES.get(kind)
    if short is not None:
        return f"{short}={_escape(value)}"
    if kind == "emailAddress":
        encoded = value.encode("ascii", "replace")
        return f"{_EMAIL_NUMBER}=#{_IA5_STRING:02x}{len(encoded):02x}{encoded.hex()}"
    return f"{kind}={_escape(value)}"


def _escape(value: str) -> str:
    escaped = re.sub(r'([,+"\\<>;])', r"\\\1", value)
    if escaped.startswith((" ", "#")):
        escaped = "\\" + escaped
    if escaped.endswith(" ") and len(escaped) > 1:
        escaped = escaped[:-1] + "\\ "
    return escaped


def _parse(text: str) -> list[_Rule]:
    text = text.strip() or "DEFAULT"
    rules: list[_Rule] = []
    position = 0
    while position < len(text):
        found = _RULE.match(text, position)
        if found is None:
            raise ConfigError(
                f"ssl.principal.mapping.rules: {text[position:]!r} is neither DEFAULT nor "
                "RULE:pattern/replacement/ (with L or U behind it for lower or upper case)."
            )
        position = found.end()
        if found["default"]:
            rules.append(_Rule(None, "", ""))
            continue
        try:
            pattern = re.compile(found["pattern"])
        except re.error as error:
            raise ConfigError(
                f"ssl.principal.mapping.rules: the pattern {found['pattern']!r} is wrong: {error}."
            ) from None
        rules.append(_Rule(pattern, found["replacement"], found["case"]))
    return rules


def _apply(rules: list[_Rule], name: str) -> str:
    for rule in rules:
        if rule.pattern is None:
            return name
        found = rule.pattern.fullmatch(name)
        if found is not None:
            mapped = re.sub(r"\$(\d)", partial(_group, found), rule.replacement)
            return {"L": mapped.lower(), "U": mapped.upper()}.get(rule.case, mapped)
    raise UnknownCertificate(f"no rule of ssl.principal.mapping.rules fits the name {name}")


def _group(found: re.Match[str], reference: re.Match[str]) -> str:
    """What `$1` in a replacement stands for; a number without a group stays as it is."""
    number = int(reference[1])
    return found[number] or "" if number <= found.re.groups else reference[0]
