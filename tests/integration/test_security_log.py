"""The security log of a broker that is attacked and administered: nothing is drowned or forged."""

from __future__ import annotations

import json
import socket
from pathlib import Path
from typing import Any

from ottla.broker.runtime.printable import printable
from ottla.broker.security.audit.repeats import LINES_OF_EVENT
from ottla.protocol.headers import encode_request
from ottla.protocol.messages.alter_user_scram_credentials import (
    AlterUserScramCredentialsRequest,
    ScramCredentialUpsertion,
)
from ottla.protocol.messages.create_acls import AclCreation, CreateAclsRequest
from ottla.protocol.messages.create_delegation_token import CreateDelegationTokenRequest
from ottla.protocol.messages.create_topics import CreatableTopic, CreateTopicsRequest
from ottla.protocol.messages.describe_cluster import (
    DescribeClusterRequest,
    DescribeClusterResponse,
)
from ottla.protocol.messages.find_coordinator import FindCoordinatorRequest
from ottla.protocol.messages.incremental_alter_configs import (
    AlterableConfig,
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
)
from ottla.protocol.messages.init_producer_id import InitProducerIdRequest
from ottla.protocol.messages.join_group import JoinGroupRequest
from ottla.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic
from tests.doubles.broker_process import start_broker
from tests.doubles.certificates import Certificates
from tests.doubles.sasl_talk import SaslTalk, addresses, sasl_listener
from tests.doubles.wire import Wire

GUESSES = 120
FORGED = "05:00:00 CRITICAL ottla.broker  forged"


BROKER_LOGGER = 8


def broker_id(wire: Wire) -> int:
    response = wire.ask(DescribeClusterRequest(), 1)
    assert isinstance(response, DescribeClusterResponse)
    return response.brokers[0].broker_id


