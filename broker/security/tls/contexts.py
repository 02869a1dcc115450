"""TLS as the `ssl.*` settings ask for it: a context for a listener, and one for other brokers.

Keys and certificates are read as PEM: files (`ssl.keystore.type=PEM`), or the text itself in
`ssl.keystore.key`, `ssl.keystore.certificate.chain` and `ssl.truststore.certificates`. Java's own
formats (JKS, PKCS12) are refused with the commands that convert them.

Only brokers with a TLS listener import this module: importing `ssl` takes some milliseconds.
"""

from __future__ import annotations

import ssl
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from ottla.broker.config.definitions import split_list
from ottla.broker.config.errors import ConfigError
from ottla.broker.config.pem_files import check_pem

if TYPE_CHECKING:
    from ottla.broker.config.broker_config import BrokerConfig

_VERSIONS = {
    "TLSv1": ssl.TLSVersion.TLSv1,
    "TLSv1.1": ssl.TLSVersion.TLSv1_1,
    "TLSv1.2": ssl.TLSVersion.TLSv1_2,
    "TLSv1.3": ssl.TLSVersion.TLSv1_3,
}

_CLIENT_CERTIFICATES = {
    "none": ssl.CERT_NONE,
    "requested": ssl.CERT_OPTIONAL,
    "required": ssl.CERT_REQUIRED,
}


def listener_context(config: BrokerConfig, listener_name: str) -> ssl.SSLContext:
    """The context of a listener with TLS. Raises ConfigError naming the setting to mend."""
    settings = _Settings(config, listener_name)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    if not settings.load_keys(context):
        raise ConfigError(
            f"Listener {listener_name} uses TLS and needs a key and a certificate: set "
            "ssl.keystore.type=PEM and ssl.keystore.location to a file with both, or "
            "ssl.keystore.key and ssl.keystore.certificate.chain to their text."
        )
    context.verify_mode = _CLIENT_CERTIFICATES[settings.text("ssl.client.auth") or "none"]
    if context.verify_mode is not ssl.CERT_NONE and not settings.load_trust(context):
        context.load_default_certs(ssl.Purpose.CLIENT_AUTH)
    settings.limit(context)
    return context


def peer_context(config: BrokerConfig) -> ssl.SSLContext | None:
    """The context for connecting to other brokers; None when they are reached without TLS."""
    name = config.inter_broker_listener()
    endpoints = {each.listener_name: each for each in config.listener_endpoints()}
    if not endpoints[name].uses_tls:
        return None
    settings = _Settings(config, name)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = bool(settings.text("ssl.endpoint.identification.algorithm"))
    if not settings.load_trust(context):
        context.load_default_certs(ssl.Purpose.SERVER_AUTH)
    settings.load_keys(context)
    settings.limit(context)
    return context


def renew(config: BrokerConfig, listener_name: str, context: ssl.SSLContext) -> None:
    """Reads keys and trust again into a context in use; connections from now on get them.

    Raises ConfigError, and leaves the context as it was, when they cannot be used. What was trusted
    stays trusted: OpenSSL only adds.
    """
    settings = _Settings(config, listener_name)
    trial = ssl.SSLContext(context.protocol)
    settings.load_keys(trial)
    settings.load_trust(trial)
    settings.load_keys(context)
    settings.load_trust(context)


def certificate_files(config: BrokerConfig, listener_name: str) -> list[str]:
    """The files that the keys and the trust of a listener are read from."""
    settings = _Settings(config, listener_name)
    names = ("ssl.keystore.location", "ssl.truststore.location")
    return [path for path in map(settings.text, names) if path]


class _Settings:
    """The `ssl.*` settings of one listener, and what they do to a context."""

    def __init__(self, config: BrokerConfig, listener_name: str) -> None:
        self._config = config
        self._listener_name = listener_name

    def text(self, name: str) -> str | None:
        text = self._config.listener_text(self._listener_name, name)
        return text.strip() if text is not None else None

    def load_keys(self, context: ssl.SSLContext) -> bool:
        """Loads the private key and its certificates; False when no setting names them."""
        path = self.text("ssl.keystore.location")
        if path:
            check_pem("ssl.keystore", path)
            self._load_chain(context, path, path)
            return True
        key, chain = self.text("ssl.keystore.key"), self.text("ssl.keystore.certificate.chain")
        if not (key and chain):
            return False
        # OpenSSL reads keys from files only: this one lives as long as the call.
        with tempfile.NamedTemporaryFile("w", suffix=".pem") as file:
            file.write(f"{key}\n{chain}\n")
            file.flush()
            self._load_chain(context, file.name, "ssl.keystore.key")
        return True

    def load_trust(self, context: ssl.SSLContext) -> bool:
        """Loads the authorities whose certificates are believed; False when none are named."""
        path = self.text("ssl.truststore.location")
        inline = self.text("ssl.truststore.certificates")
        if path:
            check_pem("ssl.truststore", path)
        try:
            if path:
                context.load_verify_locations(cafile=path)
            elif inline:
                context.load_verify_locations(cadata=inline)
        except (OSError, ValueError) as error:  # OSError: also every error of TLS
            where = path or "ssl.truststore.certificates"
            raise ConfigError(f"No certificates can be read from {where}: {error}.") from None
        return bool(path or inline)

    def limit(self, context: ssl.SSLContext) -> None:
        """The versions of TLS and the ciphers that are allowed."""
        names = split_list(self.text("ssl.enabled.protocols") or "") or ["TLSv1.2", "TLSv1.3"]
        unknown = [name for name in names if name not in _VERSIONS]
        if unknown:
            raise ConfigError(
                f"ssl.enabled.protocols: {', '.join(unknown)} is not known; write "
                f"{', '.join(_VERSIONS)}."
            )
        versions = sorted(_VERSIONS[name] for name in names)
        context.minimum_version, context.maximum_version = versions[0], versions[-1]
        suites = split_list(self.text("ssl.cipher.suites") or "")
        older = [openssl_name(suite) for suite in suites if "_WITH_" in suite]
        if older:
            try:
                context.set_ciphers(":".join(older))
            except ssl.SSLError:
                raise ConfigError(
                    f"ssl.cipher.suites: OpenSSL has none of {', '.join(suites)}."
                ) from None

    def _load_chain(self, context: ssl.SSLContext, path: str, where: str) -> None:
        password = self.text("ssl.key.password") or ""
        try:
            # Without a password OpenSSL would ask for it on the terminal.
            context.load_cert_chain(path, password=password)
        except (OSError, ValueError) as error:
            hint = " Is ssl.key.password right?" if "ENCRYPTED" in _content(path) else ""
            reason = getattr(error, "reason", None) or error
            raise ConfigError(
                f"No private key with its certificate can be read from {where}: {reason}.{hint}"
            ) from None


def openssl_name(suite: str) -> str:
    """OpenSSL's name of a suite of TLS 1.2: TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256 to
    ECDHE-RSA-AES128-GCM-SHA256."""
    exchange, _, cipher = suite.removeprefix("TLS_").partition("_WITH_")
    cipher = cipher.replace("AES_128", "AES128").replace("AES_256", "AES256")
    cipher = cipher.replace("_CBC_", "_").replace("POLY1305_SHA256", "POLY1305")
    name = cipher if exchange == "RSA" else f"{exchange}_{cipher}"
    return name.replace("_", "-")


def _content(path: str) -> str:
    return Path(path).read_text(encoding="ascii", errors="replace")
