"""Settings that Kafka obeys and this broker cannot.

If ignoring a setting would protect the broker or its data less than its file says, the broker does
not start. A setting whose absence is only an inconvenience is named in one warning.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from functools import cache
from typing import NamedTuple

from ottla.broker.config.definitions import broker_settings
from ottla.broker.config.errors import ConfigError
from ottla.broker.config.listeners import PREFIX, base_name


class Refusal(NamedTuple):
    """`accepted` are the values, in lower case, that mean what this broker does anyway."""

    reason: str
    accepted: frozenset[str] = frozenset(("",))


_SECURITY = "org.apache.kafka.common.security."
_NO_CLASSES = "Java classes cannot be loaded here"


def _refusal(reason: str, *accepted: str) -> Refusal:
    return Refusal(reason, frozenset(("", *(each.lower() for each in accepted))))


#: By the name of the setting, without the prefixes of listener and mechanism.
REFUSED: dict[str, Refusal] = {
    "principal.builder.class": _refusal(
        f"{_NO_CLASSES}: clients would get other principals, and other rights, than that class "
        "gives them. Map names with ssl.principal.mapping.rules or "
        "sasl.kerberos.principal.to.local.rules and drop the setting.",
        f"{_SECURITY}authenticator.DefaultKafkaPrincipalBuilder",
    ),
    "ssl.engine.factory.class": _refusal(
        f"{_NO_CLASSES}: connections would be accepted that this factory rejects. Drop the "
        "setting.",
        f"{_SECURITY}ssl.DefaultSslEngineFactory",
    ),
    "ssl.provider": _refusal(
        "TLS is OpenSSL here, and Java's providers cannot be loaded. Drop the setting."
    ),
    "security.providers": _refusal(
        "Java's security providers cannot be loaded here. Drop the setting."
    ),
    "sasl.client.callback.handler.class": _refusal(f"{_NO_CLASSES}. Drop the setting."),
    "sasl.login.class": _refusal(
        f"{_NO_CLASSES}. Drop the setting.",
        f"{_SECURITY}authenticator.AbstractLogin",
        f"{_SECURITY}oauthbearer.internals.OAuthBearerRefreshingLogin",
    ),
    "sasl.login.callback.handler.class": _refusal(
        f"{_NO_CLASSES}. Drop the setting.",
        f"{_SECURITY}oauthbearer.OAuthBearerLoginCallbackHandler",
        f"{_SECURITY}oauthbearer.secured.OAuthBearerLoginCallbackHandler",
    ),
    "sasl.server.callback.handler.class": _refusal(
        f"{_NO_CLASSES}: users would be authenticated otherwise than by that class. Drop the "
        "setting.",
        f"{_SECURITY}oauthbearer.OAuthBearerValidatorCallbackHandler",
        f"{_SECURITY}oauthbearer.secured.OAuthBearerValidatorCallbackHandler",
    ),
}


_ZOOKEEPER_TLS = "zookeeper.ssl.client.enable"
_NEEDS_AUTHORIZER = ("super.users", "allow.everyone.if.no.acl.found")


def check_supported(given: Mapping[str, str]) -> None:
    """ConfigError for a setting that protects something in Kafka and would not do so here."""
    for name, text in given.items():
        refusal = REFUSED.get(base_name(name))
        if refusal is not None and text.strip().lower() not in refusal.accepted:
            raise ConfigError(f"{name}: {refusal.reason}")


@cache
def without_effect() -> frozenset[str]:
    """The settings that are accepted without effect (`settings/without_effect.txt`)."""
    path = os.path.join(os.path.dirname(__file__), "settings", "without_effect.txt")
    with open(path, encoding="ascii") as file:
        return frozenset(line.strip() for line in file if not line.startswith("#"))


def unused_settings(given: Mapping[str, str]) -> list[str]:
    """The given settings that have no effect here and are not at their default."""
    return sorted(name for name, text in given.items() if _is_unused(name, text, given))


def _is_unused(name: str, text: str, given: Mapping[str, str]) -> bool:
    base = base_name(name)
    if base == "sasl.jaas.config" and not name.startswith(PREFIX):
        return True  # Kafka too reads it for one mechanism of one listener only
    if name in _NEEDS_AUTHORIZER:
        return not given.get("authorizer.class.name", "").strip()
    if name.startswith("zookeeper.ssl.") and name != _ZOOKEEPER_TLS:
        return given.get(_ZOOKEEPER_TLS, "").strip().lower() != "true"
    setting = broker_settings().get(base)
    return (
        setting is not None and base in without_effect() and text.strip() != (setting.default or "")
    )
