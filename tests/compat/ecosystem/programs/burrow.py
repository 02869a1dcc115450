"""Burrow, which reads the records of `__consumer_offsets` and evaluates the lag of groups."""

from __future__ import annotations

import json
import socket
import subprocess
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, TopicPartition

from ottla.cli.zookeeper_server import free_port
from tests.compat.ecosystem.clients import create_topics, produce
from tests.compat.ecosystem.clusters import Cluster
from tests.compat.ecosystem.environments import run_command
from tests.compat.ecosystem.model import Program, Script
from tests.doubles.apache_kafka import REPOSITORY, start_zookeeper
from tests.doubles.eventually import eventually

VERSION = "1.2.1"
LAG_SECONDS = 180.0

# It uses the newest requests of Kafka 2.0. It keeps an interval for each commit that it reads.
_CONFIGURATION = """
[logging]
filename="{directory}/burrow.log"
level="debug"
[general]
pidfile="{directory}/burrow.pid"
[zookeeper]
servers=[ "{zookeeper}" ]
timeout=30
root-path="/burrow"
[client-profile.tested]
client-id="burrow"
kafka-version="2.0.0"
[cluster.local]
class-name="kafka"
servers=[ "{bootstrap}" ]
client-profile="tested"
topic-refresh=5
offset-refresh=1
[consumer.local]
class-name="kafka"
cluster="local"
servers=[ "{bootstrap}" ]
client-profile="tested"
start-latest=false
[httpserver.default]
address="127.0.0.1:{port}"
[storage.default]
class-name="inmemory"
workers=1
intervals=4
min-distance=0
"""


def _program() -> Path:
    """The program of Debian's package, unpacked and not installed."""
    place = REPOSITORY / ".cache" / f"burrow-{VERSION}"
    program = place / "usr" / "bin" / "Burrow"
    if not program.exists():
        place.mkdir(parents=True, exist_ok=True)
        done = subprocess.run(
            "apt-get download burrow && dpkg -x burrow_*.deb .",
            shell=True,
            cwd=place,
            capture_output=True,
            text=True,
        )
        if done.returncode:
            pytest.skip(f"the package burrow could not be downloaded: {done.stderr[-300:]}")
    version = run_command(["sh", "-c", f"ls {place}/burrow_*.deb"], 10)
    assert f"burrow_{VERSION}" in version, version
    return program


def _run(script: Script) -> None:
    program = _program()
    with (
        script.start_cluster() as cluster,
        start_zookeeper(script.directory / "burrow-zookeeper") as zookeeper,
    ):
        create_topics(cluster.bootstrap, ["orders"], partitions=1)
        produce(cluster.bootstrap, "orders", [str(number) for number in range(100)])
        for offset in (10, 20, 30, 60):
            commit_offset(cluster, offset)
        _wait_for_zookeeper(zookeeper)
        port = free_port()
        text = _CONFIGURATION.format(
            directory=script.directory,
            bootstrap=cluster.bootstrap,
            port=port,
            zookeeper=zookeeper,
        )
        (script.directory / "burrow.toml").write_text(text)
        with (script.directory / "burrow.out").open("wb") as sink:
            command = [str(program), "--config-dir", str(script.directory)]
            process = subprocess.Popen(command, stdout=sink, stderr=sink)
        try:
            _steps(script, cluster, f"http://127.0.0.1:{port}/v3/kafka/local")
        finally:
            process.kill()
            process.wait()


def _wait_for_zookeeper(connect: str) -> None:
    """Until it serves sessions: Burrow ends when the first one is closed."""
    host, _, port = connect.rpartition(":")

    def serves() -> bool:
        with socket.create_connection((host, int(port)), timeout=10) as connection:
            connection.sendall(b"srvr")
            return b"Mode" in connection.recv(4096)

    eventually(serves, "ZooKeeper does not serve sessions", seconds=LAG_SECONDS)


def _steps(script: Script, cluster: Cluster, url: str) -> None:
    with script.check("topics and their end offsets"):
        _wait(url, "/topic", lambda found: "orders" in found["topics"])
        _wait(url, "/topic/orders", lambda found: found["offsets"] == [100])
    with script.check("the lag of a group, from the records of __consumer_offsets"):
        _wait(url, "/consumer", lambda found: "readers" in found["consumers"])
        _wait(url, "/consumer/readers/lag", lambda found: found["status"]["totallag"] == 40)
    with script.check("the lag after further commits"):
        for offset in (80, 100):
            commit_offset(cluster, offset)
        _wait(url, "/consumer/readers/lag", lambda found: found["status"]["totallag"] == 0)


def commit_offset(cluster: Cluster, offset: int) -> None:
    """The group `readers` commits an offset of `orders`."""
    consumer = Consumer({"bootstrap.servers": cluster.bootstrap, "group.id": "readers"})
    consumer.commit(offsets=[TopicPartition("orders", 0, offset)], asynchronous=False)
    consumer.close()


def _wait(url: str, path: str, is_right: Any) -> None:
    last: list[object] = [None]

    def has_it() -> bool:
        try:
            with urllib.request.urlopen(url + path, timeout=10) as response:
                last[0] = json.loads(response.read())
                return bool(is_right(last[0]))
        except urllib.error.HTTPError as error:
            last[0] = error.read()
        except OSError as error:
            last[0] = error
        return False

    eventually(has_it, lambda: f"{path}: {last[0]}", seconds=LAG_SECONDS, pause_seconds=0.5)


PROGRAM = Program(
    "burrow",
    "Burrow",
    VERSION,
    ("apt-get", "dpkg", "java"),
    _run,
    ("With a ZooKeeper of its own, which it requires.",),
)