def entries(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_logins_denials_and_changes(tmp_path: Path) -> None:
    audit = tmp_path / "audit.log"
    with start_broker(
        tmp_path,
        **sasl_listener(),
        ottla_audit_log_file=str(audit),
        # The security log does not depend on it.
        ottla_log_level="ERROR",
        connection_failed_authentication_delay_ms=0,
        authorizer_class_name="kafka.security.authorizer.AclAuthorizer",
        super_users="User:ANONYMOUS;User:bob",
        delegation_token_secret_key="tokens",
    ) as broker:
        plain, sasl = addresses(broker)
        for _ in range(GUESSES):
            guess = SaslTalk(sasl)
            with guess.wire:
                guess.plain(b"\0anna\0guess-w0rd")
        anna = SaslTalk(sasl)
        with anna.wire:
            anna.plain(b"\0anna\0s3cret")
            anna.ask(FindCoordinatorRequest(coordinator_keys=[f"g\n{FORGED}"]), 4)
            anna.ask(MetadataRequest([MetadataRequestTopic(name=f"t\r\n{FORGED}\x1b[2J")]), 9)
            token = anna.ask(CreateDelegationTokenRequest(), 3)
        with Wire(plain) as admin:
            acl = AclCreation(2, "orders", 3, "User:anna", "*", 3, 3)
            admin.ask(CreateAclsRequest([acl]), 3)
            # An administrator who would leave no trace.
            for logger in ("ottla.audit", "ottla", "root"):
                level = AlterableConfig(logger, 0, "FATAL")
                resource = AlterConfigsResource(BROKER_LOGGER, str(broker_id(admin)), [level])
                admin.ask(IncrementalAlterConfigsRequest([resource]), 1)
            setting = AlterableConfig("log.retention.ms", 0, "86400001")
            admin.ask(IncrementalAlterConfigsRequest([AlterConfigsResource(4, "", [setting])]), 1)
            user = ScramCredentialUpsertion("carol", 1, 4096, b"salt", b"salted-password")
            admin.ask(AlterUserScramCredentialsRequest([], [user]), 0)
        broker.stop()
        log = broker.log()
    assert FORGED not in log
    assert log.count("Traceback") == 0
    text = audit.read_text()
    assert not any(line.startswith("05:00:00") for line in text.splitlines())
    for secret in ("guess-w0rd", "s3cret", token.hmac.hex(), "86400001"):
        assert secret not in text
    found = entries(audit)
    failures = [
        each for each in found if each["audit"] == "login" and each.get("result") == "failure"
    ]
    assert len(failures) == LINES_OF_EVENT
    assert {(each["principal"], each["address"]) for each in failures} == {
        ("User:anna", "127.0.0.1")
    }
    counted = [each for each in found if each["audit"] == "suppressed"]
    assert LINES_OF_EVENT + sum(each["suppressed"] for each in counted) == GUESSES
    assert [(each["principal"], each["mechanism"]) for each in found if each["audit"] == "login"][
        LINES_OF_EVENT:
    ] == [("User:anna", "PLAIN")]
    denied = {each["resource"] for each in found if each.get("result") == "denied"}
    assert denied == {f"Group:g\n{FORGED}", f"Topic:t\r\n{FORGED}\x1b[2J"}
    changed = {each["audit"]: (each["principal"], each.get("resource")) for each in found}
    levels = [each for each in found if "logger" in each.get("resource", "")]
    assert [each["result"] for each in levels] == ["failure", "success", "success"]
    anonymous = "User:ANONYMOUS"
    assert changed["acl change"] == (
        anonymous,
        "Added ACL ALLOW User:anna READ from * on TOPIC:LITERAL:orders",
    )
    assert changed["configuration change"] == (
        anonymous,
        "Changed configuration of broker (default): log.retention.ms",
    )
    assert changed["user change"] == (
        anonymous,
        "Changed credentials of user carol: set SCRAM-SHA-256",
    )
    assert changed["token change"] == (
        "User:anna",
        f"Created delegation token {token.token_id} of User:anna",
    )


def test_names_of_certificates_and_requests_forge_no_line(tmp_path: Path) -> None:
    """In the log of the broker, as text: the subject of a certificate, ids of clients, names."""
    certificates = Certificates(tmp_path)
    evil = f"x\r\n{FORGED}\x1b[2J\u2028\u202e"
    certificate = certificates.issue(evil, "evil")
    with start_broker(
        tmp_path,
        listeners="PLAINTEXT://127.0.0.1:0,SSL://127.0.0.1:0",
        ssl_keystore_location=certificates.server_path,
        ssl_truststore_location=certificates.authority_path,
        ssl_client_auth="required",
        authorizer_class_name="kafka.security.authorizer.AclAuthorizer",
        super_users="User:ANONYMOUS",
        ottla_log_level="DEBUG",
    ) as broker:
        plain, secured = addresses(broker)
        context = certificates.client_context()
        context.load_cert_chain(certificate)
        host, _, port = secured.partition(":")
        with (
            socket.create_connection((host, int(port)), 60) as opened,
            context.wrap_socket(opened, server_hostname=host) as sock,
        ):
            for request, version in (
                (MetadataRequest([MetadataRequestTopic(name=evil)]), 9),
                (InitProducerIdRequest(evil, 1000), 4),
                (FindCoordinatorRequest(key=evil), 3),
            ):
                sock.sendall(encode_request(1, evil, request, version))
                assert sock.recv(4096)
        with Wire(plain) as admin:
            admin.ask(JoinGroupRequest(evil, 10_000, 10_000, "", evil, evil, []), 5)
            admin.ask(InitProducerIdRequest(evil, 1000), 4)
            admin.ask(CreateTopicsRequest([CreatableTopic(evil, 1, 1)]), 5)
        with socket.create_connection(("127.0.0.1", int(plain.partition(":")[2])), 60) as sock:
            sock.sendall(f"GET /{evil} HTTP/1.1\r\n\r\n".encode())
            sock.recv(4096)
        broker.stop()
        log = broker.log_file.read_bytes().decode()
    assert "CN=x" in log
    lines = log.split("\n")
    assert not [line for line in lines if line.startswith(FORGED)]
    assert not [line for line in lines if printable(line) != line]
