"""The commands of README.md and docs/ that have a mark run as they are written, in page order.

tests/tidy/test_documented_commands.py finds the blocks that neither run nor have a reason. The
pages of Spark clusters run in tests/spark/pages.py, the quick start in tests/quickstarts.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
import yaml
from confluent_kafka import Consumer, Producer

from ottla.testing import Broker, Cluster
from tests.doubles.eventually import eventually
from tests.doubles.page_commands import Commands, blocks_of, commands_of

ROOT = Path(__file__).resolve().parents[2]
SECONDS = 120
# What a page says of a reader's machine, and what stands for it here.
REPLACED = {"0.0.0.0:9092": "127.0.0.1:0", ":19092": ":0", "=/data": "=data", "=/tmp/try": "=try"}
# A broker prints it when it serves clients.
READY = "is ready"
# The pages with no command but starts of brokers; cli.md has the others.
PAGES_OF_STARTS = ["README.md", "docs/quickstart.md", "docs/console.md", "docs/operations.md"]
PAGES_OF_KAFKA_USERS = ["docs/migration.md"]
SERVER_PROPERTIES = """\
broker.id=1
log.dirs=kafka-logs
num.network.threads=3
offsets.topic.replication.factor=1
zookeeper.connection.timeout.ms=18000
group.initial.rebalance.delay.ms=0
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """The working directory, with an `ottla` on the path and the files that pages name."""
    programs = tmp_path / "bin"
    programs.mkdir()
    for name, arguments in {"ottla": " -m ottla.cli.main", "python3": ""}.items():
        program = programs / name
        program.write_text(f'#!/bin/sh\nexec "{sys.executable}"{arguments} "$@"\n')
        program.chmod(0o755)
    work = tmp_path / "work"
    work.mkdir()
    (work / "server.properties").write_text(SERVER_PROPERTIES)
    (work / "orders.txt").write_text("1:{}\n2:{}\n")
    return work


def environment(folder: Path, **more: str) -> dict[str, str]:
    ours = ("KAFKA_", "OTTLA_")
    return {
        **{name: text for name, text in os.environ.items() if not name.startswith(ours)},
        "PATH": f"{folder.parent / 'bin'}:{os.environ['PATH']}",
        "PYTHONPATH": str(ROOT),
        "PYTHONUNBUFFERED": "1",
        **more,
    }


def replaced(text: str) -> str:
    for written, here in REPLACED.items():
        text = text.replace(written, here)
    return text


class Background:
    """A command that serves until it is stopped, as by Ctrl-C."""

    def __init__(self, block: Commands, number: int, folder: Path, variables: dict[str, str]):
        self._text = block.text
        self._output = folder.parent / f"output-{number}.txt"
        with self._output.open("wb") as output:
            self._process = subprocess.Popen(
                ["bash", "-c", f"exec env {replaced(block.text)}"],
                cwd=folder,
                env=variables,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
            )

    def printed(self) -> str:
        assert self._process.poll() is None, f"{self._text} ended:\n{self._output.read_text()}"
        return self._output.read_text()

    def end(self) -> None:
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGINT)
        self._process.wait(SECONDS)


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as ends:
        yield ends


@pytest.mark.parametrize("page", [*PAGES_OF_STARTS, *PAGES_OF_KAFKA_USERS])
def test_starts_of_a_broker(page: str, folder: Path, stack: ExitStack) -> None:
    free = {"KAFKA_LISTENERS": "PLAINTEXT://127.0.0.1:0", "OTTLA_METRICS_ADDRESS": "127.0.0.1:0"}
    blocks = [block for block in commands_of(ROOT / page) if block.in_background]
    assert blocks
    for number, block in enumerate(blocks):
        broker = Background(block, number, folder, environment(folder, **free))
        stack.callback(broker.end)
        eventually(lambda broker=broker: READY in broker.printed(), seconds=SECONDS)


