"""Apicurio Registry with its storage in topics, and Confluent's serializers for Python."""

from __future__ import annotations

import json
import os
import subprocess
import tarfile
import urllib.request
from pathlib import Path

from ottla.cli.zookeeper_server import free_port
from tests.compat.ecosystem.clients import read_topic
from tests.compat.ecosystem.environments import environment, run_script
from tests.compat.ecosystem.jars import JVM_OPTIONS, library, newer_java
from tests.compat.ecosystem.model import Program, Script
from tests.doubles.eventually import eventually
from tests.doubles.maven import ALONE

VERSION = "3.3.3"
SERIALIZERS = "confluent-kafka[avro,json,protobuf,schemaregistry]==2.14.0"
START_SECONDS = 600.0
_CLIENT = Path(__file__).with_name("registry_client.py")
_ALL = f"<classifier>all</classifier><type>tar.gz</type>{ALONE}"


def _program() -> Path:
    """The directory of the unpacked program."""
    name = f"apicurio-{VERSION}"
    archives = library(name, [("io.apicurio", "apicurio-registry-app", VERSION, _ALL)])
    place = archives.parent / "program"
    if not (place / "quarkus-run.jar").exists():
        with tarfile.open(archives / f"apicurio-registry-app-{VERSION}-all.tar.gz") as archive:
            archive.extractall(place, filter="data")
    return place


class Registry:
    """The process; its memory is empty at each start."""

    def __init__(self, script: Script, bootstrap: str) -> None:
        self._port = free_port()
        self.url = f"http://127.0.0.1:{self._port}/apis/ccompat/v7"
        self._log = script.directory / "registry.log"
        self._place = _program()
        self._java = newer_java(21)
        self._variables = {
            "APICURIO_STORAGE_KIND": "kafkasql",
            "APICURIO_KAFKASQL_BOOTSTRAP_SERVERS": bootstrap,
            "QUARKUS_HTTP_HOST": "127.0.0.1",
            "QUARKUS_HTTP_PORT": str(self._port),
            "QUARKUS_MANAGEMENT_HOST": "127.0.0.1",
            "QUARKUS_MANAGEMENT_PORT": str(free_port()),
        }
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        with self._log.open("ab") as sink:
            self._process = subprocess.Popen(
                [self._java, *JVM_OPTIONS, "-jar", "quarkus-run.jar"],
                cwd=self._place,
                env={**os.environ, **self._variables},
                stdout=sink,
                stderr=sink,
            )
        eventually(self._is_ready, self._end, seconds=START_SECONDS, pause_seconds=0.5)

    def _is_ready(self) -> bool:
        assert self._process is not None
        assert self._process.poll() is None, self._end()
        try:
            with urllib.request.urlopen(f"{self.url}/subjects", timeout=10) as response:
                return bool(response.status == 200)
        except OSError:
            return False

    def _end(self) -> str:
        return self._log.read_text(errors="replace")[-3000:]

    def kill(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()


def _run(script: Script) -> None:
    python = environment("ecosystem-serializers", SERIALIZERS)
    with script.start_cluster() as cluster:
        registry = Registry(script, cluster.bootstrap)

        def client(action: str) -> str:
            return run_script(python, _CLIENT, cluster.bootstrap, registry.url, action)

        try:
            with script.check("it starts with KafkaSQL storage and creates its topics"):
                registry.start()
                read_topic(cluster.bootstrap, "kafkasql-journal", "read_uncommitted")
            for form in ("avro", "protobuf", "json"):
                with script.check(f"Confluent's {form} serializer and deserializer"):
                    client(form)
            with script.check("a compatible schema is registered, an incompatible one is refused"):
                client("evolve")
            with script.check("killed and started again: all schemas are read from the topic"):
                before = json.loads(client("subjects"))
                registry.kill()
                registry.start()
                assert json.loads(client("subjects")) == before
                assert "orders-avro-value" in before, before
                client("avro")
        finally:
            registry.kill()


PROGRAM = Program(
    "apicurio",
    "Apicurio Registry with Confluent's serializers",
    VERSION,
    ("java", "mvn"),
    _run,
    (f"Serializers of {SERIALIZERS}.",),
)
