"""kaskade, a user interface in the terminal: topics, groups and records."""

from __future__ import annotations

import json
from pathlib import Path

from confluent_kafka.admin import AdminClient

from tests.compat.ecosystem.clients import create_topics, produce, topic_settings
from tests.compat.ecosystem.clusters import Cluster
from tests.compat.ecosystem.environments import environment, run_script
from tests.compat.ecosystem.model import Program, Script
from tests.compat.ecosystem.programs.burrow import commit_offset
from tests.doubles.eventually import eventually

VERSION = "5.1.0"
_TERMINAL = Path(__file__).with_name("kaskade_terminal.py")
_STEP_SECONDS = 400.0
_ENTER, _ESCAPE, _CONTROL_S, _CONTROL_D = "\r", "\x1b", "\x13", "\x04"

Step = tuple[str, str | list[str]]


class _Kaskade:
    """Plays kaskade against a cluster; each play starts it again."""

    def __init__(self, python: Path, cluster: Cluster, home: Path) -> None:
        self._python = python
        self._cluster = cluster
        self._home = home

    def play(self, mode: str, *steps: Step, options: tuple[str, ...] = ()) -> None:
        """AssertionError when the screen does not show what a step waits for."""
        program = str(self._python.with_name("kaskade"))
        command = [program, mode, "-b", self._cluster.bootstrap, *options]
        arguments = (json.dumps(command), json.dumps(steps))
        run_script(
            self._python,
            _TERMINAL,
            *arguments,
            seconds=_STEP_SECONDS,
            variables={"HOME": str(self._home)},
        )


def _run(script: Script) -> None:
    python = environment("ecosystem-kaskade", f"kaskade=={VERSION}", "pyte==0.8.2")
    with script.start_cluster() as cluster:
        create_topics(cluster.bootstrap, ["orders"])
        produce(cluster.bootstrap, "orders", [f"order-{number}" for number in range(100)])
        commit_offset(cluster, 60)
        _steps(script, cluster, _Kaskade(python, cluster, script.directory))


def _steps(script: Script, cluster: Cluster, kaskade: _Kaskade) -> None:
    shown: Step = ("see", ["orders", "100"])
    with script.check("topics with partitions, records and lag"):
        kaskade.play("admin", shown, ("see", ["orders", "40"]))
    with script.check("a topic with its settings and the offsets of a group"):
        kaskade.play(
            "admin",
            shown,
            *_filter("orders"),
            ("press", _ENTER),
            ("see", ["Group Offsets [1]"]),
            ("press", "l"),
            ("see", ["cleanup.policy", "delete"]),
            ("press", "ll"),
            ("see", ["readers", "60", "100", "40"]),
        )
    with script.check("a topic is created, and deleted"):
        created: tuple[Step, ...] = (
            shown,
            ("press", "n"),
            ("see", ["Letters, numbers"]),
            ("press", "made-by-hand"),
            ("see", ["made-by-hand"]),
            ("press", _CONTROL_S),
            ("see", ["Topics [3]"]),
        )
        kaskade.play("admin", *created)
        eventually(lambda: _exists(cluster, "made-by-hand"), "the topic was not created")
        assert topic_settings(cluster.bootstrap, "made-by-hand")["cleanup.policy"] == "delete"
        kaskade.play(
            "admin",
            ("see", ["made-by-hand", "0"]),
            *_filter("made-by-hand"),
            ("press", _CONTROL_D),
            ("see", ["Type the topic name"]),
            ("press", "made-by-hand" + _ENTER),
            ("see", ["Topics", "[0]"]),
        )
        eventually(lambda: not _exists(cluster, "made-by-hand"), "the topic was not deleted")
    with script.check("records with their keys, from the beginning"):
        kaskade.play(
            "consumer",
            ("see", ["key-order-0", "order-0"]),
            ("see", ["key-order-9", "order-9"]),
            options=("-t", "orders", "--earliest", "-k", "string", "-v", "string"),
        )


def _filter(topic: str) -> tuple[Step, ...]:
    """Shows one topic, which is selected then."""
    return (
        ("press", "/"),
        ("see", ["Topic name contains"]),
        ("press", topic + _ENTER),
        ("see", ["Topics", "[1]"]),
    )


def _exists(cluster: Cluster, topic: str) -> bool:
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap})
    return topic in admin.list_topics(timeout=30).topics


PROGRAM = Program(
    "kaskade",
    "kaskade",
    VERSION,
    (),
    _run,
    (
        "A user interface in the terminal, on librdkafka; the script presses its keys and reads "
        "its screen. It stands for the user interfaces that cannot be installed here.",
    ),
)