def write_titled_files(page: str, folder: Path) -> list[str]:
    """The files that the page has titles for; returns their names."""
    titled = [block for block in blocks_of(ROOT / page) if block.title]
    for block in titled:
        file = folder / str(block.title)
        file.parent.mkdir(exist_ok=True)
        file.write_text(block.text)
    return [str(block.title) for block in titled]


def run_page(page: str, folder: Path, stack: ExitStack, variables: dict[str, str]) -> None:
    """All marked blocks, in a folder with the files that the page has titles for."""
    write_titled_files(page, folder)
    background: list[Background] = []
    for number, block in enumerate(commands_of(ROOT / page)):
        if block.in_background:
            background.append(Background(block, number, folder, variables))
            stack.callback(background[-1].end)
            continue
        command = ["bash", "-e", "-o", "pipefail", "-c", replaced(block.text)]
        done = subprocess.run(
            command, cwd=folder, env=variables, capture_output=True, text=True, timeout=SECONDS
        )
        assert done.returncode == 0, f"{block.text}\n{done.stdout}{done.stderr}"
    for each in background:
        eventually(lambda each=each: each.printed() != "", seconds=SECONDS)


def test_the_page_of_the_command_line(folder: Path, stack: ExitStack) -> None:
    cluster = stack.enter_context(Cluster(brokers=3))
    complete_a_transaction(cluster.bootstrap)
    run_page("docs/cli.md", folder, stack, environment(folder, OTTLA_BOOTSTRAP=cluster.bootstrap))


def test_the_page_of_groups(folder: Path, stack: ExitStack) -> None:
    bootstrap = stack.enter_context(Broker()).bootstrap
    consume_as_a_group(bootstrap, "orders")
    run_page("docs/groups.md", folder, stack, environment(folder, OTTLA_BOOTSTRAP=bootstrap))


def test_a_topic_is_copied(folder: Path, stack: ExitStack) -> None:
    """From any broker: here from another one of Ottla."""
    source, target = (stack.enter_context(Broker()) for _ in range(2))
    consume_as_a_group(source.bootstrap, "payments")
    addresses = {"FROM": source.bootstrap, "TO": target.bootstrap}
    run_page("docs/from-redpanda.md", folder, stack, environment(folder, **addresses))
    assert sum(target.end_offset("payments", partition) for partition in range(3)) == 3


def test_a_project_that_used_a_container(folder: Path, stack: ExitStack) -> None:
    (folder / "pytest.ini").write_text("[pytest]\n")
    run_page("docs/from-testcontainers.md", folder, stack, environment(folder))


@pytest.mark.parametrize("page", ["README.md", "docs/testing.md"])
def test_examples_of_tests(page: str, folder: Path) -> None:
    """The tests of the page in one run of pytest, its other programs one by one."""
    (folder / "pytest.ini").write_text("[pytest]\n")
    names = [name for name in write_titled_files(page, folder) if name.endswith(".py")]
    assert names
    programs = [name for name in names if not name.rpartition("/")[2].startswith(("test_", "conf"))]
    # The plugin by its name: an installation may be older than the source.
    pytest_run = ["-m", "pytest", "-q", "-p", "ottla.broker.testing.pytest_plugin"]
    for arguments in (pytest_run, *([program] for program in programs)):
        done = subprocess.run(
            [sys.executable, *arguments],
            cwd=folder,
            env=environment(folder, PYTEST_DISABLE_PLUGIN_AUTOLOAD="1"),
            capture_output=True,
            text=True,
            timeout=SECONDS,
        )
        assert done.returncode == 0, f"{arguments}\n{done.stdout}{done.stderr}"


