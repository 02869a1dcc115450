"""The JSON files of Kafka's reassignment tool."""

from __future__ import annotations

import json
from collections.abc import Mapping

from ottla.cli.output import usage
from ottla.cli.values import read_json_file
from ottla.protocol.topics import TopicPartition

Plan = dict[TopicPartition, list[int]]


def read_plan(path: str) -> Plan:
    """Target replicas by partition: {"version": 1, "partitions": [...]}."""
    document = read_json_file(path)
    try:
        assert isinstance(document, dict)
        plan: Plan = {}
        for row in document["partitions"]:
            replicas = [int(broker) for broker in row["replicas"]]
            item = TopicPartition(str(row["topic"]), int(row["partition"]))
            if any(directory != "any" for directory in row.get("log_dirs", ())):
                raise usage(
                    f"{path}: log_dirs of {item} names a directory; this tool moves replicas "
                    'between brokers only, omit it or write "any".'
                )
            if item in plan or not replicas or len(set(replicas)) < len(replicas):
                raise usage(f"{path}: {item} is duplicated, or has no replica or a duplicate one.")
            plan[item] = replicas
    except (AssertionError, KeyError, TypeError, ValueError, OverflowError):
        raise usage(
            f'{path} needs {{"version": 1, "partitions": [{{"topic": "orders", '
            '"partition": 0, "replicas": [1, 2]}}]}.'
        ) from None
    if not plan:
        raise usage(f"{path} has no partitions.")
    return plan


def read_topics(path: str) -> list[str]:
    """The topics to move: {"version": 1, "topics": [{"topic": "orders"}]}."""
    document = read_json_file(path)
    try:
        assert isinstance(document, dict)
        return [str(row["topic"]) for row in document["topics"]]
    except (AssertionError, KeyError, TypeError):
        raise usage(f'{path} needs {{"version": 1, "topics": [{{"topic": "t"}}]}}.') from None


def plan_document(plan: Mapping[TopicPartition, list[int]]) -> dict[str, object]:
    """The document that `read_plan` and Kafka's tool read."""
    rows = [
        {"topic": item.topic, "partition": item.partition, "replicas": replicas}
        for item, replicas in sorted(plan.items())
    ]
    return {"version": 1, "partitions": rows}


def plan_text(plan: Mapping[TopicPartition, list[int]]) -> str:
    """The document on one line, as Kafka's tool prints it."""
    return json.dumps(plan_document(plan), separators=(",", ":"))
