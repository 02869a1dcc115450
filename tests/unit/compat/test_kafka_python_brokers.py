"""The files with which kafka-python's tests start brokers of their own."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

from tests.compat.client_tests.kafka_python_brokers import install, listener_port


def _installed(place: Path) -> Path:
    (place / "test").mkdir()
    install(place)
    return place


def _service(place: Path) -> Any:
    """test/service.py as a module."""
    module = ModuleType("service")
    exec((_installed(place) / "test" / "service.py").read_text(), module.__dict__)
    return module


def test_the_template_of_the_broker_has_what_the_tests_fill_in(tmp_path: Path) -> None:
    words = "broker_id sasl_config ssl_config acl_config tmp_dir zk_host zk_port zk_chroot replicas"
    values: dict[str, object] = dict.fromkeys(words.split(), "")
    values |= {"transport": "SASL_PLAINTEXT", "host": "localhost", "port": 9191, "partitions": 4}
    resources = _installed(tmp_path) / "servers" / "resources" / "1.0"
    settings = (resources / "kafka.properties").read_text().format(**values)
    assert listener_port(settings) == 9191
    assert "num.partitions=4\n" in settings
    login = (resources / "kafka_server_jaas.conf").read_text().format(jaas_config="login;\n")
    assert login == "KafkaServer {\nlogin;\n};\n"


def test_a_script_passes_its_name_and_arguments_on(tmp_path: Path) -> None:
    script = _installed(tmp_path) / "bin" / "kafka-topics.sh"
    # In place of Python, which would start a JVM.
    text = script.read_text().replace(sys.executable, "echo")
    script.write_text(text)
    done = subprocess.run([script, "--list", "two words"], capture_output=True, text=True)
    assert done.stdout.split()[-4:] == ["kafka-topics.sh", "--list", "two", "words"]


def test_a_service_waits_for_a_line_of_its_process(tmp_path: Path) -> None:
    service = _service(tmp_path).SpawnedService(
        ["sh", "-c", "echo Binding to port; exec sleep 60"], dict(os.environ)
    )
    service.start()
    assert service.wait_for(r"binding to port", timeout=30)
    service.stop()
    assert service.child.poll() is not None
    assert not service.wait_for(r"another line", timeout=30)
