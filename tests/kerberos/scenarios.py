"""Kerberos with a real KDC: clients, brokers, ZooKeeper and Apache Kafka. `make compat-kerberos`.

Not part of `make test`: the KDC and python-gssapi need packages of the system.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from kazoo.client import KazooClient

from ottla.broker.security.kerberos.login import KerberosLogin, RenewalRules
from ottla.broker.security.sasl.gssapi_exchange import GssapiExchange
from ottla.cli.zookeeper_server import free_port
from ottla.protocol.client.sasl import GssapiMechanism
from tests.doubles.apache_kafka import java_command, start_kafka
from tests.doubles.apache_kafka import start_zookeeper as start_kafkas_zookeeper
from tests.doubles.broker_process import BrokerProcess, start_broker
from tests.doubles.eventually import eventually
from tests.doubles.zookeeper_process import start_zookeeper
from tests.kerberos.kdc import REALM, Kdc, start_kdc

MODULE = "com.sun.security.auth.module.Krb5LoginModule required useKeyTab=true storeKey=true"
SERVICE = "kafka/localhost"
RULES = r"RULE:[1:$1@$0](.*@OTTLA.TEST)s/@.*//,RULE:[2:$1](kafka|app)s/$/-service/"
DEADLINE_S = 90
SECONDS = 90.0


@pytest.fixture(scope="module")
def kdc(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Kdc]:
    """Its settings are in the environment: libraries and brokers of this test read them there."""
    with start_kdc(tmp_path_factory.mktemp("kdc")) as running:
        for principal in (SERVICE, "anna", "app/host", "zookeeper/localhost", "a/b/c"):
            running.keytab(principal)
        with pytest.MonkeyPatch.context() as patch:
            for name, value in running.environment.items():
                patch.setenv(name, value)
            patch.setenv("JAVA_TOOL_OPTIONS", f"-Djava.security.krb5.conf={running.krb5_conf}")
            yield running


def login(kdc: Kdc, principal: str) -> str:
    keytab = kdc.folder / f"{principal.replace('/', '_')}.keytab"
    return f'{MODULE} keyTab="{keytab}" principal="{principal}@{REALM}";'


def settings(kdc: Kdc, **more: object) -> dict[str, object]:
    """One listener, for clients and brokers."""
    return {
        "listeners": "INSIDE://localhost:0",
        "listener_security_protocol_map": "INSIDE:SASL_PLAINTEXT",
        "inter_broker_listener_name": "INSIDE",
        "sasl_enabled_mechanisms": "GSSAPI",
        "sasl_mechanism_inter_broker_protocol": "GSSAPI",
        "sasl_kerberos_service_name": "kafka",
        "sasl_kerberos_principal_to_local_rules": RULES,
        "listener_name_inside_gssapi_sasl_jaas_config": login(kdc, SERVICE),
        "authorizer_class_name": "kafka.security.authorizer.AclAuthorizer",
        "super_users": "User:kafka-service;User:anna",
        "offsets_topic_num_partitions": 1,
        "offsets_topic_replication_factor": 1,
        **more,
    }


@pytest.fixture(scope="module")
def broker(kdc: Kdc, tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    with start_broker(tmp_path_factory.mktemp("broker"), **settings(kdc)) as running:
        yield running


def address(broker: BrokerProcess) -> str:
    return f"localhost:{broker.port}"


PYTHON_CLIENT = """
import sys
from kafka import KafkaConsumer, KafkaProducer
settings = dict(bootstrap_servers=sys.argv[1], security_protocol="SASL_PLAINTEXT",
                sasl_mechanism="GSSAPI", sasl_kerberos_service_name="kafka")
