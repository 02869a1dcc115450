"""What administrators change is written, without secrets."""

from __future__ import annotations

import logging
from types import SimpleNamespace
from typing import Any, cast

import pytest

from ottla.broker.requests.request_context import HandlerEntry, Principal, RequestContext
from ottla.broker.security.audit.changes import MAX_ROWS, audited
from ottla.broker.security.audit.security_log import SecurityLog
from ottla.protocol.errors import ErrorCode
from ottla.protocol.message import Message
from ottla.protocol.messages import (
    alter_client_quotas,
    alter_user_scram_credentials,
    create_acls,
    create_delegation_token,
    delete_acls,
    expire_delegation_token,
    incremental_alter_configs,
)

PREFIX = "User:root from 10.0.0.1:4242 on listener SASL_SSL: "


def changes(caplog: pytest.LogCaptureFixture, request: Message, response: Message) -> list[str]:
    """The lines for a request with this response."""
    caplog.set_level(logging.INFO)
    caplog.clear()

    def handler(*_: object) -> Message:
        # A guard removes what is not allowed; the description is of what was requested.
        for name in ("creations", "resources", "entries", "upsertions", "deletions"):
            if hasattr(request, name):
                setattr(request, name, [])
        return response

    entry = HandlerEntry(request.API_KEY, "Any", 0, 9, handler)
    [wrapped] = audited([entry], SecurityLog(None), {b"secret": "token-1"}.get)
    context: Any = SimpleNamespace(
        principal=Principal("User", "root"),
        client_host="10.0.0.1",
        client_port=4242,
        listener_name="SASL_SSL",
        route=SimpleNamespace(entry=entry),
        amend=None,
    )
    assert wrapped.handler(cast("RequestContext", context), request) is response
    if context.amend is not None:
        context.amend(response)
    return [record.getMessage().removeprefix(PREFIX) for record in caplog.records]


def test_acls_are_added(caplog: pytest.LogCaptureFixture) -> None:
    creation = create_acls.AclCreation(2, "orders", 4, "User:bob", "*", 3, 3)
    request = create_acls.CreateAclsRequest([creation, creation, creation])
    results = [
        create_acls.AclCreationResult(code)
        for code in (
            ErrorCode.NONE,
            ErrorCode.INVALID_REQUEST,
            ErrorCode.CLUSTER_AUTHORIZATION_FAILED,  # the authorizer has written that
        )
    ]
    acl = "Added ACL ALLOW User:bob READ from * on TOPIC:PREFIXED:orders"
    assert changes(caplog, request, create_acls.CreateAclsResponse(results=results)) == [
        acl,
        f"{acl} failed: INVALID_REQUEST",
    ]


def test_numbers_of_later_versions_are_written_as_they_are(
    caplog: pytest.LogCaptureFixture,
) -> None:
    creation = create_acls.AclCreation(99, "orders", 98, "User:bob", "*", 97, 96)
    response = create_acls.CreateAclsResponse(
        results=[create_acls.AclCreationResult(ErrorCode.INVALID_REQUEST)]
    )
    assert changes(caplog, create_acls.CreateAclsRequest([creation]), response) == [
        "Added ACL 96 User:bob 97 from * on 99:98:orders failed: INVALID_REQUEST"
    ]


def test_acls_are_removed(caplog: pytest.LogCaptureFixture) -> None:
    removed = delete_acls.DeleteAclsMatchingAcl(0, None, 2, "orders", 3, "User:bob", "*", 3, 2)
    response = delete_acls.DeleteAclsResponse(
        filter_results=[delete_acls.DeleteAclsFilterResult(matching_acls=[removed, removed])]
    )
    line = "Removed ACL DENY User:bob READ from * on TOPIC:LITERAL:orders"
    assert changes(caplog, delete_acls.DeleteAclsRequest(), response) == [line, line]


