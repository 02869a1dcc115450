"""`ottla status`, `ottla doctor` and the console report the same problems of a cluster."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer

from ottla.broker.observability.console import cluster_views, history
from ottla.storage.files.set_aside import of_files
from ottla.testing import Cluster
from tests.doubles.command_line import CommandLine
from tests.doubles.console_client import ConsoleClient
from tests.doubles.eventually import eventually

SECONDS = 60.0
RATE = "leader.replication.throttled.rate"


def of_console(overview: dict[str, Any]) -> set[str]:
    found = {each["finding"] for each in overview["checks"]}
    return found | {
        fault["problem"] for broker in overview["brokers"] for fault in broker["faults"]
    }


def of_doctor(checks: list[dict[str, str]]) -> set[str]:
    return {each["finding"] for each in checks if each["result"] == "PROBLEM"}


def notes_of_doctor(checks: list[dict[str, str]]) -> set[str]:
    return {each["finding"] for each in checks if each["finding"].startswith("partitions are")}


def of_status(problems: list[str]) -> set[str]:
    """Without the broker in front of its faults."""
    return {each.partition(": ")[2] if each[:8] == "broker 2" else each for each in problems}


def test_they_agree(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(history, "INTERVAL_MS", 200)
    monkeypatch.setattr(history, "TICK_SECONDS", 0.1)
    monkeypatch.setattr(cluster_views, "SETTINGS_INTERVAL_MS", 0)
    # The console does not check whether internal topics can be created.
    settings = {
        "ottla_console_enable": True,
        "ottla_metrics_address": "127.0.0.1:0",
        "offsets_topic_replication_factor": 1,
    }
    with Cluster(brokers=3, **settings) as cluster:
        cluster.create_topic("orders", partitions=3)
        producer = Producer({"bootstrap.servers": cluster.bootstrap})
        producer.produce("orders", "value")
        assert producer.flush(SECONDS) == 0
        page = ConsoleClient(cluster[1].server.metrics_port)
        command = CommandLine(cluster.bootstrap)
        http = [f"--http=127.0.0.1:{cluster[each].server.metrics_port}" for each in (1, 2)]
        eventually(lambda: not of_console(page.get("overview")))
        assert command("status", "--json", *http).value["problems"] == []

        command.done("configs", "set", "topic", "orders", f"{RATE[:-4]}replicas=*")
        command.done("configs", "set", "broker", "2", f"{RATE}=1000")
        state = cluster[2].server._state
        assert state is not None
        (directory,) = state.directories
        log = Path(directory.path) / "orders-0"
        name = f"{0:020d}.log.damaged.set-aside"
        (log / name).touch()
        directory.note_set_aside(of_files([name], str(log), "orders", 0))
        command.done("configs", "set", "topic", "orders", "min.insync.replicas=3")
        cluster[3].stop()

        def agreed() -> set[str]:
            shown = of_console(page.get("overview"))
            # The third is not reached at the addresses that were given to find it.
            found = of_doctor(command("doctor", "--json", *http).value["checks"])
            found = {each for each in found if "refused" not in each}
            listed = of_status(command("status", "--json", *http).value["problems"])
            return shown if shown == found == listed and len(shown) == 5 else set()

        problems = eventually(agreed, lambda: sorted(of_console(page.get("overview"))))
        for text in (
            "brokers with replicas are not in the cluster: 3 (",
            "under-replicated partitions: ",
            "partitions below min.insync.replicas, which refuse acks=all: ",
            f"replication is throttled: broker 2 has {RATE}=1000, topic orders has",
            "are set aside (items: 1)",
        ):
            assert any(text in each for each in problems), (text, problems)
        assert all(each["fix"] for each in page.get("overview")["checks"])


def test_a_reassignment_in_progress_is_no_problem(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The replicas that it adds are neither missing nor out of sync: it says what is left."""
    monkeypatch.setattr(history, "INTERVAL_MS", 200)
    monkeypatch.setattr(history, "TICK_SECONDS", 0.1)
    settings = {"ottla_console_enable": True, "ottla_metrics_address": "127.0.0.1:0"}
    with Cluster(brokers=3, **settings) as cluster:
        page = ConsoleClient(cluster[1].server.metrics_port)
        command = CommandLine(cluster.bootstrap)
        command.done("topics", "create", "moved", "--replica-assignment", "1:2")
        producer = Producer({"bootstrap.servers": cluster.bootstrap})
        for _ in range(64):
            producer.produce("moved", bytes(100_000))
        assert producer.flush(SECONDS) == 0
        plan = tmp_path / "plan.json"
        target = {"topic": "moved", "partition": 0, "replicas": [1, 3]}
        plan.write_text(json.dumps({"version": 1, "partitions": [target]}))
        command.done("partitions", "reassign", "execute", str(plan), "--throttle", "1000")

        def agreed() -> set[str]:
            overview = page.get("overview")
            assert of_console(overview) == set()
            assert (overview["under_replicated"], overview["brokers"][2]["not_in_sync"]) == (0, 0)
            shown = {each["finding"] for each in overview["notes"]}
            checks = command("doctor", "--json").value
            assert checks["ok"], checks
            listed = command("status", "--json").value
            assert (listed["ok"], listed["under_replicated"]) == (True, 0), listed
            found = notes_of_doctor(checks["checks"])
            return shown if shown == found == set(listed["notes"]) else set()

        text = "partitions are being reassigned: 1 (moved-0); replicas left to copy: 1 to broker 3"
        assert eventually(agreed) == {text}
        assert "NOTE     " + text in command("status").output
        listed = command.done("partitions", "under-replicated")
        assert listed.output == "Only replicas of a reassignment in progress are not in sync.\n"
        assert command.done("cluster", "info", "--json").value["under_replicated"] == 0
        (topic,) = page.get("topics?search=moved")["topics"]
        assert (topic["under_replicated"], topic["reassigned"]) == (0, 1)
        assert page.get("topics?only=problems")["topics"] == []
        (row,) = page.get("topic?name=moved")["rows"]
        assert (row["adding"], row["reassigned"]) == ([3], True)
        command.done("partitions", "reassign", "cancel", str(plan))
        eventually(lambda: not page.get("overview")["notes"])
