"""docker-compose.yml with a real engine: `make test-compose`.

Builds the image with the project's Dockerfile and brings the file up and down, with its data and
without. Traffic is sent from this machine through the published ports, and from a container. Exit
code 0 if all pass, 1 when not, 2 when this machine has no engine or cannot get the base images
("not run"). Where no engine responds, one is started if that can be done (tests/compose/engine.py).

`--build-arguments` go to `docker build` (`--network host`, where only the host reaches an index).
The containers and volumes are of a project of their own, and are removed at the end; ports are
those of the file.
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Sequence
from pathlib import Path

from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient

from tests.compose import base_images, engine, image
from tests.compose.wrong import Wrong

ROOT = Path(__file__).resolve().parents[2]
PROJECT = "ottla-check"
SECURE_PROJECT = "ottla-secure-check"
SECURE_FILE = "docker-compose.secure.yml"
IMAGE = "ottla:latest"
BOOTSTRAP = "localhost:9092,localhost:9093,localhost:9094"
CONSOLES = (9404, 9405, 9406)
BROKERS = ("broker1", "broker2", "broker3")
TOPIC = "made-on-demand"
DEADLINE_S = 180.0
BUILD_DEADLINE_S = 1800.0
STOP_GRACE_S = 30.0  # stop_grace_period of the file
USER_ID = "10001"
MEGABYTE = 1_000_000
# Of the image with its extras, on the public base image (a stand-in is larger).
MAX_MEGABYTES = 180
PUBLIC_BASE_MEGABYTES = 124
EXIT_WRONG, EXIT_NOT_RUN = 1, 2


def run(command: Sequence[str], timeout_s: float = DEADLINE_S) -> str:
    """The output of a command that must succeed."""
    done = subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, timeout=timeout_s, check=False
    )
    if done.returncode:
        raise Wrong(f"{shlex.join(command)} ended with {done.returncode}:\n{done.stderr[-3000:]}")
    return done.stdout.strip()


def docker(*arguments: str, timeout_s: float = DEADLINE_S) -> str:
    return run(("docker", *arguments), timeout_s)


def compose(*arguments: str, timeout_s: float = DEADLINE_S) -> str:
    return docker("compose", "-p", PROJECT, *arguments, timeout_s=timeout_s)


def require(holds: bool, words: str) -> None:
    if not holds:
        raise Wrong(words)
    print(f"  {words}", flush=True)


def why_not() -> str:
    """Why nothing can be checked here; empty when it can."""
    return engine.provide() or base_images.provide_images(["python", "zookeeper"])


def size_of(image: str) -> int:
    return int(docker("image", "inspect", "--format", "{{.Size}}", image))


def build(arguments: Sequence[str]) -> None:
    docker("build", *arguments, "-t", IMAGE, ".", timeout_s=BUILD_DEADLINE_S)
    whole, base = size_of(IMAGE), size_of(base_images.names()["python"])
    above = (whole - base) / MEGABYTE
    require(
        above < MAX_MEGABYTES - PUBLIC_BASE_MEGABYTES,
        f"the image has {above:.0f} MB above its base of {base / MEGABYTE:.0f} MB",
    )
    user = docker("image", "inspect", "--format", "{{.Config.User}}", IMAGE)
    require(user not in ("", "root", "0"), f"the image runs as {user or 'root'}")


def up() -> str:
    """Brings everything up; the cluster's id, once all brokers are in it."""
    started = time.monotonic()
    compose("up", "--no-build", "--detach", "--wait")
    seconds = time.monotonic() - started
    for port in CONSOLES:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/readyz", timeout=10) as response:
            require(response.status == 200, f"/readyz on :{port} returns 200")
    found = cluster()
    require(len(found[1]) == len(BROKERS), f"up and healthy in {seconds:.1f} s, cluster {found[0]}")
    return found[0]


def cluster() -> tuple[str, set[int]]:
    """The cluster's id and its brokers, as many as there should be."""
    admin = AdminClient({"bootstrap.servers": BOOTSTRAP, "log_level": 0})
    deadline = time.monotonic() + DEADLINE_S
    while True:
        seen = admin.list_topics(timeout=DEADLINE_S)
        if len(seen.brokers) == len(BROKERS) or time.monotonic() > deadline:
            return str(seen.cluster_id), set(seen.brokers)
        time.sleep(0.2)


