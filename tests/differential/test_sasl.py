"""Authentication: the same conversations with Apache Kafka and with us, codes and words."""

from __future__ import annotations

import pytest

from ottla.protocol.client.sasl import ScramMechanism
from ottla.protocol.messages.alter_user_scram_credentials import (
    AlterUserScramCredentialsRequest,
    ScramCredentialDeletion,
    ScramCredentialUpsertion,
)
from ottla.protocol.messages.api_versions import ApiVersionsRequest, ApiVersionsResponse
from ottla.protocol.messages.create_topics import CreateTopicsRequest
from ottla.protocol.messages.describe_user_scram_credentials import (
    DescribeUserScramCredentialsRequest,
    UserName,
)
from ottla.protocol.messages.envelope import EnvelopeRequest
from ottla.protocol.messages.find_coordinator import FindCoordinatorRequest
from ottla.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic
from ottla.protocol.messages.sasl_authenticate import SaslAuthenticateRequest
from ottla.protocol.messages.sasl_handshake import SaslHandshakeRequest
from tests.differential.asking import NEWEST_OF_KAFKA_3
from tests.differential.guarded import SHA_256, SHA_512, Both, upsertion
from tests.doubles.eventually import eventually
from tests.doubles.sasl_talk import SaslTalk, Script, bearer_token, notes_of

pytestmark = pytest.mark.kafka

ANNA = b"\0anna\0s3cret"


PLAIN_TOKENS = (
    ANNA,
    b"anna\0anna\0s3cret",
    b"",
    b"\0",
    b"\0\0\0\0\0",
    b"\0\0x",
    b"\0anna\0",
    b"\0anna\0wrong",
    b"\0absent\0wrong",
    b"bob\0anna\0s3cret",
    b"\xff\0\xfe\0\xfd",
)


@pytest.mark.parametrize("token", PLAIN_TOKENS)
def test_plain(both: Both, token: bytes) -> None:
    for version in (0, 1, 2):
        both.compare(lambda talk: talk.plain(token, version))  # noqa: B023 - run at once
    both.compare(lambda talk: (talk.handshake("PLAIN", 0), talk.bare(token)))


@pytest.mark.parametrize("mechanism", [SHA_256, SHA_512])
def test_scram(both: Both, mechanism: str) -> None:
    notes = both.compare(lambda talk: talk.scram(mechanism, "anna", "s3cret"))
    assert [note[1] for note in notes if isinstance(note, tuple)] == [0, 0, 0]
    both.compare(lambda talk: talk.scram(mechanism, "anna", "wrong"))
    both.compare(lambda talk: talk.scram(mechanism, "absent", "s3cret"))
    both.compare(lambda talk: talk.scram(mechanism, "anna", "s3cret", ",tokenauth=true"))
    both.compare(lambda talk: talk.scram(mechanism, "anna", "s3cret", ",unknown=x"))


SCRAM_TOKENS = (
    b"",
    b"n,,n=anna,r=",
    b"y,,n=anna,r=abc",
    b"n,a=bob,n=anna,r=abc",
    b"n,a=anna,n=anna,r=abc",
    b"n,,m=x,n=anna,r=abc",
    b"n,,n=an=na,r=abc",
    "n,,n=\u00e4,r=abc".encode(),
)


@pytest.mark.parametrize("token", SCRAM_TOKENS)
def test_first_messages_of_scram(both: Both, token: bytes) -> None:
    both.compare(lambda talk: (talk.handshake(SHA_256), talk.authenticate(token)))
    both.compare(lambda talk: (talk.handshake(SHA_256, 0), talk.bare(token)))


@pytest.mark.parametrize("token", [b"", b"c=biws,r=other,p=AAAA", b"c=biws,r=", b"\xff"])
def test_final_messages_of_scram(both: Both, token: bytes) -> None:
    def script(talk: SaslTalk) -> None:
        talk.handshake(SHA_256)
        talk.authenticate(b"n,,n=anna,r=abc")
        talk.authenticate(token)

    both.compare(script)


def bare_scram(talk: SaslTalk) -> None:
    exchange = ScramMechanism(SHA_256, "anna", "s3cret")
    talk.handshake(SHA_256, 0)
    challenge = talk.bare(exchange.first())
    assert challenge is not None
    final = exchange.step(challenge)
    assert final is not None
    signature = talk.bare(final)
    assert signature is not None
    exchange.step(signature)
    assert exchange.done
    talk.ask(MetadataRequest(topics=[]), 9)


def versions_twice(talk: SaslTalk) -> None:
    talk.ask(ApiVersionsRequest(), 0)
    talk.ask(ApiVersionsRequest(), 0)


def versions_refused_then_right(talk: SaslTalk) -> None:
    talk.ask(ApiVersionsRequest(client_software_name="-"), 3)
    talk.ask(ApiVersionsRequest(client_software_name="x", client_software_version="1"), 3)
    talk.plain(ANNA)


def versions_after_the_handshake(talk: SaslTalk) -> None:
    talk.handshake("PLAIN")
    talk.ask(ApiVersionsRequest(), 0)


