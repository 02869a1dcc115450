"""The versions of TLS and the cipher suites of a context (`ssl.enabled.protocols`,
`ssl.cipher.suites`).

Java has one list of suites for all versions, and a version without a suite in it cannot be used.
OpenSSL has two lists, and Python sets only that of TLS 1.2 and older, before Python 3.15.
"""

from __future__ import annotations

import ssl
from collections.abc import Callable, Sequence
from typing import Any

from ottla.broker.config.definitions import split_list
from ottla.broker.config.errors import ConfigError

_VERSIONS = {
    "TLSv1": ssl.TLSVersion.TLSv1,
    "TLSv1.1": ssl.TLSVersion.TLSv1_1,
    "TLSv1.2": ssl.TLSVersion.TLSv1_2,
    "TLSv1.3": ssl.TLSVersion.TLSv1_3,
}
_NEWEST = "TLSv1.3"

# What OpenSSL uses for TLS 1.3 by default.
_DEFAULT_SUITES = frozenset(
    ("TLS_AES_256_GCM_SHA384", "TLS_CHACHA20_POLY1305_SHA256", "TLS_AES_128_GCM_SHA256")
)
_SUITES_OF_TLS_1_3 = _DEFAULT_SUITES | {"TLS_AES_128_CCM_SHA256", "TLS_AES_128_CCM_8_SHA256"}


def limit_context(context: ssl.SSLContext, settings: Callable[[str], str | None]) -> None:
    """Allows the versions and suites of the settings, and no others. Raises ConfigError."""
    # Kafka does not renegotiate either; OpenSSL before 3.0 lets clients do it.
    context.options |= ssl.OP_NO_RENEGOTIATION
    protocols = split_list(settings("ssl.enabled.protocols") or "") or ["TLSv1.2", "TLSv1.3"]
    unknown = [name for name in protocols if name not in _VERSIONS]
    if unknown:
        raise ConfigError(
            f"ssl.enabled.protocols: {', '.join(unknown)} is not known; write "
            f"{', '.join(_VERSIONS)}."
        )
    suites = split_list(settings("ssl.cipher.suites") or "")
    if suites:
        protocols = _limit_suites(context, protocols, suites)
    context.minimum_version, context.maximum_version = _range(protocols)


def _limit_suites(
    context: ssl.SSLContext, protocols: Sequence[str], suites: Sequence[str]
) -> list[str]:
    """Sets the suites; returns the versions for which there are some."""
    newest = [suite for suite in suites if suite in _SUITES_OF_TLS_1_3]
    older = [suite for suite in suites if suite not in _SUITES_OF_TLS_1_3]
    if older:
        names = [openssl_name(suite) for suite in older]
        wrong = [suite for suite, name in zip(older, names, strict=True) if not _exists(name)]
        if wrong:
            raise ConfigError(f"ssl.cipher.suites: OpenSSL has none of {', '.join(wrong)}.")
        context.set_ciphers(":".join(names))
    usable = [each for each in protocols if (newest if each == _NEWEST else older)]
    if not usable:
        raise ConfigError(
            f"ssl.cipher.suites has no suite for {', '.join(protocols)} (ssl.enabled.protocols)."
        )
    if _NEWEST in usable:
        _limit_newest(context, newest)
    return usable


def _limit_newest(context: Any, suites: Sequence[str]) -> None:
    if hasattr(context, "set_ciphersuites"):  # Python 3.15
        context.set_ciphersuites(":".join(suites))
    elif set(suites) != _DEFAULT_SUITES:
        missing = ", ".join(sorted(_DEFAULT_SUITES - set(suites))) or "none"
        raise ConfigError(
            f"ssl.cipher.suites: this Python cannot choose suites of TLS 1.3: clients could use "
            f"those that are not named here ({missing}). Name "
            f"{', '.join(sorted(_DEFAULT_SUITES))}, or set ssl.enabled.protocols=TLSv1.2, or drop "
            "the suites of TLS 1.3 from the list."
        )


def _exists(name: str) -> bool:
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).set_ciphers(name)
    except ssl.SSLError:
        return False
    return True


def _range(protocols: Sequence[str]) -> tuple[ssl.TLSVersion, ssl.TLSVersion]:
    """Lowest and highest version: OpenSSL allows what lies between, too."""
    order = list(_VERSIONS)
    numbers = sorted({order.index(name) for name in protocols})
    if numbers != list(range(numbers[0], numbers[-1] + 1)):
        between = [order[number] for number in range(numbers[0], numbers[-1])]
        raise ConfigError(
            "ssl.enabled.protocols: the versions must be neighbours, for OpenSSL would allow "
            f"{', '.join(each for each in between if each not in protocols)} too."
        )
    return _VERSIONS[order[numbers[0]]], _VERSIONS[order[numbers[-1]]]


def openssl_name(suite: str) -> str:
    """OpenSSL's name of a suite of TLS 1.2: TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256 to
    ECDHE-RSA-AES128-GCM-SHA256."""
    exchange, _, cipher = suite.removeprefix("TLS_").partition("_WITH_")
    cipher = cipher.replace("AES_128", "AES128").replace("AES_256", "AES256")
    cipher = cipher.replace("_CBC_", "_").replace("POLY1305_SHA256", "POLY1305")
    name = cipher if exchange == "RSA" else f"{exchange}_{cipher}"
    return name.replace("_", "-")
