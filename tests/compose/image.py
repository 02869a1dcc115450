"""The image alone, with a real engine: `make test-image`.

The image is the one that `make test-compose`, which runs these stories too, or `docker build
-t ottla .` has built. Each story runs one container, publishes its ports to this machine only, and
removes it at the end. Exit code 0 if all pass, 1 when not, 2 when there is no engine or no image
("not run"). Where no engine responds, one is started if that can be done, and the image is built
where it is missing. CONTAINER_ENGINE=podman uses Podman, with an image that has been built.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import re
import select
import shlex
import shutil
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

from confluent_kafka import Consumer, Producer
from confluent_kafka.admin import AdminClient, NewTopic

from tests.compose import base_images
from tests.compose import engine as engine_module
from tests.compose.wrong import Wrong

ENGINE = os.environ.get("CONTAINER_ENGINE", "docker")
ROOT = Path(__file__).resolve().parents[2]
IMAGE = "ottla:latest"
NAME = "ottla-image-check"
BOOTSTRAP = "localhost:9092"
TOPIC = "made-on-demand"
HTTP_PORT = 9404
DEADLINE_S = 120.0
# Removes the thousands of files of a volume, on a busy disk.
ENGINE_DEADLINE_S = 600.0
STOP_GRACE_S = 30.0
EXIT_WRONG, EXIT_NOT_RUN = 1, 2

# As deploy/helm and docker-compose.secure.yml run it: nothing but the volume can be written.
HARDENED = (
    *("--read-only", "--tmpfs", "/tmp", "--cap-drop", "ALL"),
    *("--security-opt", "no-new-privileges"),
)
# A data directory of 64 MiB of the image's user. Podman 4 has no `uid=` for a tmpfs.
SMALL_DISK = (
    ("--mount", "type=tmpfs,dst=/var/lib/ottla,tmpfs-size=64m,tmpfs-mode=0700,U=true")
    if ENGINE.endswith("podman")
    else ("--tmpfs", "/var/lib/ottla:size=64m,uid=10001,gid=10001,mode=0700")
)
METRICS = ("-p", f"127.0.0.1:{HTTP_PORT}:{HTTP_PORT}", "-e", f"OTTLA_METRICS_ADDRESS=:{HTTP_PORT}")
CLIENTS = ("-p", "127.0.0.1:9092:9092")
JAAS = (
    'org.apache.kafka.common.security.plain.PlainLoginModule required username="admin" '
    'password="admin-secret" user_admin="admin-secret";'
)
# Of the Debian package libfaketime, in the image's release of Debian.
FAKETIME = Path(f"/usr/lib/{platform.machine()}-linux-gnu/faketime/libfaketime.so.1")
SLOW_LOGS = 3000
SLOW_PROCESSORS = "0.2"


def engine(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        (ENGINE, *arguments), capture_output=True, text=True, timeout=ENGINE_DEADLINE_S, check=False
    )


def done(*arguments: str) -> str:
    """The output of a command of the engine that must succeed."""
    result = engine(*arguments)
    if result.returncode:
        command = shlex.join((ENGINE, *arguments))
        raise Wrong(f"{command} ended with {result.returncode}:\n{result.stderr[-3000:]}")
    return result.stdout.strip()


def require(holds: bool, words: str) -> None:
    if not holds:
        raise Wrong(words)
    print(f"  {words}", flush=True)


def until(what: Callable[[], str], expected: str) -> str:
    """The first text with the expected words in it."""
    deadline = time.monotonic() + DEADLINE_S
    while expected not in (found := what()):
        if time.monotonic() > deadline:
            raise Wrong(f"{expected!r} does not come; there is {found!r}")
        time.sleep(0.1)
    return found


@contextmanager
def container(*options: str, command: Sequence[str] = ()) -> Iterator[None]:
    engine("rm", "--force", "--volumes", NAME)
    done("run", "--detach", "--name", NAME, *options, IMAGE, *command)
    try:
        yield
    except Wrong:
        print(engine("logs", "--tail", "30", NAME).stderr, flush=True)
        raise
    finally:
        engine("rm", "--force", "--volumes", NAME)


def healthcheck() -> str:
    """Exit code and line of `ottla healthcheck` in the container."""
    result = engine("exec", NAME, "ottla", "healthcheck")
    return f"{result.returncode} {(result.stdout or result.stderr).strip()}"


def state() -> dict[str, object]:
    found = json.loads(done("inspect", "--format", "{{json .State}}", NAME))
    assert isinstance(found, dict)
    return found


def engine_health() -> str:
    """healthy or unhealthy, as the engine has it from the image's HEALTHCHECK."""
    health = state().get("Health") or state().get("Healthcheck")
    return str(health["Status"]) if isinstance(health, dict) else ""


