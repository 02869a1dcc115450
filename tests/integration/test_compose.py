"""docker-compose.yml without Docker: the same environment, the same start and stop, twice; and that
Prometheus and Grafana ask for what a broker serves."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient

from ottla.broker.cluster.identity import wildcard_listeners
from ottla.broker.config.broker_config import BrokerConfig
from ottla.broker.config.definitions import broker_settings
from ottla.broker.config.sources import variable_to_setting
from ottla.broker.testing.embedded import Broker
from ottla.cli.zookeeper_server import free_port
from tests.doubles.broker_process import ROOT
from tests.doubles.eventually import eventually
from tests.doubles.zookeeper_process import start_zookeeper
from tests.integration.test_tiered_fetch import settings as tiered_settings

COMPOSE = (ROOT / "docker-compose.yml").read_text()
DEPLOY = ROOT / "deploy"
DEADLINE_S = 60.0
# What the pages of Prometheus itself and the process collector of Linux add.
NOT_OURS = {"up"}


def service(name: str) -> str:
    """The text of one service, up to the next."""
    found = re.search(rf"^  {name}:\n(.*?)(?=^\S|^  \S)", COMPOSE, re.MULTILINE | re.DOTALL)
    assert found is not None, name
    return found[1]


def variables(text: str) -> dict[str, str]:
    """The variables of brokers in a piece of the file."""
    found = re.findall(r"^\s+((?:KAFKA|OTTLA)_[A-Z0-9_]+): (.*)$", text, re.MULTILINE)
    # As compose does: ${NAME:-default}.
    return {
        name: re.sub(r"\$\{[A-Z_]+:-([^}]*)\}", r"\1", value.strip('"')) for name, value in found
    }


def common() -> dict[str, str]:
    block = re.search(r"^x-settings:.*?(?=^\S)", COMPOSE, re.MULTILINE | re.DOTALL)
    assert block is not None
    return variables(block[0].partition("\n")[2])


def test_every_variable_is_a_setting() -> None:
    named = {**common(), **variables(service("broker1"))}
    assert "KAFKA_ADVERTISED_LISTENERS" in named
    for name in set(named) - {"OTTLA_BOOTSTRAP"}:
        setting = variable_to_setting(name)
        assert setting in broker_settings() or f"ottla.{setting}" in broker_settings(), name


def test_zookeeper_is_started_again_as_the_brokers_are() -> None:
    """After a restart of the machine, Docker starts what has such a policy, and nothing else."""
    policy = re.compile(r"^ *restart: unless-stopped$", re.MULTILINE)
    brokers = re.search(r"^x-broker:.*?(?=^\S)", COMPOSE, re.MULTILINE | re.DOTALL)
    assert brokers is not None
    assert policy.search(brokers[0])
    assert policy.search(service("zookeeper"))


@pytest.mark.parametrize("broker", ["broker1", "broker2", "broker3"])
def test_the_file_advertises_an_address_for_each_listener(broker: str) -> None:
    """No client gets one that the broker derives from the network of its container."""
    environment = {**common(), **variables(service(broker))}
    config = BrokerConfig.load(None, [], {**environment, "KAFKA_LOG_DIRS": "data"})
    assert not wildcard_listeners(config)
    hosts = {each.listener_name: each.host for each in config.advertised_endpoints()}
    assert hosts == {"HOST": "localhost", "COMPOSE": broker}


def test_the_image_gives_way_to_kafkas_names() -> None:
    """OTTLA_ goes before KAFKA_: a default of the image under that name could not be changed.
    OTTLA_IMAGE_ goes behind all."""
    lines = (ROOT / "Dockerfile").read_text().replace("OTTLA_IMAGE_", "").splitlines()
    assert not [line for line in lines if "OTTLA_" in line and "=" in line]


@pytest.mark.parametrize(
    "name",
    ["Dockerfile", *(path.name for path in ROOT.glob("docker-compose*.yml"))],
)
def test_a_long_start_is_not_unhealthy(name: str) -> None:
    """Services that wait for a healthy broker, and `up --wait`, give up on an unhealthy one. A busy
    machine and the recovery of many logs take minutes."""
    periods = re.findall(r"start[-_]period[:=] ?(\S+)", (ROOT / name).read_text())
    assert periods == ["5m"]


def test_the_image_listens_on_both_families() -> None:
    """0.0.0.0 would refuse clients of a network with IPv6 (docker network create --ipv6). Without a
    host, a broker with ZooKeeper would advertise the name of its container."""
    listeners = re.search(r"OTTLA_IMAGE_LISTENERS=(\S+)", (ROOT / "Dockerfile").read_text())
    assert listeners is not None
    assert listeners[1] == "PLAINTEXT://[::]:9092"


class Container:
    """One broker as the file starts it, with this machine's addresses instead of the project's."""

    def __init__(self, number: int, directory: Path, zookeeper: str) -> None:
        self.host_port, self.compose_port, self.http_port = free_port(), free_port(), free_port()
        environment = {**common(), **variables(service(f"broker{number}"))}
        published = re.search(r":(\d+),", environment["KAFKA_ADVERTISED_LISTENERS"])
        assert published is not None
        replaced = {
            f"localhost:{published[1]}": f"127.0.0.1:{self.host_port}",
            f"broker{number}:29092": f"127.0.0.1:{self.compose_port}",
            "0.0.0.0:9092": f"127.0.0.1:{self.host_port}",
            "0.0.0.0:29092": f"127.0.0.1:{self.compose_port}",
            f":{9403 + number}": f"127.0.0.1:{self.http_port}",
            "zookeeper:2181": zookeeper,
        }
        for name, given in environment.items():
            value = given
            for old, new in replaced.items():
                value = value if new in value else value.replace(old, new)
            environment[name] = value
        self._environment = {
            **{name: text for name, text in os.environ.items() if name[:6] not in PREFIXES},
            **environment,
            "KAFKA_LOG_DIRS": str(directory / f"broker{number}"),
            # The last one to stop asks three times for another to take over; none is left.
            "KAFKA_CONTROLLED_SHUTDOWN_RETRY_BACKOFF_MS": "50",
            "PYTHONPATH": str(ROOT),
        }
        self._log = directory / f"broker{number}.log"
        self._process: subprocess.Popen[bytes] | None = None

    def up(self) -> None:
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "ottla.cli.main", "start"],
                cwd=ROOT, env=self._environment, stdout=log, stderr=log, stdin=subprocess.DEVNULL,
            )  # fmt: skip

    def wait_until_ready(self) -> None:
        """What the health check of the file asks."""
        assert self._process is not None
        deadline = time.monotonic() + DEADLINE_S
        while time.monotonic() < deadline:
            assert self._process.poll() is None, self._log.read_text()
            try:
                with urllib.request.urlopen(
                    f"http://127.0.0.1:{self.http_port}/readyz", timeout=5
                ) as response:
                    assert response.status == 200
                    return
            except (urllib.error.URLError, OSError):
                time.sleep(0.05)
        raise AssertionError(f"not ready:\n{self._log.read_text()}")

    def signal(self, number: signal.Signals) -> None:
        if self._process is not None:
            self._process.send_signal(number)

    def end(self) -> int:
        """Its exit code, after a request to end."""
        process, self._process = self._process, None
        if process is None:
            return 0
        try:
            return process.wait(DEADLINE_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            raise AssertionError(f"it did not stop:\n{self._log.read_text()}") from None


PREFIXES = ("KAFKA_", "OTTLA_")


@contextmanager
def brokers(directory: Path, zookeeper: str) -> Iterator[list[Container]]:
    with ExitStack() as stack:
        made = [Container(number, directory, zookeeper) for number in (1, 2, 3)]
        for each in made:
            stack.callback(each.end)
            stack.callback(each.signal, signal.SIGKILL)
        yield made


def down(containers: list[Container], number: signal.Signals) -> list[int]:
    """All of them at once, as compose does it."""
    for each in containers:
        each.signal(number)
    return [each.end() for each in containers]


def up(containers: list[Container]) -> str:
    """All of them at once; the cluster's id."""
    for each in containers:
        each.up()
    for each in containers:
        each.wait_until_ready()
    admin = AdminClient({"bootstrap.servers": bootstrap(containers)})
    eventually(
        lambda: len(admin.list_topics(timeout=DEADLINE_S).brokers) == len(containers),
        "a broker is not in the cluster",
    )
    return str(admin.list_topics(timeout=DEADLINE_S).cluster_id)


