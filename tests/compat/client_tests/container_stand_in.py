"""A Python package `docker` for tests that start a container of Kafka and run its tools in it.

There is no Docker: the package asks the runner, over a Unix socket, to start ZooKeeper and a
broker with the settings of aiokafka's image, and to run Kafka's command line classes.
"""

from __future__ import annotations

import json
import shlex
import socket
import subprocess
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from tests.compat.ecosystem.clusters import KAFKA
from tests.doubles.apache_kafka import java_command, start_kafka, start_zookeeper
from tests.doubles.broker_process import BrokerProcess

TOOL_SECONDS = 120.0
_LOGIN = "org.apache.kafka.common.security"
_PASSWORD = "abcdefgh"

_PACKAGE = '''"""In place of the Docker client: see container_stand_in."""
import json, socket, subprocess
from types import SimpleNamespace


class Container:
    def __init__(self, volumes, working_dir):
        self.volumes, self.working_dir = volumes, working_dir

    def _path(self, word):
        for source, target in self.volumes.items():
            if word.startswith(target["bind"]):
                return source + word[len(target["bind"]):]
        return word

    def exec_run(self, command, user=""):
        if not isinstance(command, str):
            words = [self._path(word) for word in command]
            done = subprocess.run(words, cwd=self._path(self.working_dir), capture_output=True)
            return done.returncode, done.stdout + done.stderr
        code, output = ask("run", command=command)
        return code, output.encode()

    def stop(self):
        ask("stop")


models = SimpleNamespace(containers=SimpleNamespace(Container=Container))


def ask(action, **values):
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect({path!r})
        connection.sendall(json.dumps({{"action": action, **values}}).encode() + b"\\n")
        return json.loads(connection.makefile().read())


def run_container(image, command=None, volumes=None, working_dir="", environment=None, **_):
    volumes = {{str(source): target for source, target in volumes.items()}}
    if environment:
        folder = next(iter(volumes))
        ask("start", environment=environment, folder=folder)
    return Container(volumes, working_dir)


def from_env():
    containers = SimpleNamespace(run=run_container)
    images = SimpleNamespace(pull=lambda name: None)
    return SimpleNamespace(containers=containers, images=images, close=lambda: None)
'''

_LOGINS = f"""KafkaServer {{
  {_LOGIN}.plain.PlainLoginModule required
    username="admin" password="admin"
    user_admin="admin" user_test="test" user_test2="test2";
  {_LOGIN}.scram.ScramLoginModule required username="test" password="test";
}};
"""


def broker_settings(environment: dict[str, Any], folder: str) -> dict[str, object]:
    """Those of the image's start script for these variables, but GSSAPI; keys are in `folder`."""
    ports = {
        "PLAINTEXT": environment["ADVERTISED_PORT"],
        "SSL": environment["ADVERTISED_SSL_PORT"],
        "SASL_PLAINTEXT": environment["ADVERTISED_SASL_PLAINTEXT_PORT"],
        "SASL_SSL": environment["ADVERTISED_SASL_SSL_PORT"],
    }
    return {
        "broker.id": 0,
        "listeners": ",".join(f"{name}://127.0.0.1:{port}" for name, port in ports.items()),
        "security.inter.broker.protocol": "SSL",
        "ssl.enabled.protocols": "TLSv1.2",
        "ssl.keystore.type": "JKS",
        "ssl.keystore.location": f"{folder}/br_server.keystore.jks",
        "ssl.keystore.password": _PASSWORD,
        "ssl.key.password": _PASSWORD,
        "ssl.truststore.type": "JKS",
        "ssl.truststore.location": f"{folder}/br_server.truststore.jks",
        "ssl.truststore.password": _PASSWORD,
        "ssl.client.auth": "required",
        "ssl.endpoint.identification.algorithm": "",
        "sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-256,SCRAM-SHA-512",
        "authorizer.class.name": "kafka.security.authorizer.AclAuthorizer",
        "allow.everyone.if.no.acl.found": "true",
        "super.users": "User:admin",
        "num.partitions": environment["NUM_PARTITIONS"],
        "auto.create.topics.enable": "true",
        # As the image's server.properties has them.
        "offsets.topic.replication.factor": 1,
        "transaction.state.log.replication.factor": 1,
        "transaction.state.log.min.isr": 1,
        "offsets.topic.num.partitions": 5,
        "transaction.state.log.num.partitions": 5,
        "group.initial.rebalance.delay.ms": 0,
        "zookeeper.session.timeout.ms": 18_000,
    }


class _Broker:
    """What the container has: ZooKeeper, a broker, and Kafka's tools."""

    def __init__(self, kind: str, directory: Path) -> None:
        self._kind, self._directory = kind, directory
        self._running = ExitStack()
        self._zookeeper = ""

    def handle(self, request: dict[str, Any]) -> object:
        actions: dict[str, Callable[..., object]] = {
            "start": self.start,
            "run": self.run,
            "stop": self.stop,
        }
        return actions[request.pop("action")](**request)

    def start(self, environment: dict[str, Any], folder: str) -> None:
        self._zookeeper = self._running.enter_context(start_zookeeper(self._directory))
        logins = self._directory / "logins.conf"
        logins.write_text(_LOGINS)
        option = f"-Djava.security.auth.login.config={logins}"
        settings = broker_settings(environment, folder)
        place = self._directory / "broker"
        if self._kind == KAFKA:
            self._running.enter_context(
                start_kafka(place, zookeeper=self._zookeeper, jvm_options=[option], **settings)
            )
            return
        texts = {name: str(value) for name, value in settings.items()}
        broker = BrokerProcess(place, {"zookeeper.connect": self._zookeeper, **texts})
        broker.kafka_opts = option
        broker.start()
        self._running.callback(broker.stop)

    def run(self, command: str) -> tuple[int, str]:
        """One of Kafka's scripts, as the class that it starts."""
        script, *arguments = shlex.split(command.replace("localhost:2181", self._zookeeper))
        classes = {
            "kafka-acls.sh": "kafka.admin.AclCommand",
            "kafka-configs.sh": "kafka.admin.ConfigCommand",
        }
        done = subprocess.run(
            java_command(classes[Path(script).name], *arguments, log_level="WARN"),
            capture_output=True,
            text=True,
            timeout=TOOL_SECONDS,
        )
        return done.returncode, done.stdout + done.stderr

    def stop(self) -> None:
        self._running.close()


@contextmanager
def start_stand_in(kind: str, directory: Path) -> Iterator[Path]:
    """A directory for PYTHONPATH with the package `docker`, whose brokers are of this kind."""
    package = directory / "packages" / "docker"
    package.mkdir(parents=True)
    path = directory / "docker.socket"
    (package / "__init__.py").write_text(_PACKAGE.format(path=str(path)))
    broker = _Broker(kind, directory)
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))
        listener.listen()
        thread = threading.Thread(target=_serve, args=(listener, broker.handle), daemon=True)
        thread.start()
        try:
            yield package.parent
        finally:
            listener.shutdown(socket.SHUT_RDWR)
            thread.join(60)
            broker.stop()


def _serve(listener: socket.socket, handle: Callable[[dict[str, Any]], object]) -> None:
    while True:
        try:
            connection, _ = listener.accept()
        except OSError:  # it was shut down
            return
        with connection, connection.makefile("rb") as lines:
            try:
                response = handle(json.loads(lines.readline()))
            except Exception as error:  # the tests fail with it
                response = (1, f"{type(error).__name__}: {error}")
            connection.sendall(json.dumps(response).encode())