def readyz() -> str:
    """Status and text, from this machine through the published port."""
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{HTTP_PORT}/readyz", timeout=10) as response:
            return f"{response.status} {response.read().decode().strip()}"
    except urllib.error.HTTPError as error:
        return f"{error.code} {error.read().decode().strip()}"
    except OSError as error:
        return f"no response: {error}"


def write() -> None:
    failures: list[object] = []
    producer = Producer({"bootstrap.servers": BOOTSTRAP, "acks": "all", "log_level": 0})
    producer.produce(TOPIC, b"v", on_delivery=lambda error, _: failures.append(error))
    left = producer.flush(DEADLINE_S)
    require(not left and failures == [None], "a record is written from this machine")


def stop() -> None:
    done("stop", "--time", str(int(STOP_GRACE_S)), NAME)
    require(state()["ExitCode"] == 0, "SIGTERM ends it with 0")


def plain() -> None:
    """Nothing but a published port: the wildcard listener sends clients of this machine to
    localhost."""
    settings = ("-e", "KAFKA_AUTO_CREATE_TOPICS_ENABLE=true")
    with container(*HARDENED, *CLIENTS, *settings):
        print(f"  `ottla healthcheck`: {healthcheck_passes()}", flush=True)
        require(done("exec", NAME, "id", "-u") == "10001", "it runs as user 10001")
        engine_says("healthy")
        seen = AdminClient({"bootstrap.servers": BOOTSTRAP}).list_topics(timeout=DEADLINE_S)
        hosts = {broker.host for broker in seen.brokers.values()}
        require(hosts == {"localhost"}, "clients of this machine are sent to localhost")
        write()
        refused = engine("exec", NAME, "sh", "-c", "echo x > /opt/ottla/x")
        require(refused.returncode != 0, "the root file system is read-only")
        stop()


def engine_says(expected: str) -> None:
    """The engine runs the check every 5 seconds; Podman without systemd does not."""
    if ENGINE.endswith("podman"):
        result = engine("healthcheck", "run", NAME)
        require((result.returncode == 0) == (expected == "healthy"), f"the engine says {expected}")
    else:
        until(engine_health, expected)
        print(f"  the engine says {expected}", flush=True)


def healthcheck_passes() -> str:
    return until(healthcheck, "0 healthy:")


def sasl_only() -> None:
    settings = {
        "KAFKA_LISTENERS": "CLIENTS://0.0.0.0:9092",
        "KAFKA_LISTENER_SECURITY_PROTOCOL_MAP": "CLIENTS:SASL_PLAINTEXT",
        "KAFKA_INTER_BROKER_LISTENER_NAME": "CLIENTS",
        "KAFKA_SASL_ENABLED_MECHANISMS": "PLAIN",
        "KAFKA_SASL_MECHANISM_INTER_BROKER_PROTOCOL": "PLAIN",
        "KAFKA_LISTENER_NAME_CLIENTS_PLAIN_SASL_JAAS_CONFIG": JAAS,
    }
    options = [text for name, value in settings.items() for text in ("-e", f"{name}={value}")]
    with container(*HARDENED, *CLIENTS, *options):
        said = healthcheck_passes()
        require("ApiVersions" in said, f"without credentials, `ottla healthcheck`: {said}")
        engine_says("healthy")
        login = {"security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": "PLAIN", "log_level": 0}
        user = {"sasl.username": "admin", "sasl.password": "admin-secret"}
        admin = AdminClient({"bootstrap.servers": BOOTSTRAP, **login, **user})
        require(len(admin.list_topics(timeout=DEADLINE_S).brokers) == 1, "a user logs in")
        stop()
    with container(*CLIENTS, *METRICS, *options):
        said = healthcheck_passes()
        require("/readyz" in said, f"with an HTTP port, `ottla healthcheck`: {said}")


