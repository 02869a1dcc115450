"""Workers of Kafka Connect and their REST interface."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ottla.cli.zookeeper_server import free_port
from tests.compat.ecosystem.jars import java
from tests.doubles.apache_kafka import JavaProcess
from tests.doubles.eventually import eventually

START_SECONDS = 600.0
RUNNING, PAUSED, STOPPED, FAILED = "RUNNING", "PAUSED", "STOPPED", "FAILED"

_CONVERTER = "org.apache.kafka.connect.storage.StringConverter"


class Worker:
    """One worker of a distributed Connect cluster. Workers of one group share the work."""

    def __init__(
        self,
        directory: Path,
        libraries: list[Path],
        bootstrap: str,
        settings: Mapping[str, str] | None = None,
    ) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self.url = f"http://127.0.0.1:{free_port()}"
        factor = str(min(3, len(bootstrap.split(","))))
        values = {
            "bootstrap.servers": bootstrap,
            "group.id": "connect-cluster",
            "key.converter": _CONVERTER,
            "value.converter": _CONVERTER,
            "listeners": self.url,
            "plugin.discovery": "service_load",
            "offset.flush.interval.ms": "500",
            "scheduled.rebalance.max.delay.ms": "2000",
            **{
                f"{name}.storage.topic": f"connect-{name}"
                for name in ("config", "offset", "status")
            },
            **{
                f"{name}.storage.replication.factor": factor
                for name in ("config", "offset", "status")
            },
            "offset.storage.partitions": "3",
            "status.storage.partitions": "2",
            **(settings or {}),
        }
        properties = directory / "worker.properties"
        properties.write_text("".join(f"{name}={value}\n" for name, value in values.items()))
        main_class = "org.apache.kafka.connect.cli.ConnectDistributed"
        self._command = java(libraries, directory, main_class, str(properties))
        self._output = directory / "worker.log"
        self._process: JavaProcess | None = None

    def start(self) -> None:
        """Starts the process; returns when it is a member of its group."""
        self.launch()
        self.wait_until_ready()

    def launch(self) -> None:
        """Starts the process; returns at once."""
        self._process = JavaProcess(self._command, self._output)

    def wait_until_ready(self) -> None:
        """Waits until its REST interface responds and it is a member of its group."""
        assert self._process is not None, "the worker was not started"
        self._process.wait_for(r"Kafka Connect started", START_SECONDS)
        eventually(self._is_ready, self.output, seconds=START_SECONDS, pause_seconds=0.2)

    def _is_ready(self) -> bool:
        try:
            self.get("/connectors")
        except (OSError, AssertionError):  # it joins its group
            return False
        return True

    def stop(self) -> None:
        """A clean stop (SIGTERM)."""
        if self._process is not None:
            self._process.stop()

    def kill(self) -> None:
        """kill -9."""
        if self._process is not None:
            self._process.kill()

    def output(self) -> str:
        """The end of its log."""
        return self._process.output()[-4000:] if self._process is not None else ""

    def get(self, path: str) -> Any:
        return self.request("GET", path)

    def request(self, method: str, path: str, body: object = None) -> Any:
        """The JSON of the response; AssertionError with the message of an error."""
        data = json.dumps(body).encode() if body is not None else None
        request = urllib.request.Request(self.url + path, data, method=method)
        request.add_header("Content-Type", "application/json")
        try:
            with urllib.request.urlopen(request, timeout=90) as response:
                text = response.read()
        except urllib.error.HTTPError as error:
            raise AssertionError(f"{method} {path}: {error.code} {error.read()[:500]!r}") from error
        return json.loads(text) if text else None

    def create(self, name: str, **settings: str) -> None:
        """Creates a connector or changes its settings."""
        values = {each.replace("_", "."): text for each, text in settings.items()}
        self.request("PUT", f"/connectors/{name}/config", values)

    def states(self, name: str) -> tuple[str, ...]:
        """The state of the connector, then those of its tasks; empty when it is unknown."""
        try:
            status = self.get(f"/connectors/{name}/status")
        except AssertionError:
            return ()
        return (status["connector"]["state"], *(task["state"] for task in status["tasks"]))

    def wait_for_states(self, name: str, *states: str, seconds: float = 120.0) -> None:
        """Waits until connector and tasks are in these states."""
        eventually(
            lambda: self.states(name) == states,
            lambda: f"{name} is {self.states(name)}, not {states}",
            seconds=seconds,
            pause_seconds=0.2,
        )