def again_without_an_end(talk: SaslTalk) -> None:
    talk.plain(ANNA)
    talk.handshake("PLAIN")
    talk.authenticate(ANNA)
    talk.ask(MetadataRequest(topics=[]), 9)


def again(talk: SaslTalk) -> None:
    talk.scram(SHA_512, "anna", "s3cret")
    talk.scram(SHA_512, "anna", "s3cret")
    talk.ask(MetadataRequest(topics=[]), 9)


def again_with_a_wrong_password(talk: SaslTalk) -> None:
    talk.scram(SHA_512, "anna", "s3cret")
    talk.scram(SHA_512, "anna", "wrong")


def again_by_another_mechanism(talk: SaslTalk) -> None:
    talk.scram(SHA_512, "anna", "s3cret")
    talk.scram(SHA_256, "anna", "s3cret")


def again_by_an_unknown_mechanism(talk: SaslTalk) -> None:
    talk.scram(SHA_512, "anna", "s3cret")
    talk.handshake("OTHER")
    talk.handshake("PLAIN")


CONVERSATIONS: dict[str, Script] = {
    "unknown mechanism": lambda talk: (talk.handshake("OTHER"), talk.handshake("PLAIN")),
    "unknown mechanism, old": lambda talk: (talk.handshake("GSSAPI", 0), talk.bare(b"x")),
    "nothing first": lambda talk: talk.bare(b""),
    "noise first": lambda talk: talk.bare(b"\x60\x61\x62\x63\x64\x65\x66\x67\x68\x69"),
    "metadata first": lambda talk: talk.ask(MetadataRequest(topics=[]), 9),
    "token first": lambda talk: talk.authenticate(ANNA),
    "metadata in the middle": lambda talk: (
        talk.handshake("PLAIN"),
        talk.ask(MetadataRequest(topics=[MetadataRequestTopic(name="t")]), 1),
    ),
    "coordinator in the middle": lambda talk: (
        talk.handshake("PLAIN"),
        talk.ask(FindCoordinatorRequest(key="g"), 3),
    ),
    "topics in the middle": lambda talk: (
        talk.handshake("PLAIN"),
        talk.ask(CreateTopicsRequest(), 5),
    ),
    "handshake in the middle": lambda talk: (talk.handshake("PLAIN"), talk.handshake("PLAIN")),
    "bare scram": bare_scram,
    "versions twice": versions_twice,
    "versions refused": versions_refused_then_right,
    "versions after the handshake": versions_after_the_handshake,
    "again without an end": again_without_an_end,
    "again": again,
    "again, wrong password": again_with_a_wrong_password,
    "again, other mechanism": again_by_another_mechanism,
    "again, unknown mechanism": again_by_an_unknown_mechanism,
}


@pytest.mark.parametrize("name", CONVERSATIONS)
def test_conversations(both: Both, name: str) -> None:
    both.compare(CONVERSATIONS[name])


def test_on_a_listener_without_authentication(both: Both) -> None:
    both.open.compare(SaslHandshakeRequest(mechanism="PLAIN"), [0, 1])
    both.open.compare(SaslAuthenticateRequest(auth_bytes=ANNA), [0, 1, 2])


def test_what_is_listed(both: Both) -> None:
    kafka, ottla = both.guarded.responses(ApiVersionsRequest(), 0)
    assert isinstance(kafka, ApiVersionsResponse)
    assert isinstance(ottla, ApiVersionsResponse)
    listed = {row.api_key: (row.min_version, row.max_version) for row in ottla.api_keys}
    for row in kafka.api_keys:
        low, high = listed[row.api_key]
        newest = NEWEST_OF_KAFKA_3.get(row.api_key, high)
        assert (row.api_key, low, newest) == (row.api_key, row.min_version, row.max_version)
    both.open.compare(EnvelopeRequest(), [0])


# Bearer tokens

FUTURE, PAST = 4_000_000_000, 1_600_000_000
CLAIMS: dict[str, object] = {"sub": "anna", "exp": FUTURE, "iat": PAST, "scope": ["use", "more"]}
GOOD = bearer_token(CLAIMS)
# Not among them: another scheme than Bearer, at which Kafka stumbles and hangs up.
BEARERS = (
    f"n,,\x01auth=Bearer {GOOD}\x01\x01",
    f"n,a=anna,\x01traceId=1\x01auth=bearer {GOOD}\x01\x01",
    f"n,a=bob,\x01auth=Bearer {GOOD}\x01\x01",
    "n,,\x01auth=Bearer x.y.z\x01\x01",
    "n,,\x01auth=Bearer x..z\x01\x01",
    "n,,\x01auth=Bearer \x01\x01",
    "n,,\x01other=1\x01\x01",
    "n,,\x01\x01",
    "\x01",
    "",
    *(
        f"n,,\x01auth=Bearer {bearer_token(claims)}\x01\x01"
        for claims in (
            CLAIMS | {"scope": "use"},
            CLAIMS | {"scope": "use more"},
            CLAIMS | {"scope": ["more"]},
            CLAIMS | {"sub": ""},
            CLAIMS | {"exp": PAST + 5},
            CLAIMS | {"exp": "soon"},
            CLAIMS | {"iat": FUTURE - 5},
            {"sub": "anna", "scope": "use"},
            {"exp": FUTURE, "scope": "use"},
        )
    ),
    f"n,,\x01auth=Bearer {bearer_token(CLAIMS, {'alg': 'HS256'})}\x01\x01",
    f"n,,\x01auth=Bearer {bearer_token(CLAIMS, signature='abc')}\x01\x01",
)


