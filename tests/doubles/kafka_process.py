"""A broker of Apache Kafka with the interface of `BrokerProcess`, for mixed clusters."""

from __future__ import annotations

import os
import signal
from pathlib import Path

from tests.doubles.apache_kafka import JavaProcess, java_command
from tests.doubles.broker_process import BrokerProcess

_DEFAULTS = {
    "num.network.threads": "2",
    "num.io.threads": "2",
    "log.cleaner.dedupe.buffer.size": str(8 << 20),
}


class KafkaBrokerProcess(BrokerProcess):
    """Needs a port: Kafka does not print the one that it chose in a form for tests."""

    _kafka: JavaProcess | None = None

    @property
    def is_running(self) -> bool:
        return self._kafka is not None

    @property
    def pid(self) -> int:
        assert self._kafka is not None, "the broker is not running"
        return self._kafka.process.pid

    def has_ended(self) -> bool:
        return self._kafka is not None and self._kafka.process.poll() is not None

    def start(self) -> None:
        assert self._kafka is None, "the broker is running"
        directory: Path = self.log_file.parent
        directory.mkdir(parents=True, exist_ok=True)
        settings = {**_DEFAULTS, "log.dirs": str(self.data_directory), **self._settings}
        properties = directory / "server.properties"
        properties.write_text("".join(f"{name}={text}\n" for name, text in settings.items()))
        command = [*self.prefix, *java_command("kafka.Kafka", str(properties))]
        self._kafka = JavaProcess(command, self.log_file)
        self._kafka.wait_for(r"\[KafkaServer id=\d+\] started")

    def send_signal(self, number: signal.Signals) -> None:
        os.kill(self.pid, number)

    def ask_to_stop(self) -> None:
        assert self._kafka is not None, "the broker is not running"
        self._kafka.process.terminate()

    def wait_for_end(self) -> int:
        kafka, self._kafka = self._kafka, None
        assert kafka is not None, "the broker is not running"
        kafka.stop()
        return int(kafka.process.returncode)

    def kill(self) -> None:
        kafka, self._kafka = self._kafka, None
        assert kafka is not None, "the broker is not running"
        kafka.kill()
