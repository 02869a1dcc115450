"""The two brokers with a listener that requires SASL, and conversations with both."""

from __future__ import annotations

import hashlib
from typing import NamedTuple

from ottla.protocol.messages.alter_user_scram_credentials import (
    AlterUserScramCredentialsRequest,
    ScramCredentialUpsertion,
)
from tests.differential.asking import Pair
from tests.doubles.eventually import eventually
from tests.doubles.sasl_talk import Script, notes_of

SHA_256, SHA_512 = "SCRAM-SHA-256", "SCRAM-SHA-512"
_NUMBERS = {SHA_256: 1, SHA_512: 2}


class Both(NamedTuple):
    """The two brokers on their listeners: plain ones, those for clients, those of a JAAS file."""

    open: Pair
    guarded: Pair
    #: Listeners whose logins are in the JAAS file, by name.
    of_jaas_file: dict[str, Pair]

    def compare(self, script: Script, listener: str | None = None) -> list[object]:
        """The notes of a conversation, which must be the same with both; `listener` is one of
        those of the JAAS file."""
        pair = self.guarded if listener is None else self.of_jaas_file[listener]
        kafka = notes_of(pair.kafka, script)
        ottla = notes_of(pair.ottla, script)
        assert ottla == kafka
        return ottla


def upsertion(user: str, mechanism: str, password: str) -> ScramCredentialUpsertion:
    """A credential as an administrator's client makes it."""
    name = mechanism.removeprefix("SCRAM-").replace("-", "").lower()
    salted = hashlib.pbkdf2_hmac(name, password.encode(), b"salt", 4096)
    return ScramCredentialUpsertion(user, _NUMBERS[mechanism], 4096, b"salt", salted)


def make_users(both: Both) -> None:
    """Anna, with both mechanisms. Kafka takes a credential a moment after its response."""
    users = [upsertion("anna", mechanism, "s3cret") for mechanism in _NUMBERS]
    both.open.compare(AlterUserScramCredentialsRequest(upsertions=users), [0])
    eventually(
        lambda: all(_is_known(both.guarded.kafka, mechanism) for mechanism in _NUMBERS),
        "Kafka does not take the credentials",
    )


def _is_known(bootstrap: str, mechanism: str) -> bool:
    last = notes_of(bootstrap, lambda talk: talk.scram(mechanism, "anna", "s3cret"))[-1]
    return isinstance(last, tuple) and last[1] == 0