@pytest.mark.parametrize("message", BEARERS)
def test_bearer_tokens(both: Both, message: str) -> None:
    def script(talk: SaslTalk) -> None:
        talk.handshake("OAUTHBEARER")
        response = talk.authenticate(message.encode())
        if response is not None and not response.error_code:
            talk.notes.append(response.auth_bytes)
            if response.auth_bytes:
                talk.authenticate(b"\x01")

    both.compare(script)


# Credentials of users


def described(*users: str) -> DescribeUserScramCredentialsRequest:
    return DescribeUserScramCredentialsRequest([UserName(user) for user in users])


def test_credentials_of_users(both: Both) -> None:
    pair = both.open
    changes = AlterUserScramCredentialsRequest(
        deletions=[
            ScramCredentialDeletion("", 1),
            ScramCredentialDeletion("gone", 1),
            ScramCredentialDeletion("unknown", 9),
            ScramCredentialDeletion("twice", 1),
            ScramCredentialDeletion("half", 2),
        ],
        upsertions=[
            ScramCredentialUpsertion("few", 1, 4095, b"salt", b"salted"),
            ScramCredentialUpsertion("many", 2, 16385, b"salt", b"salted"),
            ScramCredentialUpsertion("many", 7, 4096, b"salt", b"salted"),
            ScramCredentialUpsertion("twice", 1, 4096, b"salt", b"salted"),
            ScramCredentialUpsertion("half", 1, 4096, b"salt", b"salted"),
            ScramCredentialUpsertion("b\u00e4r <x>/%", 1, 8192, b"salt", b"salted"),
            ScramCredentialUpsertion("b\u00e4r <x>/%", 2, 16384, b"", b"salted"),
        ],
    )
    pair.compare(changes, [0])
    pair.compare(described(), [0])
    pair.compare(DescribeUserScramCredentialsRequest(None), [0])
    pair.compare(described("b\u00e4r <x>/%", "absent", "", "twice", "twice", "", "anna"), [0])
    gone = [ScramCredentialDeletion("b\u00e4r <x>/%", number) for number in (1, 2)]
    pair.compare(AlterUserScramCredentialsRequest(deletions=gone), [0])
    pair.compare(described(), [0])
    pair.compare(AlterUserScramCredentialsRequest(), [0])
    empty = ScramCredentialUpsertion("empty", 1, 4096, b"", b"")
    pair.compare(AlterUserScramCredentialsRequest(upsertions=[empty]), [0])


def test_a_new_password_counts_at_once(both: Both) -> None:
    for password in ("first", "second"):
        change = AlterUserScramCredentialsRequest(upsertions=[upsertion("carl", SHA_256, password)])
        both.open.compare(change, [0])
        # Ours takes it before it responds, Kafka a moment later: only ours is asked.
        notes = notes_of(
            both.guarded.ottla,
            lambda talk: talk.scram(SHA_256, "carl", password),  # noqa: B023 - run at once
        )
        assert isinstance(notes[-1], tuple)
        assert notes[-1][1] == 0


UNUSUAL = (
    *("a=b,c", "=2C", "%41", "a/b@C", " lead", "b\u00e4r", "\u65e5\u672c", "User:x", "DEFAULT"),
    *("CN=a\\,b,O=x", "x" * 200, "<default>", "a b", "\U0001f600"),
)


def test_users_with_unusual_names(both: Both) -> None:
    """They log in with the same responses, and the right password only."""
    users = [upsertion(name, SHA_256, "s3cret") for name in UNUSUAL]
    both.open.compare(AlterUserScramCredentialsRequest(upsertions=users), [0])
    try:
        for name in UNUSUAL:

            def succeeds(user: str = name) -> bool:
                notes = notes_of(
                    both.guarded.kafka, lambda talk: talk.scram(SHA_256, user, "s3cret")
                )
                return isinstance(notes[-1], tuple) and notes[-1][1] == 0

            if name.isascii():  # others fail in both
                eventually(succeeds, f"Kafka does not know {name!r}")
            both.compare(lambda talk: talk.scram(SHA_256, name, "s3cret"))  # noqa: B023
            both.compare(lambda talk: talk.scram(SHA_256, name, "wrong"))  # noqa: B023
    finally:
        gone = [ScramCredentialDeletion(name, 1) for name in UNUSUAL]
        both.open.compare(AlterUserScramCredentialsRequest(deletions=gone), [0])
