"""TLS as the `ssl.*` settings ask for it: a context for a listener, and one for other brokers.

A context is made new when a store or a setting changes: OpenSSL only adds to what a context trusts,
so a certificate that was removed from a truststore would stay trusted in an old one.

Only brokers with a TLS listener import this module: importing `ssl` takes some milliseconds.
"""

from __future__ import annotations

import logging
import os
import ssl
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, NamedTuple

from ottla.broker.config.errors import ConfigError
from ottla.broker.config.key_stores import (
    Keys,
    certificates_of,
    check_sources,
    inline_keys,
    inline_trust,
    read_keys,
    read_trust,
)
from ottla.broker.config.listeners import PREFIX
from ottla.broker.security.tls.certificate_identity import CertificateIdentity
from ottla.broker.security.tls.certificate_renewal import CertificateChain, Link
from ottla.broker.security.tls.limits import limit_context

if TYPE_CHECKING:
    from ottla.broker.config.broker_config import BrokerConfig

logger = logging.getLogger("ottla.net")

_CLIENT_CERTIFICATES = {
    "none": ssl.CERT_NONE,
    "requested": ssl.CERT_OPTIONAL,
    "required": ssl.CERT_REQUIRED,
}

FILES = ("ssl.keystore.location", "ssl.truststore.location", "ssl.crl.location")

#: Reads a setting of one listener by Kafka's name, None when it has no value.
ReadSetting = Callable[[str], str | None]


class TlsContext(NamedTuple):
    """A context, whom its certificate names and the chain of that; None for a client without a
    certificate."""

    context: ssl.SSLContext
    identity: CertificateIdentity | None
    chain: CertificateChain | None


def listener_settings(config: BrokerConfig, listener_name: str) -> ReadSetting:
    """The `ssl.*` settings of one listener."""

    def text(name: str) -> str | None:
        if name == "ssl.crl.location":
            name = "ottla.ssl.crl.location"
        found = config.listener_text(listener_name, name)
        return found.strip() if found is not None else None

    return text


def listener_context(config: BrokerConfig, listener_name: str) -> TlsContext:
    """The context of a listener with TLS. Raises ConfigError naming the setting to mend."""
    settings = listener_settings(config, listener_name)
    check_sources(settings)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    keys = _keys(settings)
    if keys is None:
        raise ConfigError(
            f"Listener {listener_name} uses TLS and needs a key and a certificate: set "
            "ssl.keystore.location to a file with both (PEM, PKCS12 or JKS), or "
            "ssl.keystore.type=PEM with ssl.keystore.key and ssl.keystore.certificate.chain."
        )
    certificate = _load_keys(context, keys, settings("ssl.keystore.location") or "ssl.keystore.key")
    context.verify_mode = _CLIENT_CERTIFICATES[_client_auth(config, listener_name)]
    if context.verify_mode is not ssl.CERT_NONE and not _load_trust(context, settings):
        context.load_default_certs(ssl.Purpose.CLIENT_AUTH)
    limit_context(context, settings)
    return TlsContext(context, *certificate)


def _client_auth(config: BrokerConfig, listener_name: str) -> str:
    """`ssl.client.auth`, which Kafka uses for a listener with SASL only if it is set for it."""
    name = "ssl.client.auth"
    for_all = (config.effective_text(name) or "none").strip()
    for_it = config.effective_text(f"{PREFIX}{listener_name.lower()}.{name}")
    if for_it is not None:
        return for_it.strip() or "none"
    uses_sasl = any(
        each.uses_sasl
        for each in config.listener_endpoints()
        if each.listener_name == listener_name
    )
    if uses_sasl and for_all != "none":
        logger.warning(
            "ssl.client.auth is used for listeners without SASL only: set %s%s.%s to ask the "
            "clients of %s for certificates too",
            *(PREFIX, listener_name.lower(), name, listener_name),
        )
        return "none"
    return for_all


