"""`ottla migrate --to kafka-4` on a running broker."""

from __future__ import annotations

import json
from pathlib import Path

from tests.doubles.broker_process import start_broker
from tests.doubles.command_line import CommandLine
from tests.doubles.tiered_topics import tiered_settings


def test_what_stands_in_the_way_is_named_with_its_remedy(ottla: CommandLine) -> None:
    ottla.done("topics", "create", "small-segments", "--config", "segment.bytes=100000")
    try:
        outcome = ottla("migrate", "--to", "kafka-4", "--json")
        assert outcome.code == 1
        checks = json.loads(outcome.output)["checks"]
        problems = {row["what"]: row["finding"] for row in checks if row["result"] == "PROBLEM"}
        assert "segment.bytes=1048576`" in problems["topic small-segments"]
        (broker,) = (text for what, text in problems.items() if what.startswith("broker"))
        assert "ottla zookeeper --data-dir DIRECTORY" in broker
        ottla.done("configs", "set", "topic", "small-segments", "segment.bytes=1048576")
        again = ottla("migrate", "--to", "kafka-4")
        assert "small-segments" not in again.output
    finally:
        ottla.done("topics", "delete", "small-segments", "--yes")


def test_what_comes_along_and_what_stays_behind(ottla: CommandLine) -> None:
    ottla.done("quotas", "alter", "--client", "loader", "--set", "producer_byte_rate=1048576")
    ottla.done("configs", "set", "group", "sharers", "share.auto.offset.reset=earliest")
    try:
        checks = json.loads(ottla("migrate", "--to", "kafka-4", "--json").output)["checks"]
        notes = {row["what"]: row["finding"] for row in checks if row["result"] == "note"}
        assert notes["quotas"].startswith("the migration keeps the quotas of 1 entities")
        assert notes["groups"].startswith("settings of sharers stay behind")
        assert notes["features"].startswith("transaction.version 2 is off as soon as Kafka 3.9")
        assert not [text for text in notes.values() if "does not report its state" in text]
    finally:
        ottla.done("quotas", "alter", "--client", "loader", "--remove", "producer_byte_rate")
        ottla.done("configs", "unset", "group", "sharers", "share.auto.offset.reset")


def test_tiered_topics_are_named(tmp_path: Path) -> None:
    store = tmp_path / "store"
    store.mkdir()
    settings = {
        name: str(value).lower() if isinstance(value, bool) else value
        for name, value in tiered_settings(store).items()
    }
    with start_broker(tmp_path, **settings) as broker:
        ottla = CommandLine(broker.bootstrap)
        for name in ("history", "archive"):
            ottla.done("topics", "create", name, "--config", "remote.storage.enable=true")
        ottla.done("topics", "create", "plain")
        outcome = ottla("migrate", "--to", "kafka-4", "--json")
    assert outcome.code == 1
    rows = json.loads(outcome.output)["checks"]
    (tiered,) = (row for row in rows if row["what"] == "tiered topics")
    assert tiered["finding"].startswith("archive, history: have tiered storage.")
    assert any(
        row["result"] == "PROBLEM" and "has tiered storage, which Kafka reads" in row["finding"]
        for row in rows
    )


def test_another_way_is_a_wrong_argument(ottla: CommandLine) -> None:
    outcome = ottla("migrate", "--to", "kafka-5")
    assert outcome.code == 2
    assert "the only migration that is checked is the one to kafka-4" in outcome.errors