producer = KafkaProducer(**settings)
producer.send(sys.argv[2], b"from kafka-python").get(60)
producer.close()
consumer = KafkaConsumer(sys.argv[2], group_id="g", auto_offset_reset="earliest", **settings)
print(next(iter(consumer)).value.decode())
consumer.close()
"""


def test_kafka_python(kdc: Kdc, broker: BrokerProcess) -> None:
    done = subprocess.run(
        [sys.executable, "-c", PYTHON_CLIENT, address(broker), "python"],
        env=kdc.client_environment("anna"),
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
    )
    assert done.stdout.splitlines()[-1:] == ["from kafka-python"], done.stderr


def client_file(kdc: Kdc, folder: Path, principal: str) -> Path:
    path = folder / f"{principal.replace('/', '_')}.properties"
    path.write_text(
        "security.protocol=SASL_PLAINTEXT\nsasl.mechanism=GSSAPI\n"
        "sasl.kerberos.service.name=kafka\n"
        f"sasl.jaas.config={login(kdc, principal)}\n"
    )
    return path


def java(main_class: str, *arguments: str, text: str = "") -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        java_command(main_class, *arguments, log_level="WARN"),
        input=text,
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
    )


def test_the_jvm(kdc: Kdc, broker: BrokerProcess, tmp_path: Path) -> None:
    file = str(client_file(kdc, tmp_path, "anna"))
    where = ("--bootstrap-server", address(broker), "--topic", "java")
    producer = java(
        "kafka.tools.ConsoleProducer", *where, "--producer.config", file, text="from java\n"
    )
    assert producer.returncode == 0, producer.stderr
    more = ("--from-beginning", "--max-messages", "1", "--timeout-ms", "60000")
    consumer = java(
        "org.apache.kafka.tools.consumer.ConsoleConsumer",
        *(*where, *more, "--consumer.config", file),
    )
    assert "from java" in consumer.stdout.splitlines(), consumer.stderr


@pytest.mark.skipif(shutil.which("kcat") is None, reason="librdkafka with Kerberos: Debian's kcat")
def test_librdkafka(kdc: Kdc, broker: BrokerProcess) -> None:
    keytab = kdc.folder / "anna.keytab"
    options = {
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": "GSSAPI",
        "sasl.kerberos.service.name": "kafka",
        "sasl.kerberos.principal": f"anna@{REALM}",
        "sasl.kerberos.keytab": str(keytab),
    }
    words = [word for name, text in options.items() for word in ("-X", f"{name}={text}")]
    common = ["kcat", "-b", address(broker), "-t", "kcat", *words]
    subprocess.run(
        [*common, "-P"],
        input="from kcat\n",
        text=True,
        timeout=DEADLINE_S,
        check=True,
        env=kdc.client_environment("anna"),
    )
    done = subprocess.run(
        [*common, "-C", "-o", "beginning", "-c", "1", "-q"], capture_output=True, text=True,
        timeout=DEADLINE_S, env=kdc.client_environment("anna"),
    )  # fmt: skip
    assert done.stdout == "from kcat\n", done.stderr


def test_principals_and_their_rights(kdc: Kdc, broker: BrokerProcess, tmp_path: Path) -> None:
    """app/host becomes a user without rights; a principal that no rule takes does not get in."""
    where = ("--bootstrap-server", address(broker), "--create", "--topic", "x")
    for principal, words in [
        ("app/host", "TopicAuthorizationException|ClusterAuthorizationException|authoriz"),
        ("a/b/c", "SaslAuthenticationException|Authentication failed"),
    ]:
        file = str(client_file(kdc, tmp_path, principal))
        done = java("org.apache.kafka.tools.TopicCommand", *where, "--command-config", file)
        assert done.returncode != 0
        assert any(word in done.stdout + done.stderr for word in words.split("|")), done.stderr
    assert "app-service" in broker.log()
    assert "malformed Kerberos name 'a/b/c@OTTLA.TEST'" in broker.log()


def test_a_token_is_not_taken_twice(kdc: Kdc) -> None:
    """The replay cache of the library."""
    server = identity(kdc, SERVICE)
    first = GssapiMechanism(identity(kdc, "anna").initiate, "localhost").first()
    GssapiExchange(server.accept, str).step(first)
    with pytest.raises(Exception, match=r"replay|Replay"):
        GssapiExchange(server.accept, str).step(first)


def identity(kdc: Kdc, principal: str, renewal: RenewalRules | None = None) -> KerberosLogin:
    keytab = kdc.folder / f"{principal.replace('/', '_')}.keytab"
    rules = RenewalRules() if renewal is None else renewal
    return KerberosLogin(f"{principal}@{REALM}", str(keytab), "kafka", rules, "test")


def test_a_new_ticket_before_the_old_one_ends(kdc: Kdc) -> None:
    kdc.keytab("short", max_life="4sec")
    client = identity(kdc, "short", RenewalRules(0.5, 0.0, 1.0))
    server = identity(kdc, SERVICE)
    began = time.monotonic()
    while time.monotonic() - began < 12:
        mechanism, exchange = GssapiMechanism(client.initiate, "localhost"), None
        exchange = GssapiExchange(server.accept, str)
        token: bytes | None = mechanism.first()
        while token is not None:
            token = mechanism.step(exchange.step(token))
        assert exchange.name == f"short@{REALM}"
        time.sleep(0.5)


def test_zookeeper(kdc: Kdc, tmp_path: Path) -> None:
    server, client = tmp_path / "server.jaas", tmp_path / "client.jaas"
    server.write_text(f"Server {{ {login(kdc, 'zookeeper/localhost')} }};\n")
    client.write_text(f"Client {{ {login(kdc, SERVICE)} }};\n")
    provider = {"authProvider.1": "org.apache.zookeeper.server.auth.SASLAuthenticationProvider"}
    option = f"-Djava.security.auth.login.config={server}"
    with (
        start_zookeeper(tmp_path, settings=provider, java=(option,)) as zookeeper,
        start_broker(
            tmp_path,
            zookeeper_connect=f"localhost:{zookeeper.port}",
            zookeeper_set_acl="true",
            kafka_opts=f"-Djava.security.auth.login.config={client}",
        ),
    ):
        other = KazooClient(zookeeper.connect)
        other.start(SECONDS)
        try:
            acls, _ = other.get_acls("/brokers/ids")
        finally:
            other.stop()
            other.close()
        assert ("sasl", f"{SERVICE}@{REALM}") in {(each.id.scheme, each.id.id) for each in acls}


def test_a_cluster_with_apache_kafka(kdc: Kdc, tmp_path: Path) -> None:
    """Both follow each other: replicas of a topic are in sync with either as the leader.

    Kafka has its login in a setting, Ottla in a JAAS file.
    """
    jaas_file = tmp_path / "kafka.jaas"
    jaas_file.write_text(f"KafkaServer {{ {login(kdc, SERVICE)} }};\n")
    common = settings(
        kdc,
        zookeeper_session_timeout_ms=6000,
        inter_broker_protocol_version="3.9",
    )
    file = str(client_file(kdc, tmp_path, "anna"))
    with ExitStack() as stack:
        zookeeper = stack.enter_context(start_kafkas_zookeeper(tmp_path / "zookeeper"))
        port = free_port()
        theirs = common | {
            "listeners": f"INSIDE://127.0.0.1:{port}",
            "advertised_listeners": f"INSIDE://localhost:{port}",
        }
        kafka = stack.enter_context(
            start_kafka(tmp_path / "kafka", zookeeper=zookeeper, broker_id=1, **theirs)
        )
        ours = stack.enter_context(
            start_broker(
                tmp_path / "ours",
                kafka_opts=f"-Djava.security.auth.login.config={jaas_file}",
                broker_id=2,
                zookeeper_connect=zookeeper,
                **{name: value for name, value in common.items() if "jaas" not in name},
            )
        )
        both = f"localhost:{port},{address(ours)}"
        made = java(
            "org.apache.kafka.tools.TopicCommand",
            *("--bootstrap-server", both, "--command-config", file, "--create", "--topic", "t"),
            *("--replica-assignment", "1:2,2:1"),
        )
        assert made.returncode == 0, made.stderr
        lines = "".join(f"{number}\n" for number in range(200))
        written = java(
            "kafka.tools.ConsoleProducer",
            *("--bootstrap-server", both, "--producer.config", file, "--topic", "t"),
            *("--request-required-acks", "all"),
            text=lines,
        )
        assert written.returncode == 0, written.stderr

        def described() -> str:
            return java(
                "org.apache.kafka.tools.TopicCommand",
                *("--bootstrap-server", both, "--command-config", file, "--describe"),
                *("--topic", "t"),
            ).stdout

        eventually(
            lambda: {"Isr: 1,2", "Isr: 2,1"} >= set(_isrs(described())) != set(),
            described,
            seconds=SECONDS,
            pause_seconds=1,
        )
        more = ("--from-beginning", "--max-messages", "200", "--timeout-ms", "60000")
        read = java(
            "org.apache.kafka.tools.consumer.ConsoleConsumer",
            *("--bootstrap-server", both, "--consumer.config", file, "--topic", "t", *more),
        )
        numbers = [int(line) for line in read.stdout.splitlines() if line.isdigit()]
        assert sorted(numbers) == list(range(200)), read.stderr
        assert "failed to authenticate" not in ours.log()
        assert "Failed authentication" not in kafka.output()


def _isrs(text: str) -> list[str]:
    found = []
    for line in text.splitlines():
        parts = [part.strip() for part in line.split("\t")]
        found += [part for part in parts if part.startswith("Isr:")]
    return found


def test_the_environment_is_that_of_the_kdc(kdc: Kdc) -> None:
    assert os.environ["KRB5_CONFIG"] == str(kdc.krb5_conf)
