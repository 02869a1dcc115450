"""Brokers that kafka-python's tests start themselves, for SASL and TLS.

Its source distribution lacks the files of its folder `servers`, test/service.py and Kafka's
scripts. `install` writes files in their place. A test starts ZooKeeper, a broker and Kafka's tools
as scripts below KAFKA_ROOT: each is this module, which runs a class of Kafka's jars, or
`ottla.broker` where the class is that of the broker and the variable says so.

    python -m tests.compat.client_tests.kafka_python_brokers SCRIPT ARGUMENT ...
"""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path

from tests.compat.ecosystem.clusters import OTTLA
from tests.doubles.apache_kafka import REPOSITORY, java_command
from tests.doubles.eventually import is_listening

#: The kind of broker that is started.
KIND = "TESTED_BROKER"
_MODULE = "tests.compat.client_tests.kafka_python_brokers"
_BROKER = "kafka.Kafka"
_CLASSES = {
    "kafka-configs.sh": ("kafka.admin.ConfigCommand",),
    "kafka-topics.sh": ("org.apache.kafka.tools.TopicCommand",),
    "zookeeper-shell.sh": ("org.apache.zookeeper.ZooKeeperMainWithTlsSupportForKafka", "-server"),
}
_RUN_CLASS = "kafka-run-class.sh"
# The tests wait for these lines of Kafka, with the id of the broker and the name of the user.
_READY = "[KafkaServer id=0] started\nRemoving Produce quota for user alice\n"
_BROKER_SETTINGS = """broker.id={broker_id}
listeners={transport}://{host}:{port}
security.inter.broker.protocol={transport}
{sasl_config}
{ssl_config}
{acl_config}
log.dirs={tmp_dir}/data
num.partitions={partitions}
default.replication.factor={replicas}
offsets.topic.replication.factor=1
offsets.topic.num.partitions=2
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
group.min.session.timeout.ms=1000
group.initial.rebalance.delay.ms=0
zookeeper.connect={zk_host}:{zk_port}/{zk_chroot}
zookeeper.connection.timeout.ms=30000
"""
#: Templates, which the tests fill in.
_RESOURCES = {
    "kafka.properties": _BROKER_SETTINGS,
    "zookeeper.properties": (
        "dataDir={tmp_dir}\nclientPort={port}\nclientPortAddress={host}\nadmin.enableServer=false\n"
    ),
    "kafka_server_jaas.conf": "KafkaServer {{\n{jaas_config}}};\n",
    "sasl_command.conf": (
        "security.protocol={transport}\nsasl.mechanism={sasl_mechanism}\n"
        "sasl.jaas.config={jaas_config}\n"
    ),
}

_SERVICE = '''"""In place of the module that the source distribution lacks."""
import re
import subprocess
import tempfile
import time


class ExternalService:
    def __init__(self, host, port):
        self.host, self.port = host, port

    def dump_logs(self):
        pass


class SpawnedService:
    def __init__(self, args, env):
        self.args, self.env, self.child = args, env, None
        self.log = tempfile.NamedTemporaryFile()

    def start(self):
        self.child = subprocess.Popen(self.args, env=self.env, stdout=self.log, stderr=self.log)

    def _output(self):
        with open(self.log.name, errors="replace") as output:
            return output.read()

    def dump_logs(self):
        print(self._output())

    def wait_for(self, pattern, timeout=30):
        end = time.monotonic() + timeout
        while time.monotonic() < end and self.child.poll() is None:
            if re.search(pattern, self._output(), re.IGNORECASE):
                return True
            time.sleep(0.1)
        return False

    def stop(self):
        self.child.terminate()
        try:
            self.child.wait(30)
        except subprocess.TimeoutExpired:
            self.child.kill()
            self.child.wait()
'''


def install(place: Path) -> None:
    """Writes what the tests need to start brokers, into the unpacked distribution."""
    resources = place / "servers" / "resources" / "1.0"
    resources.mkdir(parents=True, exist_ok=True)
    for name, text in _RESOURCES.items():
        (resources / name).write_text(text)
    scripts = place / "bin"
    scripts.mkdir(exist_ok=True)
    for name in (_RUN_CLASS, *_CLASSES):
        path = scripts / name
        words = shlex.join(["env", f"PYTHONPATH={REPOSITORY}", sys.executable, "-m", _MODULE, name])
        path.write_text(f'#!/bin/sh\nexec {words} "$@"\n')
        path.chmod(0o755)
    (place / "test" / "service.py").write_text(_SERVICE)


def command(script: str, arguments: list[str]) -> list[str]:
    """The command line of a script. A tool speaks only when something is wrong."""
    options = shlex.split(os.environ.get("KAFKA_OPTS", ""))
    if script == _RUN_CLASS:
        return java_command(*arguments, options=options)
    return java_command(*_CLASSES[script], *arguments, log_level="WARN", options=options)


def listener_port(settings: str) -> int:
    """The port of the one listener that a settings file has."""
    rows = (line.partition("=") for line in settings.splitlines())
    return int({name: value for name, _, value in rows}["listeners"].rpartition(":")[2])


def run_ottla(settings: str) -> int:
    """A broker of Ottla until SIGTERM; says what the tests wait for when it serves clients."""
    # A variable of the runner is no setting of the broker.
    variables = {name: each for name, each in os.environ.items() if not name.startswith("OTTLA_")}
    process = subprocess.Popen([sys.executable, "-m", "ottla.broker", settings], env=variables)
    signal.signal(signal.SIGTERM, lambda *_: process.terminate())
    port = listener_port(Path(settings).read_text())
    while process.poll() is None and not is_listening(port):
        time.sleep(0.05)
    if process.poll() is None:
        print(_READY, flush=True)
    return process.wait()


def main() -> None:
    script, *arguments = sys.argv[1:]
    if arguments[:1] == [_BROKER] and os.environ[KIND] == OTTLA:
        sys.exit(run_ottla(arguments[1]))
    words = command(script, arguments)
    os.execvp(words[0], words)


if __name__ == "__main__":
    main()
