"""Writes tests/unit/cli/kafka_flags.txt: the flags that Kafka's tools list, each run with --help.

python -m tests.compat.kafka_flags
"""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

from tests.doubles.apache_kafka import java_command

LIST = Path(__file__).resolve().parents[1] / "unit" / "cli" / "kafka_flags.txt"
CLASSES = {
    "kafka-topics": "org.apache.kafka.tools.TopicCommand",
    "kafka-get-offsets": "org.apache.kafka.tools.GetOffsetShell",
    "kafka-console-producer": "kafka.tools.ConsoleProducer",
    "kafka-console-consumer": "org.apache.kafka.tools.consumer.ConsoleConsumer",
    "kafka-consumer-groups": "org.apache.kafka.tools.consumer.group.ConsumerGroupCommand",
    "kafka-configs": "kafka.admin.ConfigCommand",
    "kafka-acls": "kafka.admin.AclCommand",
    "kafka-reassign-partitions": "org.apache.kafka.tools.reassign.ReassignPartitionsCommand",
    "kafka-leader-election": "org.apache.kafka.tools.LeaderElectionCommand",
    "kafka-log-dirs": "org.apache.kafka.tools.LogDirsCommand",
    "kafka-delete-records": "org.apache.kafka.tools.DeleteRecordsCommand",
    "kafka-transactions": "org.apache.kafka.tools.TransactionsCommand",
    "kafka-dump-log": "kafka.tools.DumpLogSegments",
}
_SUBCOMMANDS = {
    "kafka-transactions": ("list", "describe", "describe-producers", "abort", "find-hanging")
}
# One of joptsimple at the margin, or one of argparse4j, indented and maybe behind a short form.
_FLAG = re.compile(r"^(?:  )?(?:-\w, )?(--[a-zA-Z][\w.-]*)", re.MULTILINE)
_SUBCOMMAND = re.compile(r"^    ([a-z-]+) {2,}\S", re.MULTILINE)


def _help_of(tool: str, *words: str) -> str:
    command = java_command(CLASSES[tool], *words, "--help", log_level="WARN")
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    return done.stdout + done.stderr


def flags_of(tool: str) -> list[str]:
    """All flags of a tool of Apache Kafka 3.9.1, and its subcommands, sorted."""
    text = _help_of(tool)
    if tool not in _SUBCOMMANDS:
        return sorted({name for name in _FLAG.findall(text) if _at_margin(text, name)})
    found = {*_FLAG.findall(text), *_SUBCOMMAND.findall(text)}
    for name in _SUBCOMMANDS[tool]:
        found.update(_FLAG.findall(_help_of(tool, "--bootstrap-server", "x:1", name)))
    return sorted(found)


def _at_margin(text: str, name: str) -> bool:
    return re.search(rf"^{re.escape(name)}\b", text, re.MULTILINE) is not None


def listing(tools: dict[str, list[str]]) -> str:
    """The text of the file: a line a tool."""
    return "".join(f"{tool}: {' '.join(flags)}\n" for tool, flags in tools.items())


if __name__ == "__main__":
    LIST.write_text(listing({tool: flags_of(tool) for tool in CLASSES}), encoding="utf-8")