def full_disk() -> None:
    settings = (
        *("-e", "OTTLA_LOG_DIR_MIN_FREE_BYTES=8388608"),
        *("-e", "KAFKA_AUTO_CREATE_TOPICS_ENABLE=true"),
    )
    with container(*HARDENED, *CLIENTS, *METRICS, *SMALL_DISK, *settings):
        healthcheck_passes()
        write()
        fill = "dd if=/dev/zero of=/var/lib/ottla/filler bs=1M 2>/dev/null; true"
        done("exec", NAME, "sh", "-c", fill)
        said = until(readyz, "accepts no records")
        require(said.startswith("503 "), f"/readyz: {said}")
        said = healthcheck()
        require(said.startswith("1 "), f"`ottla healthcheck`: {said}")
        require("accepts no records" in said, "with the reason")
        engine_says("unhealthy")
        require(state()["Running"] is True, "it runs on")
        done("exec", NAME, "rm", "/var/lib/ottla/filler")
        until(readyz, "200 ok")
        print("  room is made: ready, without a restart", flush=True)
        write()
        stop()


def clock_jumps() -> None:
    """The wall clock of the container jumps a day ahead, then two days back; libfaketime replaces
    it, and the monotonic clock goes on. A member stays in its group, records stay and are read in
    order, with the time at which they were appended."""
    if not FAKETIME.exists():
        print(f"  not run: there is no {FAKETIME} (Debian package libfaketime)", flush=True)
        return
    with tempfile.TemporaryDirectory() as folder:
        clock = Path(folder) / "clock"
        clock.write_text("+0")
        clock.parent.chmod(0o755)
        options = (
            *("-v", f"{FAKETIME}:/faketime.so:ro", "-v", f"{folder}:/clock:ro"),
            *("-e", "LD_PRELOAD=/faketime.so", "-e", "FAKETIME_TIMESTAMP_FILE=/clock/clock"),
            *("-e", "FAKETIME_NO_CACHE=1", "-e", "FAKETIME_DONT_FAKE_MONOTONIC=1"),
            *("-e", "KAFKA_LOG_MESSAGE_TIMESTAMP_TYPE=LogAppendTime"),
            *("-e", "KAFKA_AUTO_CREATE_TOPICS_ENABLE=true"),
        )
        with container(*HARDENED, *CLIENTS, *options):
            healthcheck_passes()
            joined: list[object] = []
            group = {"group.id": "clock", "auto.offset.reset": "earliest", "log_level": 0}
            consumer = Consumer({"bootstrap.servers": BOOTSTRAP, **group})
            consumer.subscribe([TOPIC], on_assign=lambda _, partitions: joined.append(partitions))
            days = []
            for offset in ("+0", "+1d", "-1d"):
                clock.write_text(offset)
                write()
                days.append(round((_timestamp(consumer) / 1000 - time.time()) / 86400))
                engine_says("healthy")
            require(days == [0, 1, -1], f"records have the days {days} from now")
            consumer.commit(asynchronous=False)
            consumer.close()
            require(len(joined) == 1, "the member stayed in its group")
            said = done("exec", NAME, "ottla", "consume", TOPIC, "--from-beginning")
            require(said.split() == ["v", "v", "v"], "all records are there")
            clock.write_text("+0")
            stop()


def _timestamp(consumer: Consumer) -> int:
    """Of the next record, in ms."""
    deadline = time.monotonic() + DEADLINE_S
    while time.monotonic() < deadline:
        record = consumer.poll(1.0)
        if record is not None and record.error() is None:
            return int(record.timestamp()[1])
    raise Wrong("a record does not come")


def slow_recovery() -> None:
    with container(*HARDENED, *CLIENTS, *METRICS):
        healthcheck_passes()
        admin = AdminClient({"bootstrap.servers": BOOTSTRAP})
        made = admin.create_topics([NewTopic("many", SLOW_LOGS, 1)], request_timeout=DEADLINE_S)
        made["many"].result(DEADLINE_S)
        until(partitions_of(admin, "many"), str(SLOW_LOGS))
        done("kill", NAME)
        done("start", NAME)
        done("update", "--cpus", SLOW_PROCESSORS, NAME)  # Podman 4 updates running ones only
        said = until(readyz, f" of {SLOW_LOGS} logs are loaded")
        require(said.startswith("503 "), f"/readyz: {said}")
        said = until(healthcheck, f" of {SLOW_LOGS} logs are loaded")
        require(said.startswith("1 "), f"`ottla healthcheck`: {said}")
        require(state()["Running"] is True, "the process lives")
        done("update", "--cpus", "0", NAME)
        until(readyz, "200 ok")
        print("  ready after the recovery", flush=True)
        stop()