def topics() -> set[str]:
    seen = AdminClient({"bootstrap.servers": BOOTSTRAP}).list_topics(timeout=DEADLINE_S)
    return set(seen.topics)


def write(value: str) -> None:
    producer = Producer({"bootstrap.servers": BOOTSTRAP, "acks": "all", "log_level": 0})
    failures: list[object] = []
    producer.produce(TOPIC, value, on_delivery=lambda error, _: failures.append(error))
    left = producer.flush(DEADLINE_S)
    require(not left and failures == [None], f"{value!r} is written from this machine, acks=all")


def read(expected: list[str]) -> None:
    settings = {"bootstrap.servers": BOOTSTRAP, "group.id": "compose", "log_level": 0}
    consumer = Consumer({**settings, "enable.auto.commit": False})
    consumer.assign([TopicPartition(TOPIC, 0, 0)])
    rows: list[str] = []
    deadline = time.monotonic() + DEADLINE_S
    while len(rows) < len(expected) and time.monotonic() < deadline:
        some = consumer.consume(len(expected), 1.0)
        rows += [(row.value() or b"").decode() for row in some if row.error() is None]
    consumer.close()
    require(rows == expected, f"{rows} are read from this machine")


def container(service: str) -> str:
    return compose("ps", "--all", "--quiet", service)


def state(service: str) -> dict[str, object]:
    found = json.loads(docker("inspect", "--format", "{{json .State}}", container(service)))
    assert isinstance(found, dict)
    return found


def down(*arguments: str) -> None:
    """Stops as `docker compose down` does, checks the exit codes of brokers, and removes all."""
    started = time.monotonic()
    compose("stop", *BROKERS)
    seconds = time.monotonic() - started
    codes = {service: state(service)["ExitCode"] for service in BROKERS}
    require(set(codes.values()) == {0}, f"SIGTERM ends brokers with 0 in {seconds:.1f} s")
    require(seconds < STOP_GRACE_S, f"that is within {STOP_GRACE_S:.0f} s")
    compose("down", *arguments)


def write_from_a_container(value: str) -> None:
    """With the address that the compose file gives to other containers."""
    command = f"echo {value} | ottla produce {TOPIC} -b broker1:29092 --acks all"
    shell = ("--entrypoint", "sh", IMAGE, "-c", command)
    docker("run", "--rm", "--network", f"{PROJECT}_default", *shell)
    print(f"  {value!r} is written from a container", flush=True)


def consoles() -> None:
    """Each broker names its console by the port that the host publishes."""
    for broker, port in zip(BROKERS, CONSOLES, strict=True):
        banner = f"http://localhost:{port}/console"
        require(banner in compose("logs", broker), f"{broker} names its console {banner}")


def one_build() -> None:
    """The file builds one image, and `up` needs no other step: nothing is pulled under its name."""
    config = json.loads(compose("config", "--format", "json"))
    built = [name for name, each in config["services"].items() if "build" in each]
    require(built == ["broker1"], f"the image is built once, by {', '.join(built)}")
    compose("build", timeout_s=BUILD_DEADLINE_S)
    before = docker("images", "--quiet", "--filter", "dangling=true")
    compose("build", timeout_s=BUILD_DEADLINE_S)
    after = docker("images", "--quiet", "--filter", "dangling=true")
    require(before == after, "another build leaves no dangling image")


def short_story() -> None:
    """Up, healthy, produce from the host and from a container, a kill, all SIGTERM at once, the
    data kept."""
    first = up()
    write("one")
    write_from_a_container("two")
    kill_one("three")
    down()
    require(up() == first, "the cluster is the same")
    read(["one", "two", "three"])
    down("--volumes")


def kill_one(value: str = "two") -> None:
    """The process of a broker is killed, not its container: the restart policy brings it back."""
    before = state("broker2")
    os.kill(int(str(before["Pid"])), signal.SIGKILL)
    write(value)  # two of three are enough in sync
    deadline = time.monotonic() + DEADLINE_S
    while time.monotonic() < deadline:
        now = state("broker2")
        health = now.get("Health")
        healthy = isinstance(health, dict) and health["Status"] == "healthy"
        if now["Pid"] != before["Pid"] and healthy:
            break
        time.sleep(0.5)
    require(len(cluster()[1]) == len(BROKERS), "a killed broker is back and healthy by itself")


