"""`ottla acls`, `users` and `tokens`: what the user sees, on a broker that is closed to others."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.doubles.broker_process import ROOT, BrokerProcess, start_broker
from tests.doubles.command_line import CommandLine
from tests.doubles.sasl_talk import SCRAM_LOGIN, addresses
from tests.doubles.zookeeper_process import start_ottla_zookeeper

ADMIN_PASSWORD = "adm1n-pass"


class Secured(NamedTuple):
    broker: BrokerProcess
    bootstrap: str
    directory: Path

    def properties(self, user: str, password: str, mechanism: str = "SCRAM-SHA-512") -> str:
        """A file for --command-config."""
        path = self.directory / f"{user}.properties"
        path.write_text(
            f"security.protocol=SASL_PLAINTEXT\nsasl.mechanism={mechanism}\n"
            f"sasl.username={user}\nsasl.password={password}\n"
        )
        return str(path)

    def command(self, user: str, password: str) -> CommandLine:
        made = CommandLine(self.bootstrap)
        made.environment["OTTLA_COMMAND_CONFIG"] = self.properties(user, password)
        return made


def secured_settings(directory: Path) -> dict[str, object]:
    return {
        "listeners": "CLIENTS://127.0.0.1:0",
        "listener_security_protocol_map": "CLIENTS:SASL_PLAINTEXT",
        "inter_broker_listener_name": "CLIENTS",
        "sasl_enabled_mechanisms": "SCRAM-SHA-256,SCRAM-SHA-512",
        "sasl_mechanism_inter_broker_protocol": "SCRAM-SHA-512",
        "listener_name_clients_scram-sha-512_sasl_jaas_config": (
            f'{SCRAM_LOGIN} username="admin" password="{ADMIN_PASSWORD}";'
        ),
        "listener_name_clients_scram-sha-256_sasl_jaas_config": f"{SCRAM_LOGIN};",
        "authorizer_class_name": "kafka.security.authorizer.AclAuthorizer",
        "super_users": "User:admin",
        "delegation_token_secret_key": "of-a-test",
    }


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secured]:
    directory = tmp_path_factory.mktemp("secured")
    password = directory / "admin.password"
    password.write_text(f"{ADMIN_PASSWORD}\n")
    with start_broker(
        directory,
        ["--add-scram", f"SCRAM-SHA-512=[name=admin,password-file={password}]"],
        **secured_settings(directory),
    ) as broker:
        yield Secured(broker, addresses(broker)[0], directory)


def test_users_acls_and_what_they_allow(secured: Secured) -> None:
    admin = secured.command("admin", ADMIN_PASSWORD)
    added = admin.done("users", "add", "alice", "--mechanism", "scram-sha-512", text="al1ce\n")
    assert added.output == "User alice can log in with SCRAM-SHA-512.\n"
    assert ["alice", "SCRAM-SHA-512", "4096"] in admin.done("users", "list").lines
    admin.done("topics", "create", "orders")
    alice = secured.command("alice", "al1ce")
    refused = alice("topics", "describe", "orders")
    assert refused.code == 1

    asked = ("acls", "check", "User:alice", "-o", "read", "--topic", "orders")
    checked = admin(*asked)
    assert checked.code == 1
    assert "topic orders has no ACL, and allow.everyone.if.no.acl.found=false" in checked.output
    done = admin.done(
        *("acls", "add", "--allow", "User:alice", "-o", "read", "-o", "write"),
        *("--topic", "ord", "--prefixed"),
    )
    assert done.output.endswith("2 ACLs added.\n")
    assert alice.done("topics", "describe", "orders").lines[0] == ["topic", "orders"]
    checked = admin.done(*asked)
    assert "an ACL allows it" in checked.output
    words = ["topic", "ord", "prefixed", "User:alice", "*", "read", "allow"]
    assert checked.lines[-1] == words
    # Nothing names the topic itself, but the prefix stands for it.
    assert admin.done("acls", "list", "--topic", "orders").output == "No ACLs.\n"
    assert words in admin.done("acls", "list", "--topic", "orders", "--matching").lines

    admin.done("acls", "add", "--deny", "User:alice", "-o", "all", "--topic", "orders")
    checked = admin(*asked, "--json")
    assert checked.code == 1
    assert checked.value["reason"] == "an ACL denies it, which wins over all that allow it"
    assert [each["permission"] for each in checked.value["deciding"]] == ["deny"]
    removed = admin.done("acls", "remove", "--principal", "User:alice", "--prefixed", "--yes")
    assert removed.output.endswith("2 ACLs removed.\n")
    removed = admin.done("acls", "remove", "--principal", "User:alice", "--yes")
    assert removed.output.endswith("1 ACL removed.\n")
    checked = admin(*asked[:2], "User:admin", *asked[3:])
    assert checked.code == 0
    assert "User:admin is in super.users of the broker" in checked.output

    gone = admin.done("users", "remove", "alice")
    assert gone.output == "User alice cannot log in with SCRAM-SHA-512 any more.\n"
    again = admin("users", "remove", "alice")
    assert again.code == 1
    assert "user alice has no credential" in again.errors
    assert admin.done("users", "list", "alice").output == "No SCRAM credentials.\n"


def test_a_wrong_password_is_an_error_of_its_own(secured: Secured) -> None:
    wrong = secured.command("admin", "wrong")("users", "list")
    assert (wrong.code, wrong.output) == (4, "")
    assert wrong.errors.startswith("ottla: authentication failed: broker 127.0.0.1:")
    unreachable = CommandLine("127.0.0.1:1")("users", "list")
    assert unreachable.code == 3


def test_tokens(secured: Secured) -> None:
    admin = secured.command("admin", ADMIN_PASSWORD)
    made = admin.done("tokens", "create", "--renewer", "User:bob", "--hours", "2", "--json").value
    assert made["owner"] == "User:admin"
    path = secured.directory / "token.hmac"
    path.write_text(made["hmac"])
    [row] = admin.done("tokens", "list", "--json").value
    assert (row["token"], row["renewers"]) == (made["token"], ["User:bob"])
    assert made["hmac"] not in str(row)
    renewed = admin.done("tokens", "renew", "--hmac-file", str(path), "--hours", "1")
    assert renewed.output.startswith("The token expires at ")
    admin.done("tokens", "expire", text=made["hmac"])
    assert admin.done("tokens", "list").output == "No tokens.\n"
    unknown = admin("tokens", "renew", text=made["hmac"])
    assert unknown.code == 1
    assert "DELEGATION_TOKEN_NOT_FOUND" in unknown.errors


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("acls", "add", "--allow", "alice", "-o", "read", "--topic", "t"), "write it as User:"),
        (("acls", "add", "--allow", "User:a", "-o", "reed", "--topic", "t"), "is not one of"),
        (("acls", "add", "--allow", "User:a", "--topic", "t"), "name an operation"),
        (("acls", "add", "-o", "read", "--topic", "t"), "name a principal"),
        (("acls", "add", "--allow", "User:a", "-o", "read"), "name a resource"),
        (("acls", "list", "--topic", "t", "--group", "g"), "name one resource only"),
        (("acls", "remove", "--yes"), "all ACLs are not removed at once"),
        (("users", "add", "a", "--mechanism", "PLAIN"), "is not one of"),
        (("users", "add", "a", "--password-file", "/absent"), "cannot read"),
        (("tokens", "renew"), "is empty"),
    ],
)
def test_wrong_usage(secured: Secured, arguments: tuple[str, ...], said: str) -> None:
    done = secured.command("admin", ADMIN_PASSWORD)(*arguments)
    assert done.code == 2
    assert said in done.errors


def test_without_an_authorizer(ottla: CommandLine) -> None:
    done = ottla("acls", "list")
    assert done.code == 1
    assert "SECURITY_DISABLED" in done.errors


def test_users_of_a_stopped_broker(tmp_path: Path) -> None:
    """The first administrator of a broker that lets no one in."""
    settings = secured_settings(tmp_path)
    ottla = CommandLine("127.0.0.1:1")
    with start_broker(tmp_path) as broker:
        data = str(broker.data_directory)
        busy = ottla("users", "list", "--data-dir", data)
        assert busy.code == 1
        assert "is locked by another broker process" in busy.errors
    assert ottla("users", "list", "--data-dir", data).output == "No SCRAM credentials.\n"
    ottla.done("users", "add", "admin", "--data-dir", data, text=f"{ADMIN_PASSWORD}\n")
    ottla.done("users", "add", "other", "--data-dir", data, text="x\n")
    assert ottla.done("users", "remove", "other", "--data-dir", data).code == 0
    listed = ottla.done("users", "list", "--data-dir", data, "--json").value
    assert listed == [{"user": "admin", "mechanism": "SCRAM-SHA-512", "iterations": 4096}]
    with start_broker(tmp_path, **settings) as broker:
        secured = Secured(broker, addresses(broker)[-1], tmp_path)
        secured.command("admin", ADMIN_PASSWORD).done("topics", "list")
        assert ADMIN_PASSWORD not in broker.log()
    absent = ottla("users", "list", "--data-dir", str(tmp_path))
    assert absent.code == 1
    assert "ottla start --add-scram" in absent.errors


def test_add_scram_that_is_no_user(tmp_path: Path) -> None:
    for argument, said in (
        ("alice", "write SCRAM-SHA-256 or SCRAM-SHA-512 as"),
        ("SCRAM-SHA-512=[name=alice]", "are needed"),
        ("SCRAM-SHA-512=[name=a,password=secret-x,iterations=1]", "from 4096 to 16384"),
        ("SCRAM-SHA-512=[name=a,password-file=/absent]", "cannot read the password file"),
    ):
        done = subprocess.run(
            [sys.executable, "-m", "ottla.broker", "--add-scram", argument],
            cwd=ROOT, capture_output=True, text=True, timeout=60, check=False,
        )  # fmt: skip
        assert done.returncode == 2
        assert said in done.stderr
        assert "secret-x" not in done.stderr


def test_the_data_of_a_broker_is_not_for_other_users(secured: Secured) -> None:
    """Segments, indexes, checkpoints, locks, the znode tree."""
    secured.command("admin", ADMIN_PASSWORD).done("produce", "kept", text="a record\n")
    data = secured.broker.data_directory
    assert list(data.glob("kept-0/*.log"))
    for path in (data, *data.rglob("*")):
        mode = path.stat().st_mode & 0o777
        private = path.name.startswith("ottla-znodes.db")
        expected = 0o750 if path.is_dir() else 0o600 if private else 0o640
        assert mode == expected, (path, oct(mode))


def test_the_first_user_in_zookeeper_before_a_broker(tmp_path: Path) -> None:
    """Kafka has kafka-configs --zookeeper for it. The brokers themselves log in with that user."""
    ottla = CommandLine("127.0.0.1:1")
    with start_ottla_zookeeper(tmp_path) as zookeeper:
        tree = f"127.0.0.1:{zookeeper.port}/kafka"
        password = f"{ADMIN_PASSWORD}\n"
        ottla.done("users", "add", "admin", "--zookeeper", tree, text=password)
        ottla.done("users", "add", "other", "--zookeeper", tree, text="x\n")
        removed = ("--delete-config", "SCRAM-SHA-512", "--user", "other")
        ottla.done("kafka-configs", "--zookeeper", tree, "--alter", *removed)
        file = tmp_path / "server.properties"
        file.write_text(f"zookeeper.connect={tree}\n")
        listed = ottla.done("users", "list", "--config", str(file), "--json").value
        assert listed == [{"user": "admin", "mechanism": "SCRAM-SHA-512", "iterations": 4096}]
        settings = {**secured_settings(tmp_path), "zookeeper_connect": tree, "broker_id": 1}
        with start_broker(tmp_path, **settings) as broker:
            secured = Secured(broker, addresses(broker)[0], tmp_path)
            admin = secured.command("admin", ADMIN_PASSWORD)
            assert admin.done("users", "list").lines[-1] == ["admin", "SCRAM-SHA-512", "4096"]
            both = admin.done("kafka-configs", "--describe", "--entity-type", "users")
            assert "No quotas are set." in both.output
            assert "SCRAM-SHA-512" in both.output
        two = ottla("users", "list", "--zookeeper", tree, "--config", str(file))
        assert "name one of --data-dir, --zookeeper and --config" in two.errors