def partitions_of(admin: AdminClient, topic: str) -> Callable[[], str]:
    return lambda: str(len(admin.list_topics(topic, timeout=30).topics[topic].partitions))


def network_connected_later() -> None:
    """The container joins a second network after its start: clients there get its address in it."""
    network = f"{NAME}-network"
    engine("network", "rm", network)
    with container(*CLIENTS):
        healthcheck_passes()
        done("network", "create", network)
        try:
            done("network", "connect", "--alias", "late", network, NAME)
            command = ("cluster", "info", "--json", "-b", "late:9092")
            said = json.loads(done("run", "--rm", "--network", network, IMAGE, *command))
            hosts = {str(row["address"]).rpartition(":")[0] for row in said["brokers"]}
            settings = done("inspect", "--format", "{{json .NetworkSettings.Networks}}", NAME)
            expected = {json.loads(settings)[network]["IPAddress"]}
            require(hosts == expected, f"clients of the new network are sent to {hosts}")
            seen = AdminClient({"bootstrap.servers": BOOTSTRAP}).list_topics(timeout=DEADLINE_S)
            names = {broker.host for broker in seen.brokers.values()}
            require(names == {"localhost"}, "clients of this machine still to localhost")
        finally:
            engine("network", "disconnect", "--force", network, NAME)
            engine("network", "rm", network)


def limit_behind_a_gateway() -> None:
    """All clients of the host come from the bridge's gateway: they share one address's limit."""
    limit = ("-e", "KAFKA_MAX_CONNECTIONS_PER_IP=3")
    with container(*CLIENTS, *limit):
        healthcheck_passes()
        require(opened(5) == 3, "of 5 connections of this machine 3 stay open")
        logs = engine("logs", NAME)
        found = re.search(
            r"(\d+\.\d+\.\d+\.1)\b.*max\.connections\.per\.ip", logs.stdout + logs.stderr
        )
        require(found is not None, "the log names the gateway and the setting")
    assert found is not None
    overrides = ("-e", f"KAFKA_MAX_CONNECTIONS_PER_IP_OVERRIDES={found[1]}:100")
    with container(*CLIENTS, *limit, *overrides):
        healthcheck_passes()
        require(opened(5) == 5, f"with an override for {found[1]} all stay open")


def opened(count: int) -> int:
    """How many of so many connections at once the broker keeps."""
    with ExitStack() as stack:
        address = ("127.0.0.1", 9092)
        sockets = [stack.enter_context(socket.create_connection(address)) for _ in range(count)]
        time.sleep(1.0)  # a port's proxy accepts first, and closes when the broker has closed
        ended, _, _ = select.select(sockets, [], [], 0)
        return count - len(ended)


def why_not() -> str:
    if ENGINE == "docker":
        reason = engine_module.provide()
        if reason or not engine("image", "inspect", IMAGE).returncode:
            return reason
        reason = base_images.provide_images(["python"])
        if not reason:
            subprocess.run(["docker", "build", "-q", "-t", IMAGE, "."], cwd=ROOT, check=True)
        return reason
    if shutil.which(ENGINE) is None:
        return f"there is no {ENGINE} command"
    if engine("image", "inspect", IMAGE).returncode:
        return f"{ENGINE} has no image {IMAGE}, or does not respond"
    return ""


STORIES: dict[str, Callable[[], None]] = {
    "plain": plain,
    "sasl-only": sasl_only,
    "full-disk": full_disk,
    "slow-recovery": slow_recovery,
    "clock-jumps": clock_jumps,
    "network-connected-later": network_connected_later,
    "limit-behind-a-gateway": limit_behind_a_gateway,
}


def run(names: Iterable[str] = tuple(STORIES)) -> None:
    """Raises Wrong."""
    for name in names:
        print(f"the image: {name}", flush=True)
        STORIES[name]()


def main() -> int:
    parser = argparse.ArgumentParser(description="the image with a real engine")
    parser.add_argument("stories", nargs="*", metavar="story", help=f"of {', '.join(STORIES)}")
    chosen = parser.parse_args().stories or list(STORIES)
    reason = why_not()
    if reason:
        print(f"not run: {reason}")
        return EXIT_NOT_RUN
    try:
        run(chosen)
    except (Wrong, subprocess.TimeoutExpired) as error:
        print(f"WRONG: {error}")
        return EXIT_WRONG
    print("all well")
    return 0


if __name__ == "__main__":
    sys.exit(main())