def story() -> None:
    print("up, traffic, a kill, down", flush=True)
    first = up()
    user = compose("exec", "-T", "broker1", "id", "-u")
    require(user == USER_ID, f"a broker is user {user}")
    listed = compose("exec", "-T", "broker1", "ottla", "topics", "list", "--json")
    require(isinstance(json.loads(listed), list), "`ottla` in a container responds")
    word = compose("exec", "-T", "broker3", "ottla", "healthcheck")
    require(word.startswith("healthy"), word)
    consoles()
    write("one")
    kill_one()
    read(["one", "two"])
    down()
    print("up again with the data, down without", flush=True)
    require(up() == first, "the cluster is the same")
    write("three")
    print("all brokers killed, and up at once: ZooKeeper still has their nodes", flush=True)
    compose("kill", *BROKERS)
    require(up() == first, "the cluster is the same")
    read(["one", "two", "three"])
    down("--volumes")
    print("up from nothing", flush=True)
    require(up() != first, "the cluster is another one")
    require(TOPIC not in topics(), "nothing of the old one is left")
    down("--volumes")


def secure(*arguments: str) -> str:
    return docker("compose", "-p", SECURE_PROJECT, "-f", SECURE_FILE, *arguments)


def secure_story() -> None:
    """The hardened file: its administrator gets in, others do not."""
    print(f"{SECURE_FILE}: up, a login, no login, down", flush=True)
    run(("deploy/secure/create-secrets.sh",))
    secrets = ROOT / "deploy" / "secure" / "secrets"
    secure("up", "--no-build", "--detach", "--wait")
    good = {
        "bootstrap.servers": "localhost:9093",
        "security.protocol": "SASL_SSL",
        "sasl.mechanism": "SCRAM-SHA-512",
        "sasl.username": "admin",
        "sasl.password": (secrets / "admin-password").read_text(),
        "ssl.ca.location": str(secrets / "ca.pem"),
        "log_level": 0,
    }
    seen = AdminClient(good).list_topics(timeout=DEADLINE_S)
    require(len(seen.brokers) == 1, "the administrator logs in")
    try:
        AdminClient({**good, "sasl.password": "guess"}).list_topics(timeout=10)
    except KafkaException:
        print("  a wrong password does not log in", flush=True)
    else:
        raise Wrong("a wrong password logs in")
    logs = secure("logs", "broker")
    require("failed to authenticate" in logs, "the security log has the wrong password")
    require(good["sasl.password"] not in logs, "no password is in the log")
    secure("down", "--volumes")


def main() -> int:
    parser = argparse.ArgumentParser(
        description="docker-compose.yml and docker-compose.secure.yml with a real engine"
    )
    parser.add_argument("--build-arguments", default="", help="for `docker build`")
    parser.add_argument("--no-build", action="store_true", help="take the image that is there")
    options = parser.parse_args()
    reason = why_not()
    if reason:
        print(f"not run: {reason}")
        return EXIT_NOT_RUN
    try:
        if not options.no_build:
            build(shlex.split(options.build_arguments))
        one_build()
        image.run()
        compose("down", "--volumes")
        print("the short story", flush=True)
        short_story()
        story()
        secure_story()
    except (Wrong, subprocess.TimeoutExpired) as error:
        print(f"WRONG: {error}\n{last_words()}")
        return EXIT_WRONG
    finally:
        remove_all()
    print("all well")
    return 0


def remove_all() -> None:
    """The containers and volumes of both files, whatever state they are in."""
    for project in (("-p", PROJECT), ("-p", SECURE_PROJECT, "-f", SECURE_FILE)):
        subprocess.run(
            ("docker", "compose", *project, "down", "--volumes"),
            cwd=ROOT, capture_output=True, timeout=DEADLINE_S, check=False,
        )  # fmt: skip


def last_words() -> str:
    done = subprocess.run(
        ("docker", "compose", "-p", PROJECT, "logs", "--tail", "40"),
        cwd=ROOT, capture_output=True, text=True, timeout=DEADLINE_S, check=False,
    )  # fmt: skip
    return done.stdout


if __name__ == "__main__":
    sys.exit(main())
