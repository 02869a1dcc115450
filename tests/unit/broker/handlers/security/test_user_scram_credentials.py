"""DescribeUserScramCredentials and AlterUserScramCredentials: all their codes and words."""

from __future__ import annotations

from typing import cast

from ottla.broker.config.dynamic_config import DynamicConfig
from ottla.broker.handlers.security.user_scram_credentials import UserCredentialHandlers
from ottla.broker.requests.error_responses import error_response
from ottla.broker.requests.request_channel import RequestContext
from ottla.broker.security.sasl import scram_credentials
from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.protocol.messages.alter_user_scram_credentials import (
    AlterUserScramCredentialsRequest,
    AlterUserScramCredentialsResponse,
    ScramCredentialDeletion,
    ScramCredentialUpsertion,
)
from ottla.protocol.messages.describe_user_scram_credentials import (
    DescribeUserScramCredentialsRequest,
    DescribeUserScramCredentialsResponse,
    UserName,
)
from tests.doubles.memory_entities import MemoryEntities
from tests.doubles.request_context import Asked, FakeContext

SHA_256, SHA_512 = 1, 2


class Scene(MemoryEntities):
    def __init__(self) -> None:
        super().__init__()
        self.is_controller = True
        self.handlers = UserCredentialHandlers(
            cast(DynamicConfig, self), lambda: self.is_controller
        )

    def alter(
        self, *changes: ScramCredentialUpsertion | ScramCredentialDeletion
    ) -> dict[str, tuple[int, str | None]]:
        request = AlterUserScramCredentialsRequest(
            [each for each in changes if isinstance(each, ScramCredentialDeletion)],
            [each for each in changes if isinstance(each, ScramCredentialUpsertion)],
        )
        response = Asked(self.handlers.alter, request, 0).response(
            AlterUserScramCredentialsResponse
        )
        return {row.user: (row.error_code, row.error_message) for row in response.results}

    def describe(self, *users: str) -> dict[str, tuple[int, str | None, dict[int, int]]]:
        request = DescribeUserScramCredentialsRequest([UserName(user) for user in users])
        asked = Asked(self.handlers.describe, request, 0)
        return {
            row.user: (
                row.error_code,
                row.error_message,
                {info.mechanism: info.iterations for info in row.credential_infos},
            )
            for row in asked.response(DescribeUserScramCredentialsResponse).results
        }


def upsertion(
    user: str, mechanism: int = SHA_256, iterations: int = 4096
) -> ScramCredentialUpsertion:
    return ScramCredentialUpsertion(user, mechanism, iterations, b"salt", b"salted")


def test_credentials_are_made_changed_described_and_deleted() -> None:
    scene = Scene()
    scene.nodes["users/b%C3%A4r"] = {"producer_byte_rate": "1"}
    assert scene.alter(upsertion("b\u00e4r"), upsertion("b\u00e4r", SHA_512, 8192)) == {
        "b\u00e4r": (0, "")
    }
    stored = scene.nodes["users/b%C3%A4r"]
    assert stored["producer_byte_rate"] == "1"
    assert scram_credentials.decode_credential(stored["SCRAM-SHA-512"]) == (
        scram_credentials.from_salted_password("SCRAM-SHA-512", b"salted", b"salt", 8192)
    )
    expected = {"b\u00e4r": (0, "", {SHA_256: 4096, SHA_512: 8192})}
    assert scene.describe("b\u00e4r") == expected
    scene.nodes |= {
        "users/b%C3%A4r/clients/c": stored,
        "users/<default>": stored,
        "users/other": {"producer_byte_rate": "1"},
    }
    assert scene.describe() == expected
    assert scene.alter(ScramCredentialDeletion("b\u00e4r", SHA_256)) == {"b\u00e4r": (0, "")}
    assert scene.describe("b\u00e4r") == {"b\u00e4r": (0, "", {SHA_512: 8192})}


def test_what_is_refused_when_altering() -> None:
    scene = Scene()
    rows = scene.alter(
        upsertion(""),
        upsertion("few", iterations=4095),
        upsertion("many", iterations=16385),
        upsertion("unknown", 3),
        ScramCredentialDeletion("unknown too", 0),
        upsertion("twice"),
        ScramCredentialDeletion("twice", SHA_256),
        upsertion("half"),
        ScramCredentialDeletion("half", SHA_512),
        upsertion("half wrong"),
        upsertion("half wrong", SHA_512, 1),
        upsertion("good"),
    )
    twice = "A user credential cannot be altered twice in the same request"
    missing = "Attempt to delete a user credential that does not exist"
    few = "Too few iterations"
    assert rows == {
        "": (ErrorCode.UNACCEPTABLE_CREDENTIAL, "Username must not be empty"),
        "few": (ErrorCode.UNACCEPTABLE_CREDENTIAL, few),
        "many": (ErrorCode.UNACCEPTABLE_CREDENTIAL, "Too many iterations"),
        "unknown": (ErrorCode.UNSUPPORTED_SASL_MECHANISM, "Unknown SCRAM mechanism"),
        "unknown too": (ErrorCode.UNSUPPORTED_SASL_MECHANISM, "Unknown SCRAM mechanism"),
        "twice": (ErrorCode.DUPLICATE_RESOURCE, twice),
        "half": (ErrorCode.RESOURCE_NOT_FOUND, missing),
        "half wrong": (ErrorCode.UNACCEPTABLE_CREDENTIAL, few),
        "good": (ErrorCode.NONE, ""),
    }
    assert list(scene.nodes) == ["users/good"]


def test_what_cannot_be_described() -> None:
    scene = Scene()
    scene.nodes["users/broken"] = {"SCRAM-SHA-256": "hunter2"}
    found = scene.describe("", "twice", "twice", "absent", "broken")
    words = "Cannot describe SCRAM credentials for the same user twice in a single request: twice"
    missing = "Attempt to describe a user credential that does not exist: absent"
    assert found.pop("broken")[0] == ErrorCode.UNKNOWN_SERVER_ERROR
    assert found == {
        "": (ErrorCode.RESOURCE_NOT_FOUND, "Username must not be empty", {}),
        "twice": (ErrorCode.DUPLICATE_RESOURCE, words, {}),
        "absent": (ErrorCode.RESOURCE_NOT_FOUND, missing, {}),
    }


def test_every_user_has_an_error_code() -> None:
    context = FakeContext(51, 0)
    context.request = AlterUserScramCredentialsRequest(
        [ScramCredentialDeletion("b")], [upsertion("a"), upsertion("b")]
    )
    error = KafkaError(ErrorCode.NOT_CONTROLLER)
    response = error_response(cast(RequestContext, context), error)
    assert isinstance(response, AlterUserScramCredentialsResponse)
    assert [(row.user, row.error_code) for row in response.results] == [
        ("a", ErrorCode.NOT_CONTROLLER),
        ("b", ErrorCode.NOT_CONTROLLER),
    ]
