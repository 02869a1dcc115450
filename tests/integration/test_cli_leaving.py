"""`ottla migrate --to kafka-4` on a running broker."""

from __future__ import annotations

import json

from tests.doubles.command_line import CommandLine


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


def test_another_way_is_a_wrong_argument(ottla: CommandLine) -> None:
    outcome = ottla("migrate", "--to", "kafka-5")
    assert outcome.code == 2
    assert "the only migration that is checked is the one to kafka-4" in outcome.errors
