"""The package `docker` that stands in for Docker in aiokafka's tests."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from tests.compat.client_tests.container_stand_in import broker_settings, start_stand_in
from tests.compat.ecosystem.clusters import OTTLA

_PROGRAM = """
import docker
container = docker.from_env().containers.run(
    image="a", command="sleep 300", tty=True, working_dir="/keys",
    volumes={"KEYS": {"bind": "/keys"}, "SCRIPT": {"bind": "/make.sh"}},
)
print(*container.exec_run(["sh", "/make.sh"], user="0:0"))
print(*container.exec_run("/opt/kafka/bin/kafka-console.sh --list"))
container.stop()
"""


def test_a_command_of_a_container_runs_on_the_files_of_its_volumes(tmp_path: Path) -> None:
    keys, script = tmp_path / "keys", tmp_path / "make.sh"
    keys.mkdir()
    script.write_text("echo made > key; echo said\n")
    program = _PROGRAM.replace("KEYS", str(keys)).replace("SCRIPT", str(script))
    with start_stand_in(OTTLA, tmp_path) as packages:
        done = subprocess.run(
            [sys.executable, "-c", program],
            capture_output=True,
            text=True,
            env={**os.environ, "PYTHONPATH": str(packages)},
        )
    assert done.stdout.splitlines() == [
        "0 b'said\\n'",
        "1 b\"KeyError: 'kafka-console.sh'\"",  # only Kafka's tools for ACLs and settings
    ]
    assert (keys / "key").read_text() == "made\n"


def test_the_settings_have_the_ports_of_the_container() -> None:
    names = ("", "_SSL", "_SASL_PLAINTEXT", "_SASL_SSL")
    ports: dict[str, object] = {f"ADVERTISED{each}_PORT": 9000 + n for n, each in enumerate(names)}
    settings = broker_settings({**ports, "NUM_PARTITIONS": 2}, "/keys")
    assert settings["listeners"] == (
        "PLAINTEXT://127.0.0.1:9000,SSL://127.0.0.1:9001,"
        "SASL_PLAINTEXT://127.0.0.1:9002,SASL_SSL://127.0.0.1:9003"
    )
    assert settings["ssl.keystore.location"] == "/keys/br_server.keystore.jks"
    assert settings["num.partitions"] == 2
