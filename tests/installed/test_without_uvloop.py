"""A platform that has no wheel of uvloop: the broker runs on asyncio's own event loop."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

from confluent_kafka import Consumer, Producer

from tests.installed.builds import ROOT, must_run
from tests.installed.conftest import Installed
from tests.installed.project_tests import OWN, project_tests
from tests.installed.start import started

# Comes before the installed package on the path.
MISSING = "raise ImportError('no module uvloop')\n"
RECORDS = [b"record %d" % number for number in range(500)]


def folder_without_uvloop(folder: Path) -> dict[str, str]:
    """The environment of processes that cannot import uvloop."""
    (folder / "uvloop.py").write_text(MISSING)
    return {"PYTHONPATH": str(folder)}


def test_a_client_produces_and_consumes(installed: Installed, tmp_path: Path) -> None:
    environment = folder_without_uvloop(tmp_path)
    with started(installed, tmp_path, environment) as broker:
        producer = Producer({"bootstrap.servers": broker.bootstrap, "enable.idempotence": True})
        for record in RECORDS:
            producer.produce("orders", record)
        assert producer.flush(60) == 0
        consumer = Consumer(
            {
                "bootstrap.servers": broker.bootstrap,
                "group.id": "readers",
                "auto.offset.reset": "earliest",
            }
        )
        consumer.subscribe(["orders"])
        read = [consumer.poll(60) for _ in RECORDS]
        consumer.close()
    assert [message and message.value() for message in read] == RECORDS
    lines = [line for line in broker.log.splitlines() if "uvloop" in line]
    assert len(lines) == 1
    assert "using the event loop of asyncio, which is slower" in lines[0]


def test_the_fixtures_and_the_embedded_broker(installed: Installed, tmp_path: Path) -> None:
    environment = folder_without_uvloop(tmp_path)
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    (tmp_path / "own.py").write_text(OWN)
    (tmp_path / "test_project.py").write_text(project_tests("own", ("ottla",), installed.site))
    command = (installed.python, "-m", "pytest", "-q", "-p", "no:cacheprovider")
    assert "3 passed" in must_run(*command, cwd=tmp_path, environment=environment)


def test_uvloop_is_installed_only_where_it_has_wheels() -> None:
    """Without the marker, pip would compile it there, or fail."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    [uvloop] = [line for line in project["dependencies"] if line.startswith("uvloop")]
    _, _, marker = uvloop.partition(";")
    newest = max(
        int(minor) for minor in re.findall(r":: 3\.(\d+)", " ".join(project["classifiers"]))
    )
    assert f"python_version < '3.{newest + 1}'" in marker
    assert "platform_python_implementation == 'CPython'" in marker
    assert "platform_machine" in marker
