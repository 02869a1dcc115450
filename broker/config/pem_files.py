"""Files of keys and certificates: PEM is read, the formats of Java are refused with a remedy."""

from __future__ import annotations

from pathlib import Path

from ottla.broker.config.errors import ConfigError


def check_pem(prefix: str, path: str) -> None:
    """Raises ConfigError when the file of `prefix`.location cannot be read or is Java's."""
    try:
        head = Path(path).read_bytes()[:64]
    except OSError as error:
        raise ConfigError(f"{prefix}.location: {path} cannot be read: {error.strerror}.") from None
    if head.startswith(b"\xfe\xed\xfe\xed"):
        raise ConfigError(
            f"{prefix}.location: {path} is a Java key store (JKS), which only Java reads. "
            f"Convert it: keytool -importkeystore -srckeystore {path} -destkeystore store.p12 "
            f"-deststoretype PKCS12; openssl pkcs12 -in store.p12 -nodes -out store.pem. Then "
            f"set {prefix}.type=PEM and {prefix}.location=store.pem."
        )
    if head.startswith(b"\x30"):
        raise ConfigError(
            f"{prefix}.location: {path} looks like PKCS12. Convert it: openssl pkcs12 -in "
            f"{path} -nodes -out store.pem. Then set {prefix}.type=PEM and "
            f"{prefix}.location=store.pem."
        )