def test_each_example_of_a_test_has_a_file_that_runs() -> None:
    pages = [ROOT / "docs/testing.md", *sorted((ROOT / "docs/testing").glob("*.md"))]
    run = {"testing.md", "ci.md", *PAGES_OF_TEST_FRAMEWORKS}
    assert {page.name for page in pages} == run, "run the page in this module"
    for page in pages:
        blocks = [block for block in blocks_of(page) if block.language in ("python", "ini")]
        titles = [block.title for block in blocks]
        assert None not in titles, f"{page} has an example without a title, which does not run"
        assert len(set(titles)) == len(titles), f"{page} has two files of the same name"


PAGES_OF_TEST_FRAMEWORKS = ["pytest-asyncio.md", "unittest.md", "django.md", "fastapi.md"]


@pytest.mark.parametrize("page", PAGES_OF_TEST_FRAMEWORKS)
def test_pages_of_test_frameworks(page: str, folder: Path, stack: ExitStack) -> None:
    if page in ("django.md", "fastapi.md"):
        framework = page.removesuffix(".md")
        pytest.importorskip(framework, reason=f"{framework} is not installed")
    (folder / "pytest.ini").write_text("[pytest]\n")
    paths = [str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
    variables = environment(folder, PYTHONPATH=os.pathsep.join(paths))
    run_page(f"docs/testing/{page}", folder, stack, variables)


# Two classes, since Django starts no process for one; each says which broker it has.
SPAWNED = """\
from django.conf import settings
from django.test import SimpleTestCase


class One(SimpleTestCase):
    def test_it_has_the_broker_of_the_run(self):
        self.assertIn("127.0.0.1:", settings.KAFKA["bootstrap.servers"])


class Other(One):
    pass
"""
SPAWN = """\
import multiprocessing
from django.core.management import execute_from_command_line

if __name__ == "__main__":
    multiprocessing.set_start_method("spawn")
    execute_from_command_line(["manage.py", "test", "--parallel", "2", "test_spawned"])
"""


def test_django_processes_that_do_not_fork_have_the_broker(folder: Path) -> None:
    pytest.importorskip("django", reason="django is not installed")
    write_titled_files("docs/testing/django.md", folder)
    (folder / "test_spawned.py").write_text(SPAWNED)
    (folder / "manage.py").write_text(SPAWN)
    paths = [str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
    done = subprocess.run(
        [sys.executable, "manage.py"],
        cwd=folder,
        env=environment(
            folder, PYTHONPATH=os.pathsep.join(paths), DJANGO_SETTINGS_MODULE="settings"
        ),
        capture_output=True,
        text=True,
        timeout=SECONDS,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "Ran 2 tests" in done.stderr


def test_the_jobs_of_ci_are_yaml_that_runs_the_tests() -> None:
    github, gitlab = (
        yaml.safe_load(block.text) for block in blocks_of(ROOT / "docs/testing/ci.md")
    )
    steps = [step.get("run", "") for step in github["jobs"]["test"]["steps"]]
    for commands in (steps, gitlab["test"]["script"]):
        assert any("python -m pytest -n auto" in each for each in commands)
        assert any("pip install ottla pytest-xdist" in each for each in commands)


def consume_as_a_group(bootstrap: str, topic: str) -> None:
    """Three records that a member of the group `billing` reads and commits."""
    producer = Producer({"bootstrap.servers": bootstrap})
    for key in ("a", "b", "c"):
        producer.produce(topic, b"{}", key)
    assert producer.flush(60) == 0
    consumer = Consumer(
        {"bootstrap.servers": bootstrap, "group.id": "billing", "auto.offset.reset": "earliest"}
    )
    consumer.subscribe([topic])
    assert len(consumer.consume(3, 60)) == 3
    consumer.commit(asynchronous=False)
    consumer.close()


def complete_a_transaction(bootstrap: str) -> None:
    """The transactional id and the topics that the page names."""
    producer = Producer({"bootstrap.servers": bootstrap, "transactional.id": "payments-1"})
    producer.init_transactions(60)
    producer.begin_transaction()
    for topic in ("orders", "copies"):
        producer.produce(topic, b"{}")
    producer.commit_transaction(60)