def client_context(settings: ReadSetting, *, needs_keys: bool = False) -> TlsContext:
    """A context for connections to others under `ssl.*` settings. Raises ConfigError."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = bool(settings("ssl.endpoint.identification.algorithm"))
    if not _load_trust(context, settings):
        context.load_default_certs(ssl.Purpose.SERVER_AUTH)
    keys = _keys(settings)
    certificate: _Certificate = (None, None)
    if keys is not None:
        certificate = _load_keys(context, keys, settings("ssl.keystore.location") or "its text")
    elif needs_keys:
        raise ConfigError("no key and certificate are set")
    limit_context(context, settings)
    return TlsContext(context, *certificate)


def uses_tls_between_brokers(config: BrokerConfig) -> bool:
    """Whether this broker connects to others with TLS."""
    name = config.inter_broker_listener()
    return any(each.listener_name == name and each.uses_tls for each in config.listener_endpoints())


def peer_context(config: BrokerConfig) -> TlsContext | None:
    """The context for connecting to other brokers; None when they are reached without TLS."""
    if not uses_tls_between_brokers(config):
        return None
    settings = listener_settings(config, config.inter_broker_listener())
    check_sources(settings)
    return client_context(settings)


def _keys(settings: ReadSetting) -> Keys | None:
    """The private key and its certificates; None when no setting names them."""
    path = settings("ssl.keystore.location")
    if path:
        return read_keys(
            "ssl.keystore",
            path,
            settings("ssl.keystore.type"),
            settings("ssl.keystore.password"),
            settings("ssl.key.password"),
        )
    key, chain = settings("ssl.keystore.key"), settings("ssl.keystore.certificate.chain")
    if not (key and chain):
        return None
    return inline_keys(key, chain, settings("ssl.key.password"))


_Certificate = tuple[CertificateIdentity | None, CertificateChain | None]


def _load_keys(context: ssl.SSLContext, keys: Keys, where: str) -> _Certificate:
    try:
        with _as_file(keys.pem) as path:
            # Without a password OpenSSL would ask for it on the terminal.
            context.load_cert_chain(path, password=keys.password or "")
        certificates = certificates_of(keys.pem)
        if not certificates:
            return None, None
        leaf, *others = map(Link.of, certificates)
        return CertificateIdentity.of(certificates[0]), CertificateChain(leaf, tuple(others))
    except (OSError, ValueError, IndexError) as error:  # OSError: also every error of TLS
        hint = " Is ssl.key.password right?" if b"ENCRYPTED" in keys.pem else ""
        reason = getattr(error, "reason", None) or error
        raise ConfigError(
            f"No private key with its certificate can be read from {where}: {reason}.{hint}"
        ) from None


def _load_trust(context: ssl.SSLContext, settings: ReadSetting) -> bool:
    """Loads the authorities whose certificates are trusted, and what they revoked; False when no
    authorities are named."""
    path = settings("ssl.truststore.location")
    inline = settings("ssl.truststore.certificates")
    trusted: bytes | None = None
    if path:
        trusted = read_trust(
            "ssl.truststore",
            path,
            settings("ssl.truststore.type"),
            settings("ssl.truststore.password"),
        )
    elif inline:
        trusted = inline_trust(inline)
    if trusted is not None:
        _load_pem(context, trusted, path or "ssl.truststore.certificates", "certificates")
        # As in Java, each of them is trusted by itself: also an intermediate authority, and one of
        # several certificates with the same name, of which OpenSSL would try one only.
        context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    revoked = settings("ssl.crl.location")
    if revoked:
        lists = read_trust("ottla.ssl.crl", revoked, "PEM", None)
        if b"-----BEGIN X509 CRL-----" not in lists:
            raise ConfigError(f"ottla.ssl.crl.location: {revoked} has no X509 CRL in PEM.")
        _load_pem(context, lists, revoked, "revocation lists")
        context.verify_flags |= ssl.VERIFY_CRL_CHECK_LEAF
    return trusted is not None


def _load_pem(context: ssl.SSLContext, pem: bytes, where: str, what: str) -> None:
    try:
        # From a file: OpenSSL reads revocation lists from files only.
        with _as_file(pem) as path:
            context.load_verify_locations(cafile=path)
    except (OSError, ValueError) as error:
        raise ConfigError(f"No {what} can be read from {where}: {error}.") from None


@contextmanager
def _as_file(content: bytes) -> Iterator[str]:
    """A path with `content` for the length of a call: OpenSSL reads keys from files only. In memory
    where the system has such files, so that no private key is written to a disk."""
    if hasattr(os, "memfd_create"):
        descriptor = os.memfd_create("ottla-pem")
        try:
            with os.fdopen(descriptor, "wb", closefd=False) as file:
                file.write(content)
            yield f"/proc/self/fd/{descriptor}"
        finally:
            os.close(descriptor)
        return
    with tempfile.NamedTemporaryFile("wb", suffix=".pem") as named:
        named.write(content)
        named.flush()
        yield named.name
