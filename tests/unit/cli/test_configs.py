"""`ottla configs` of all topics, and of settings that are not set."""

from __future__ import annotations

from typing import Any

import pytest
from typer.testing import CliRunner

from ottla.cli.app import app
from ottla.cli.output import FAILED
from ottla.protocol.messages.describe_configs import (
    DescribeConfigsResourceResult,
    DescribeConfigsResponse,
    DescribeConfigsResult,
)
from ottla.protocol.messages.incremental_alter_configs import (
    AlterConfigsResourceResponse,
    IncrementalAlterConfigsResponse,
)
from ottla.protocol.messages.metadata import (
    MetadataResponse,
    MetadataResponseBroker,
    MetadataResponseTopic,
)

SET = {("a", "retention.ms"): "5", ("b", "segment.ms"): "7", ("1", "log.cleaner.threads"): "2"}
SOURCE_OF_TOPIC, SOURCE_OF_BROKER, SOURCE_OF_DEFAULT = 1, 2, 5
BROKER = 4


class Cluster:
    """The topics a, b, c and the brokers 1 and 2, with the settings of `SET`."""

    json = False

    def __init__(self, *_: object) -> None:
        self.client = self

    def metadata(self, names: object) -> MetadataResponse:
        brokers = [MetadataResponseBroker(number, "h", number) for number in (1, 2)]
        topics = [MetadataResponseTopic(name=name) for name in ("c", "b", "a")]
        return MetadataResponse(brokers=brokers, topics=topics)

    def broker_ids(self) -> list[int]:
        return [1, 2]

    def call(self, kind: type, request: Any, _to: object = None) -> Any:
        if kind is IncrementalAlterConfigsResponse:
            return kind(responses=[AlterConfigsResourceResponse()])
        assert kind is DescribeConfigsResponse
        return kind(results=[self._result(each) for each in request.resources])

    def _result(self, resource: Any) -> DescribeConfigsResult:
        if resource.resource_name == "gone":
            return DescribeConfigsResult(error_code=3, resource_name="gone")
        is_broker = resource.resource_type == BROKER
        own = SOURCE_OF_BROKER if is_broker else SOURCE_OF_TOPIC
        names = ["log.cleaner.threads"] if is_broker else ["segment.ms", "retention.ms"]
        rows = [
            DescribeConfigsResourceResult(
                name=name,
                value=SET.get((resource.resource_name, name), "1"),
                config_source=own if (resource.resource_name, name) in SET else SOURCE_OF_DEFAULT,
            )
            for name in names
            if not resource.configuration_keys or name in resource.configuration_keys
        ]
        return DescribeConfigsResult(configs=rows, resource_name=resource.resource_name)

    def close(self) -> None:
        """Nothing is open."""


@pytest.fixture(autouse=True)
def cluster(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ottla.cli.session.Session", Cluster)


def run(line: str) -> Any:
    return CliRunner().invoke(app, line.split())


def test_all_topics_and_all_brokers_are_described() -> None:
    rows = [line.split() for line in run("configs describe topics").stdout.splitlines()]
    assert [row[:3] for row in rows] == [
        ["TOPIC", "SETTING", "VALUE"],
        ["a", "retention.ms", "5"],
        ["b", "segment.ms", "7"],
    ]
    rows = [line.split() for line in run("configs describe broker --all").stdout.splitlines()]
    assert [row[:3] for row in rows[1:]] == [
        ["1", "log.cleaner.threads", "2"],
        ["2", "log.cleaner.threads", "1"],
    ]
    done = run("configs describe group")
    assert "group needs a name after it" in done.stderr
    assert run("configs describe topic gone").stderr == (
        "ottla: topic gone: The topic 'gone' does not exist (UNKNOWN_TOPIC_OR_PARTITION): "
        "see `ottla topics list`.\n"
    )


def test_a_word_of_other_tools_is_known() -> None:
    assert "No such command 'get'. Did you mean 'describe'?" in run("configs get topic a").stderr
    assert "Did you mean 'set', 'unset'?" in run("configs sett topic a").stderr
    assert "No such command 'show'." in run("users show").stderr


@pytest.mark.parametrize(
    ("entity", "unset", "own"),
    [
        ("--topic a", "segment.ms", "retention.ms"),
        ("--broker 2", "log.cleaner.threads", ""),
        ("--broker 1", "", "log.cleaner.threads"),
    ],
)
def test_kafkas_tool_refuses_the_removal_of_what_is_not_set(
    entity: str, unset: str, own: str
) -> None:
    where = entity.removeprefix("--")
    if unset:
        done = run(f"kafka-configs --alter {entity} --delete-config {unset}")
        assert (done.exit_code, done.stdout) == (FAILED, "")
        assert done.stderr == f"ottla: Invalid config(s): {unset}. Not set for {where}.\n"
        done = run(f"configs unset {where} {unset}")
        assert (done.exit_code, done.stdout) == (0, f"{where}: {unset} removed.\n")
    if own:
        done = run(f"kafka-configs --alter {entity} --delete-config {own}")
        assert (done.exit_code, done.stdout) == (0, f"{where}: {own} removed.\n")
