"""Every subcommand of the tools of Kafka 4.3.1 that asks a broker, in an order that makes sense.

They are in `commands.txt`. `{F}` is a folder with the files that commands read; the words after `<`
are lines of standard input.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import NamedTuple

_TOOLS = "org.apache.kafka.tools"
CLASSES = {
    "kafka-acls": f"{_TOOLS}.AclCommand",
    "kafka-broker-api-versions": f"{_TOOLS}.BrokerApiVersionsCommand",
    "kafka-client-metrics": f"{_TOOLS}.ClientMetricsCommand",
    "kafka-cluster": f"{_TOOLS}.ClusterTool",
    "kafka-configs": "kafka.admin.ConfigCommand",
    "kafka-console-consumer": f"{_TOOLS}.consumer.ConsoleConsumer",
    "kafka-console-producer": f"{_TOOLS}.ConsoleProducer",
    "kafka-consumer-groups": f"{_TOOLS}.consumer.group.ConsumerGroupCommand",
    "kafka-delegation-tokens": f"{_TOOLS}.DelegationTokenCommand",
    "kafka-delete-records": f"{_TOOLS}.DeleteRecordsCommand",
    "kafka-features": f"{_TOOLS}.FeatureCommand",
    "kafka-get-offsets": f"{_TOOLS}.GetOffsetShell",
    "kafka-groups": f"{_TOOLS}.GroupsCommand",
    "kafka-leader-election": f"{_TOOLS}.LeaderElectionCommand",
    "kafka-log-dirs": f"{_TOOLS}.LogDirsCommand",
    "kafka-metadata-quorum": f"{_TOOLS}.MetadataQuorumCommand",
    "kafka-reassign-partitions": f"{_TOOLS}.reassign.ReassignPartitionsCommand",
    "kafka-share-groups": f"{_TOOLS}.consumer.group.ShareGroupCommand",
    "kafka-streams-groups": f"{_TOOLS}.streams.StreamsGroupCommand",
    "kafka-topics": f"{_TOOLS}.TopicCommand",
    "kafka-transactions": f"{_TOOLS}.TransactionsCommand",
}


class Command(NamedTuple):
    """One call of a tool."""

    tool: str
    arguments: str
    text: str = ""

    def __str__(self) -> str:
        return f"{self.tool} {self.arguments}".strip()


_MOVES = [{"topic": "t", "partition": 0, "replicas": [0]}]
FILES = {
    "delete.json": {"partitions": [{"topic": "t", "partition": 0, "offset": 0}], "version": 1},
    "delete-unknown.json": {
        "partitions": [{"topic": "no-such", "partition": 0, "offset": 0}],
        "version": 1,
    },
    "topics.json": {"topics": [{"topic": "t"}], "version": 1},
    "moves.json": {"partitions": _MOVES, "version": 1},
    "bad-moves.json": {
        "partitions": [{"topic": "t", "partition": 0, "replicas": [7]}],
        "version": 1,
    },
}


def commands() -> list[Command]:
    """Return all calls."""
    found = []
    for line in Path(__file__).with_suffix(".txt").read_text().splitlines():
        words, _, text = line.partition(" < ")
        tool, _, arguments = words.partition(" ")
        found.append(Command(tool, arguments, "".join(f"{each}\n" for each in text.split())))
    return found


def file_texts() -> dict[str, str]:
    """Return the files that commands read, as JSON."""
    return {name: json.dumps(content) for name, content in FILES.items()}
