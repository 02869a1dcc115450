"""TLS as the `ssl.*` settings ask for it: a context for a listener, and one for other brokers.

A context is made new when a store or a setting changes: OpenSSL only adds to what a context trusts,
so a certificate that was removed from a truststore would stay trusted in an old one.

Only brokers with a TLS listener import this module: importing `ssl` takes some milliseconds.
"""

from __future__ import annotations

import logging
import ssl
from collections.abc import Callable
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
from ottla.broker.config.pem_files import as_file
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


class Certificate(NamedTuple):
    """Whom a certificate names, and it with its issuers."""

    identity: CertificateIdentity
    chain: CertificateChain

    @classmethod
    def of(cls, keys: Keys) -> Certificate:
        """Raises ValueError."""
        certificates = certificates_of(keys.pem)
        if not certificates:
            raise ValueError("it has no certificate")
        leaf, *others = map(Link.of, certificates)
        chain = CertificateChain(leaf, tuple(others))
        return cls(CertificateIdentity.of(certificates[0]), chain)


class KeyMismatch(ConfigError):
    """A private key and a certificate do not belong together."""


class TlsContext(NamedTuple):
    """A context and its certificates: one for each kind of key, and none for a client without a
    key. `unusable` is why no client can connect."""

    context: ssl.SSLContext
    certificates: tuple[Certificate, ...]
    unusable: str = ""

    @property
    def chain(self) -> CertificateChain | None:
        """The one that expires first."""
        chains = (each.chain for each in self.certificates)
        return min(chains, key=lambda each: each.leaf.dates.not_after, default=None)


def certificate_pairs(
    old: tuple[Certificate, ...], new: tuple[Certificate, ...]
) -> list[tuple[Certificate, Certificate]]:
    """Each new certificate with the one that it replaces. ConfigError, as in Kafka, if there are
    fewer of them: clients may accept no other kind of key."""
    if len(new) < len(old):
        raise ConfigError(
            "Keystore entries do not match, existing store contains keys of "
            f"{len(old)} kinds, new store contains keys of {len(new)}: add a key of each kind."
        )
    by_kind = {each.chain.leaf.key_kind: each for each in old}
    return [(by_kind.get(each.chain.leaf.key_kind, old[0]), each) for each in new if old]


def listener_settings(config: BrokerConfig, listener_name: str) -> ReadSetting:
    """The `ssl.*` settings of one listener."""

    def text(name: str) -> str | None:
        if name == "ssl.crl.location":
            name = "ottla.ssl.crl.location"
        found = config.listener_text(listener_name, name)
        return found.strip() if found is not None else None

    return text


def listener_context(
    config: BrokerConfig, listener_name: str, *, at_start: bool = False
) -> TlsContext:
    """The context of a listener with TLS. Raises ConfigError naming the setting to mend.

    At a start, a key of another certificate stops the listener of brokers only, as in Kafka.
    """
    settings = listener_settings(config, listener_name)
    check_sources(settings)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    keys = _keys(settings)
    if not keys:
        raise ConfigError(
            f"Listener {listener_name} uses TLS and needs a key and a certificate: set "
            "ssl.keystore.location to a file with both (PEM, PKCS12 or JKS), or "
            "ssl.keystore.type=PEM with ssl.keystore.key and ssl.keystore.certificate.chain."
        )
    unusable = ""
    try:
        certificates = _load_keys(context, keys, _key_source(settings))
    except KeyMismatch as error:
        if not at_start or listener_name == config.inter_broker_listener():
            raise
        unusable = str(error)
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        certificates = (Certificate.of(keys[0]),)
    context.verify_mode = _CLIENT_CERTIFICATES[_client_auth(config, listener_name)]
    if context.verify_mode is not ssl.CERT_NONE and not _load_trust(context, settings):
        context.load_default_certs(ssl.Purpose.CLIENT_AUTH)
    limit_context(context, settings)
    return TlsContext(context, certificates, unusable)


def _key_source(settings: ReadSetting) -> str:
    return settings("ssl.keystore.location") or "ssl.keystore.key"


def trusted_certificates(settings: ReadSetting) -> list[bytes]:
    """Those of the truststore in DER, also where no client has a certificate; none without a
    truststore. Raises ConfigError."""
    text = _trust(settings)
    return [] if text is None else certificates_of(text)


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
    certificates: tuple[Certificate, ...] = ()
    if keys:
        certificates = _load_keys(context, keys, _key_source(settings))
    elif needs_keys:
        raise ConfigError("no key and certificate are set")
    limit_context(context, settings)
    return TlsContext(context, certificates)


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


def _keys(settings: ReadSetting) -> list[Keys]:
    """The private keys and their certificates; none when no setting names them."""
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
        return []
    return [inline_keys(key, chain, settings("ssl.key.password"))]


def _load_keys(context: ssl.SSLContext, several: list[Keys], where: str) -> tuple[Certificate, ...]:
    """Loads the first key of each kind: the kinds that a client accepts decide on one of them."""
    found: dict[bytes, Certificate] = {}
    for keys in several:
        try:
            certificate = Certificate.of(keys)
            if certificate.chain.leaf.key_kind in found:
                continue
            with as_file(keys.pem) as path:
                # Without a password OpenSSL would ask for it on the terminal.
                context.load_cert_chain(path, password=keys.password or "")
        except (OSError, ValueError, IndexError) as error:  # OSError: also every error of TLS
            hint = " Is ssl.key.password right?" if b"ENCRYPTED" in keys.pem else ""
            reason = getattr(error, "reason", None) or error
            kind = ConfigError
            if reason == "KEY_VALUES_MISMATCH":
                kind = KeyMismatch
                dates = certificate.chain.leaf.dates.text()
                reason = f"the key does not belong to the certificate, which is valid {dates}"
            raise kind(
                f"No private key with its certificate can be read from {where}: {reason}.{hint}"
            ) from None
        found[certificate.chain.leaf.key_kind] = certificate
    return tuple(found.values())


def _load_trust(context: ssl.SSLContext, settings: ReadSetting) -> bool:
    """Loads the authorities whose certificates are trusted, and what they revoked; False when no
    authorities are named."""
    trusted = _trust(settings)
    if trusted is not None:
        where = settings("ssl.truststore.location") or "ssl.truststore.certificates"
        _load_pem(context, trusted, where, "certificates")
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


def _trust(settings: ReadSetting) -> bytes | None:
    """The trusted certificates in PEM; None when no setting names them."""
    path = settings("ssl.truststore.location")
    inline = settings("ssl.truststore.certificates")
    if path:
        return read_trust(
            "ssl.truststore",
            path,
            settings("ssl.truststore.type"),
            settings("ssl.truststore.password"),
        )
    return inline_trust(inline) if inline else None


def _load_pem(context: ssl.SSLContext, pem: bytes, where: str, what: str) -> None:
    try:
        # From a file: OpenSSL reads revocation lists from files only.
        with as_file(pem) as path:
            context.load_verify_locations(cafile=path)
    except (OSError, ValueError) as error:
        raise ConfigError(f"No {what} can be read from {where}: {error}.") from None
