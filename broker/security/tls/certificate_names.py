"""The user that a client certificate stands for."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache

from ottla.broker.requests.request_context import Principal
from ottla.broker.security.tls.distinguished_names import distinguished_name, subject_of
from ottla.broker.security.tls.mapping_rules import MappingRules

ANONYMOUS = Principal("User", "ANONYMOUS")

# Clients connect again with the same name. With some hundred bytes a name, this is less than a
# megabyte for a listener.
_MAX_REMEMBERED = 1024


def principal_reader(rules: str | None) -> Callable[[bytes], Principal]:
    """A function from a verified certificate in DER to its principal
    (`ssl.principal.mapping.rules`).

    Without a certificate (empty) it is ANONYMOUS, as in Kafka. Raises ConfigError when a rule is
    ill-formed. The function raises ValueError when the certificate stands for no user.
    """
    parsed = MappingRules(rules)

    @lru_cache(_MAX_REMEMBERED)
    def principal_of_subject(subject: bytes) -> Principal:
        return Principal("User", parsed.user_of(distinguished_name(subject)))

    def read(certificate: bytes) -> Principal:
        return principal_of_subject(subject_of(certificate)) if certificate else ANONYMOUS

    return read