def alter_configs(validate_only: bool = False) -> tuple[Message, Message]:
    secret = incremental_alter_configs.AlterableConfig("ssl.keystore.password", 0, "s3cret")
    plain = incremental_alter_configs.AlterableConfig("log.retention.ms", 0, "1")
    request = incremental_alter_configs.IncrementalAlterConfigsRequest(
        [
            incremental_alter_configs.AlterConfigsResource(4, "", [secret, plain]),
            incremental_alter_configs.AlterConfigsResource(2, "orders", [plain]),
        ],
        validate_only,
    )
    response = incremental_alter_configs.IncrementalAlterConfigsResponse(
        responses=[
            incremental_alter_configs.AlterConfigsResourceResponse(0, None, 4, ""),
            incremental_alter_configs.AlterConfigsResourceResponse(
                ErrorCode.INVALID_CONFIG, "no", 2, "orders"
            ),
        ]
    )
    return request, response


def test_settings_are_named_without_values(caplog: pytest.LogCaptureFixture) -> None:
    assert changes(caplog, *alter_configs()) == [
        "Changed configuration of broker (default): ssl.keystore.password, log.retention.ms",
        "Changed configuration of topic orders: log.retention.ms failed: INVALID_CONFIG",
    ]
    assert "s3cret" not in caplog.text


def test_a_validation_changes_nothing(caplog: pytest.LogCaptureFixture) -> None:
    assert changes(caplog, *alter_configs(validate_only=True)) == []


def test_credentials_of_users(caplog: pytest.LogCaptureFixture) -> None:
    upsertion = alter_user_scram_credentials.ScramCredentialUpsertion(
        "bob", 1, 4096, b"salt", b"salted"
    )
    request = alter_user_scram_credentials.AlterUserScramCredentialsRequest(
        [alter_user_scram_credentials.ScramCredentialDeletion("bob", 2)], [upsertion]
    )
    response = alter_user_scram_credentials.AlterUserScramCredentialsResponse(
        results=[alter_user_scram_credentials.AlterUserScramCredentialsResult("bob")]
    )
    assert changes(caplog, request, response) == [
        "Changed credentials of user bob: set SCRAM-SHA-256, removed SCRAM-SHA-512"
    ]


def test_tokens_are_named_by_their_ids(caplog: pytest.LogCaptureFixture) -> None:
    created = create_delegation_token.CreateDelegationTokenResponse(
        principal_type="User", principal_name="bob", token_id="token-1", hmac=b"secret"
    )
    request = create_delegation_token.CreateDelegationTokenRequest()
    assert changes(caplog, request, created) == ["Created delegation token token-1 of User:bob"]
    assert "secret" not in caplog.text
    expired = expire_delegation_token.ExpireDelegationTokenResponse()
    for hmac, name in ((b"secret", "token-1"), (b"guess", "(unknown)")):
        end = expire_delegation_token.ExpireDelegationTokenRequest(hmac, -1)
        assert changes(caplog, end, expired) == [f"Expired delegation token {name}"]
        assert hmac.decode() not in caplog.text


def test_quotas(caplog: pytest.LogCaptureFixture) -> None:
    entity = alter_client_quotas.AlterClientQuotasRequestEntityData("user", None)
    change = alter_client_quotas.OpData("producer_byte_rate", 1.0, False)
    request = alter_client_quotas.AlterClientQuotasRequest(
        [alter_client_quotas.AlterClientQuotasRequestEntryData([entity], [change])]
    )
    row = alter_client_quotas.AlterClientQuotasResponseEntryData(
        entity=[alter_client_quotas.AlterClientQuotasResponseEntityData("user", None)]
    )
    response = alter_client_quotas.AlterClientQuotasResponse(entries=[row])
    assert changes(caplog, request, response) == [
        "Changed quotas of user (default): producer_byte_rate"
    ]


def test_the_lines_of_one_request_are_bounded(caplog: pytest.LogCaptureFixture) -> None:
    creations = [create_acls.AclCreation(2, "t", 3, "User:bob", "*", 3, 3)] * (3 * MAX_ROWS)
    results = [create_acls.AclCreationResult() for _ in creations]
    request = create_acls.CreateAclsRequest(creations)
    lines = changes(caplog, request, create_acls.CreateAclsResponse(results=results))
    assert len(lines) == MAX_ROWS + 1
    assert lines[-1] == f"{2 * MAX_ROWS} more changes of the same request"