def bootstrap(containers: list[Container]) -> str:
    return ",".join(f"127.0.0.1:{each.host_port}" for each in containers)


def write(containers: list[Container], value: bytes) -> None:
    producer = Producer({"bootstrap.servers": bootstrap(containers), "acks": "all"})
    failures: list[object] = []
    producer.produce("made-on-demand", value, on_delivery=lambda error, _: failures.append(error))
    assert producer.flush(DEADLINE_S) == 0
    assert failures == [None]


def read(containers: list[Container], count: int) -> list[bytes]:
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap(containers),
            "group.id": "compose",
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
        }
    )
    consumer.assign([TopicPartition("made-on-demand", 0, 0)])
    rows: list[bytes] = []
    deadline = time.monotonic() + DEADLINE_S
    while len(rows) < count and time.monotonic() < deadline:
        rows += [row.value() for row in consumer.consume(count, 1.0) if row.error() is None]
    consumer.close()
    return rows


@pytest.mark.zookeeper
def test_up_and_down_twice(tmp_path: Path) -> None:
    """Same cluster id, same brokers, nothing lost; the last time after a kill, when the znodes of
    the sessions before are still there."""
    with (
        start_zookeeper(tmp_path / "zookeeper") as zookeeper,
        brokers(tmp_path, zookeeper.connect) as containers,
    ):
        first = up(containers)
        write(containers, b"one")
        assert down(containers, signal.SIGTERM) == [0, 0, 0]
        zookeeper.restart()
        assert up(containers) == first
        write(containers, b"two")
        down(containers, signal.SIGKILL)
        assert up(containers) == first
        assert read(containers, 2) == [b"one", b"two"]


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> set[str]:
    """The names on /metrics, with those of a histogram's parts."""
    folder = str(tmp_path_factory.mktemp("store"))
    tiered = tiered_settings(
        {"storage.backend.class": "filesystem", "storage.root": folder, "chunk.size": "4096"}
    )
    with Broker(ottla_metrics_address="127.0.0.1:0", **tiered) as broker:
        url = f"http://127.0.0.1:{broker.server.metrics_port}/metrics"
        with urllib.request.urlopen(url, timeout=30) as response:
            text = response.read().decode()
    names = set()
    for name, kind in re.findall(r"^# TYPE (\S+) (\S+)$", text, re.MULTILINE):
        parts = ("_bucket", "_count", "_sum") if kind == "histogram" else ("",)
        names |= {f"{name}{part}" for part in parts}
    return names


def expressions() -> dict[str, str]:
    """Every PromQL expression of the alerts and of the dashboard, by where it stands."""
    alerts = (DEPLOY / "prometheus" / "alerts.yml").read_text()
    rules = re.findall(r"- alert: (\S+)\n\s+expr: (.*?)\n\s+(?:for|labels):", alerts, re.DOTALL)
    assert len(rules) == alerts.count("- alert:")
    dashboard = json.loads((DEPLOY / "grafana" / "dashboards" / "ottla.json").read_text())
    panels = {
        f"{panel['title']} {target['refId']}": target["expr"]
        for panel in dashboard["panels"]
        for target in panel.get("targets", ())
    }
    return {**dict(rules), **panels}


def test_alerts_and_dashboard_ask_for_what_is_served(served: set[str]) -> None:
    found = expressions()
    assert len(found) > 30
    for where, expression in found.items():
        names = set(re.findall(r"\b([a-z_]+)\{", expression))
        assert names, where
        assert names <= served | NOT_OURS, where
        assert expression.count("(") == expression.count(")"), where
