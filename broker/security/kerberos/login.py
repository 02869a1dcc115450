"""The Kerberos identity of a broker: its keytab, contexts with clients and with other brokers.

Options are those of Java's `Krb5LoginModule`: `keyTab` and `principal`. python-gssapi does the
work: `pip install 'ottla[kerberos]'`. Only brokers with GSSAPI import it.
"""

from __future__ import annotations

import importlib
import itertools
import random
import threading
from pathlib import Path
from time import monotonic
from typing import Any, NamedTuple

from ottla.broker.config.errors import ConfigError
from ottla.protocol.client.errors import AuthenticationError

_numbers = itertools.count(1)


class RenewalRules(NamedTuple):
    """`sasl.kerberos.ticket.renew.window.factor`, `...jitter` and `...min.time.before.relogin`."""

    window_factor: float = 0.8
    jitter: float = 0.05
    min_seconds: float = 60.0


class KerberosLogin:
    """One identity. Thread-safe: contexts of clients are made in worker threads."""

    def __init__(
        self,
        principal: str,
        keytab: str,
        service_name: str,
        renewal: RenewalRules,
        where: str,
    ) -> None:
        """`where` is the setting that named them. Raises ConfigError."""
        try:
            gssapi: Any = importlib.import_module("gssapi")
        except (ImportError, OSError):  # OSError: the Kerberos libraries are missing
            raise ConfigError(
                f"{where}: GSSAPI needs one more package: pip install 'ottla[kerberos]', and the "
                "Kerberos libraries of the system (Debian: libgssapi-krb5-2)."
            ) from None
        self._gssapi = gssapi
        self._principal = principal
        self._keytab = f"FILE:{keytab}"
        self._service_name = service_name
        self._renewal = renewal
        self._lock = threading.Lock()
        self._initiating: Any = None
        self._renew_at = 0.0
        if not Path(keytab).is_file():
            raise ConfigError(f"{where}: there is no keytab {keytab}.")
        try:
            self._name = gssapi.Name(principal, gssapi.NameType.kerberos_principal)
            self._accepting = gssapi.Credentials(
                name=self._name, usage="accept", store={"keytab": self._keytab}
            )
        except gssapi.exceptions.GSSError as error:
            raise ConfigError(
                f"{where}: {keytab} has no usable key of {principal}: {_words(error)}."
            ) from None

    def default_realm(self) -> str:
        """The realm of names without one (krb5.conf); empty when there is none."""
        gssapi = self._gssapi
        try:
            name = gssapi.Name("x", gssapi.NameType.kerberos_principal)
            _, _, realm = str(name.canonicalize(gssapi.MechType.kerberos)).partition("@")
        except gssapi.exceptions.GSSError:
            return ""
        return realm

    def accept(self) -> KerberosContext:
        """A context with a client of this broker."""
        context = self._gssapi.SecurityContext(creds=self._accepting, usage="accept")
        return KerberosContext(self._gssapi, context)

    def initiate(self, host: str) -> KerberosContext:
        """A context with the service on another host. Blocks; raises AuthenticationError."""
        gssapi = self._gssapi
        try:
            target = gssapi.Name(f"{self._service_name}@{host}", gssapi.NameType.hostbased_service)
            flags = gssapi.RequirementFlag
            context = gssapi.SecurityContext(
                name=target,
                creds=self._credentials(),
                usage="initiate",
                flags=flags.mutual_authentication | flags.integrity,
                mech=gssapi.MechType.kerberos,
            )
        except gssapi.exceptions.GSSError as error:
            raise AuthenticationError(
                f"no Kerberos ticket for {self._principal}: {_words(error)}"
            ) from None
        return KerberosContext(gssapi, context)

    def _credentials(self) -> Any:
        """The ticket of this broker; a new one when most of the lifetime of the last has passed."""
        with self._lock:
            if self._initiating is None or monotonic() >= self._renew_at:
                # A cache of its own: the library takes no new ticket while an old one is valid.
                store = {
                    "client_keytab": self._keytab,
                    "ccache": f"MEMORY:ottla-{next(_numbers)}",
                }
                found = self._gssapi.Credentials(name=self._name, usage="initiate", store=store)
                rules = self._renewal
                window = rules.window_factor + rules.jitter * random.random()
                lifetime = found.lifetime or 0
                self._renew_at = monotonic() + max(lifetime * window, rules.min_seconds)
                self._initiating = found
            return self._initiating


class KerberosContext:
    """Satisfies `ottla.protocol.client.sasl.SecurityContext`."""

    def __init__(self, gssapi: Any, context: Any) -> None:
        self._gssapi = gssapi
        self._context = context

    @property
    def complete(self) -> bool:
        return bool(self._context.complete)

    @property
    def initiator(self) -> str:
        try:
            return str(self._context.initiator_name)
        except UnicodeDecodeError:
            raise AuthenticationError("the name of the principal is not UTF-8") from None

    def step(self, token: bytes | None) -> bytes:
        try:
            return self._context.step(token) or b""
        except (self._gssapi.exceptions.GSSError, ValueError) as error:
            raise AuthenticationError(_words(error)) from None

    def wrap(self, data: bytes) -> bytes:
        try:
            wrapped: bytes = self._context.wrap(data, False).message
        except self._gssapi.exceptions.GSSError as error:
            raise AuthenticationError(_words(error)) from None
        return wrapped

    def unwrap(self, data: bytes) -> bytes:
        try:
            message: bytes = self._context.unwrap(data).message
        except self._gssapi.exceptions.GSSError as error:
            raise AuthenticationError(_words(error)) from None
        return message


def _words(error: Exception) -> str:
    """The library's words in one line."""
    return " ".join(str(error).split())
