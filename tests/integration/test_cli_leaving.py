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
        assert "ottla zookeeper DIRECTORY" in broker
        ottla.done("configs", "set", "topic", "small-segments", "segment.bytes=1048576")
        again = ottla("migrate", "--to", "kafka-4")
        assert "small-segments" not in again.output
    finally:
        ottla.done("topics", "delete", "small-segments", "--yes")


def test_another_way_is_a_wrong_argument(ottla: CommandLine) -> None:
    outcome = ottla("migrate", "--to", "kafka-5")
    assert outcome.code == 2
    assert "the only way that is checked is kafka-4" in outcome.errors
