"""Throw-away certificates for tests of TLS."""

import ssl
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from ipaddress import IPv4Address
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from tests.doubles import odd_subjects


class Certificates:
    """An authority in a folder, and what it signed: a server on 127.0.0.1 and a client."""

    def __init__(self, folder: Path, authority: str = "test authority") -> None:
        self.folder = folder
        self._authority_key = ec.generate_private_key(ec.SECP256R1())
        self._authority = self._sign(authority, self._authority_key, is_authority=True)
        self.authority_path = folder / "authority.pem"
        self.authority_path.write_bytes(self._authority.public_bytes(serialization.Encoding.PEM))
        self.server_path = self.issue("server")
        self.client_path = self.issue("client")

    def server_context(self, *, ask_for_certificate: bool = False) -> ssl.SSLContext:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(self.server_path)
        if ask_for_certificate:
            context.load_verify_locations(self.authority_path)
            context.verify_mode = ssl.CERT_REQUIRED
        return context

    def client_context(self, *, with_certificate: bool = False) -> ssl.SSLContext:
        context = ssl.create_default_context(cafile=str(self.authority_path))
        if with_certificate:
            context.load_cert_chain(self.client_path)
        return context

    def revocation_list(self, *revoked: Path) -> bytes:
        """The certificates in these files are not to be trusted any more, as PEM."""
        now = datetime.now(UTC)
        builder = (
            x509.CertificateRevocationListBuilder()
            .issuer_name(self._authority.subject)
            .last_update(now - timedelta(days=1))
            .next_update(now + timedelta(days=1))
        )
        for path in revoked:
            certificate = x509.load_pem_x509_certificate(path.read_bytes())
            builder = builder.add_revoked_certificate(
                x509.RevokedCertificateBuilder()
                .serial_number(certificate.serial_number)
                .revocation_date(now - timedelta(hours=1))
                .build()
            )
        signed = builder.sign(self._authority_key, hashes.SHA256())
        return signed.public_bytes(serialization.Encoding.PEM)

    def issue(
        self,
        name: str,
        file_name: str = "",
        addresses: Sequence[str] = ("127.0.0.1",),
        not_after: datetime | None = None,
    ) -> Path:
        """A file with a new key and its certificate for `name`."""
        key = ec.generate_private_key(ec.SECP256R1())
        certificate = self._sign(
            name, key, is_authority=False, addresses=addresses, not_after=not_after
        )
        path = self.folder / f"{file_name or name}.pem"
        path.write_bytes(
            key.private_bytes(
                serialization.Encoding.PEM,
                serialization.PrivateFormat.PKCS8,
                serialization.NoEncryption(),
            )
            + certificate.public_bytes(serialization.Encoding.PEM)
        )
        return path

    def issue_for(self, subject: bytes, file_name: str) -> Path:
        """A file with a new key and its certificate for a subject in DER, whatever it is."""
        key = ec.generate_private_key(ec.SECP256R1())
        public = key.public_key().public_bytes(
            serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo
        )
        issuer = self._authority.subject.public_bytes()
        algorithm = odd_subjects.ECDSA_WITH_SHA256
        signed = odd_subjects.tbs_certificate(subject, public, algorithm, issuer)
        signature = self._authority_key.sign(signed, ec.ECDSA(hashes.SHA256()))
        bits = odd_subjects.element(0x03, b"\0" + signature)
        certificate = odd_subjects.element(0x30, signed + algorithm + bits)
        path = self.folder / f"{file_name}.pem"
        path.write_bytes(
            key.private_bytes(
                serialization.Encoding.PEM,
                serialization.PrivateFormat.PKCS8,
                serialization.NoEncryption(),
            )
            + ssl.DER_cert_to_PEM_cert(certificate).encode()
        )
        return path

    def _sign(
        self,
        name: str,
        key: ec.EllipticCurvePrivateKey,
        *,
        is_authority: bool,
        addresses: Sequence[str] = ("127.0.0.1",),
        not_after: datetime | None = None,
    ) -> x509.Certificate:
        now = datetime.now(UTC)
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        issuer = subject if is_authority else self._authority.subject
        builder = (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(issuer)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - timedelta(days=1))
            .not_valid_after(not_after or now + timedelta(days=1))
            .add_extension(x509.BasicConstraints(ca=is_authority, path_length=None), critical=True)
            .add_extension(
                x509.SubjectAlternativeName(
                    [x509.IPAddress(IPv4Address(address)) for address in addresses]
                ),
                critical=False,
            )
        )
        return builder.sign(self._authority_key, hashes.SHA256())
