"""`ottla zookeeper` beside Apache ZooKeeper: the Java client, four-letter words, Kafka brokers."""

from __future__ import annotations

import os
import re
import socket
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from ottla.cli.zookeeper_server import find_java, zookeeper_jars
from tests.doubles.acknowledged_records import AcknowledgedRecords
from tests.doubles.apache_kafka import start_kafka
from tests.doubles.broker_process import BrokerProcess
from tests.doubles.eventually import eventually
from tests.doubles.zookeeper_process import (
    ZooKeeperProcess,
    start_ottla_zookeeper,
    start_zookeeper,
)

pytestmark = pytest.mark.zookeeper

COMMANDS = """\
create /a one
create -e /e eph
create -s /seq- x
create -s /seq- x
create -s -e /seq- x
get -s /a
set /a two
set -v 0 /a three
set -v 1 /a three
stat /a
stat /e
ls /
ls -s /
ls -R /
create /a again
create /missing/child x
create /e/child x
delete /nope
delete /
create /p
create /p/c
delete /p
deleteall /p
ls -s /
getAcl /a
setAcl /a world:anyone:r
set /a denied
setAcl /a world:anyone:cdrwa
getAcl -s /a
addauth digest user:pw
create /auth data auth:user:pw:cdrwa
getAcl /auth
get /auth
getEphemerals
getEphemerals /s
getAllChildrenNumber /
whoami
sync /
create -t 1000 /ttl x
config
setquota -n 5 /a
create /quoted
close
ls /
"""
# What differs from run to run: zxids, times, ports, and the owner of an ephemeral znode.
_VARYING = (
    (re.compile(r"^(.*[zZ]xid = )0x[0-9a-f]+$", re.MULTILINE), r"\1Z"),
    (re.compile(r"^(.time = ).*$", re.MULTILINE), r"\1T"),
    (re.compile(r"(ephemeralOwner = )0x[0-9a-f]{5,}"), r"\1S"),
    (re.compile(r"127\.0\.0\.1:\d+"), "ADDRESS"),
    (re.compile(r"^.*(jline|JLine|logr).*\n", re.MULTILINE), ""),
    # The prompt is printed by another thread than the events of watches.
    (re.compile(r"\[zk: ADDRESS\(\w+\) \d+\] "), ""),
)
# The client's event thread prints these between the results of commands, at any line's end.
_EVENT = re.compile(r"\nWATCHER::\n\n(WatchedEvent .*)\n")


def java_client(port: int, commands: str, directory: Path) -> tuple[list[str], list[str]]:
    """What the commands print, by line, and the events of watches."""
    configuration = directory / "log4j2.xml"
    configuration.write_text(
        '<?xml version="1.0"?><Configuration><Loggers><Root level="OFF"/></Loggers></Configuration>'
    )
    result = subprocess.run(
        [
            *(
                find_java(),
                "-XX:TieredStopAtLevel=1",
                f"-Dlog4j2.configurationFile={configuration}",
            ),
            *("-cp", f"{zookeeper_jars()}/*", "org.apache.zookeeper.ZooKeeperMain"),
            *("-server", f"127.0.0.1:{port}"),
        ],
        input=commands,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=60,
        check=False,
        env={**os.environ, "TERM": "dumb"},
    )
    output = result.stdout
    for pattern, replacement in _VARYING:
        output = pattern.sub(replacement, output)
    return _EVENT.sub("", output).splitlines(), _EVENT.findall(output)


@pytest.fixture
def both(tmp_path: Path) -> Iterator[tuple[ZooKeeperProcess, ZooKeeperProcess]]:
    with start_zookeeper(tmp_path) as apache, start_ottla_zookeeper(tmp_path, 2_000) as ours:
        yield apache, ours


def test_the_java_client_shows_the_same(
    both: tuple[ZooKeeperProcess, ZooKeeperProcess], tmp_path: Path
) -> None:
    apache, ours = (java_client(each.port, COMMANDS, tmp_path) for each in both)
    assert "Created /seq-0000000003" in apache[0], apache
    assert len(apache[1]) == 2, apache
    assert ours == apache


def word(port: int, text: bytes) -> str:
    with socket.create_connection(("127.0.0.1", port), timeout=5) as connection:
        connection.sendall(text)
        response = b""
        while chunk := connection.recv(65536):
            response += chunk
    return response.decode()


def test_four_letter_words_have_the_same_fields(
    both: tuple[ZooKeeperProcess, ZooKeeperProcess],
) -> None:
    apache, ours = both
    assert word(ours.port, b"ruok") == word(apache.port, b"ruok") == "imok"
    assert word(ours.port, b"isro") == word(apache.port, b"isro")
    for name in (b"srvr", b"stat", b"conf"):
        known = set(re.findall(r"^([\w ]+?)[:=]", word(apache.port, name), re.MULTILINE))
        shown = set(re.findall(r"^([\w ]+?)[:=]", word(ours.port, name), re.MULTILINE))
        assert shown <= known, (name, shown - known)
    known = {line.split("\t")[0] for line in word(apache.port, b"mntr").splitlines()}
    shown = {line.split("\t")[0] for line in word(ours.port, b"mntr").splitlines()}
    assert shown
    assert shown <= known


@pytest.mark.kafka
def test_a_kafka_broker_and_ours_form_a_cluster_on_it(tmp_path: Path) -> None:
    with ExitStack() as stack:
        zookeeper = stack.enter_context(start_ottla_zookeeper(tmp_path))
        kafka = stack.enter_context(
            start_kafka(
                tmp_path / "kafka",
                zookeeper=zookeeper.connect,
                broker_id=1,
                zookeeper_session_timeout_ms=18_000,
                inter_broker_protocol_version="3.9",
            )
        )
        settings = {
            "broker.id": "2",
            "zookeeper.connect": zookeeper.connect,
            "zookeeper.session.timeout.ms": "18000",
            "inter.broker.protocol.version": "3.9",
            "offsets.topic.num.partitions": "1",
            "offsets.topic.replication.factor": "1",
        }
        ours = BrokerProcess(tmp_path / "ours", settings)
        try:
            ours.start()
            records = AcknowledgedRecords(f"{kafka.bootstrap},{ours.bootstrap}")
            records.create_topic(replicas=2)
            records.produce(200)
            zookeeper.restart()  # a session and its ephemeral znodes outlive that
            records.produce(200)
            eventually(records.all_in_sync, "a replica is not in sync")
            records.assert_nothing_lost_or_doubled()
            assert "expired" not in ours.log()
        finally:
            if ours.is_running:
                ours.kill()
