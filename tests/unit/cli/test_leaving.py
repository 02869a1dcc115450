"""The findings of `ottla migrate --to kafka-4`."""

from __future__ import annotations

from ottla.cli.leaving import NOTE, PROBLEM, check_files, check_groups, check_segments

ZOOKEEPER = {"zookeeper.connect": "zk:2181", "inter.broker.protocol.version": "3.9-IV0"}


def test_a_broker_that_is_ready_has_no_finding() -> None:
    values = {**ZOOKEEPER, "log.segment.bytes": "1073741824"}
    assert check_files({1: values}, {1: {"zookeeper.connect": "zk:2181"}}) == []


def test_a_broker_without_zookeeper_has_a_tree_to_serve() -> None:
    (found,) = check_files({1: {"zookeeper.connect": ""}}, {})
    assert (found.result, found.what) == (PROBLEM, "broker 1")
    assert "ottla zookeeper DIRECTORY" in found.finding


def test_settings_that_kafka_does_not_accept() -> None:
    values = {
        **ZOOKEEPER,
        "log.segment.bytes": "1048575",
        "inter.broker.protocol.version": "3.2",
    }
    found = check_files(
        {7: values},
        {7: {"ottla.console.enable": "true", "password.encoder.secret": "x"}},
    )
    assert [(each.result, each.what) for each in found] == [
        (PROBLEM, "broker 7"),
        (PROBLEM, "broker 7"),
        (NOTE, "broker 7"),
        (NOTE, "broker 7"),
    ]
    size, version, ours, removed = (each.finding for each in found)
    assert "log.segment.bytes is 1048575: set 1048576" in size
    assert "is 3.2: set 3.9" in version
    assert "ottla.console.enable" in ours
    assert "password.encoder.secret" in removed


def test_small_segments_are_named_with_the_command() -> None:
    (found,) = check_segments({"small": 1_000_000, "large": 1_048_576})
    assert (found.result, found.what) == (PROBLEM, "topic small")
    assert "`ottla configs set topic small segment.bytes=1048576`" in found.finding


def test_groups_with_members_that_kafka_3_9_does_not_serve() -> None:
    found = check_groups(
        {
            "a": ("classic", "Stable"),
            "b": ("consumer", "Stable"),
            "c": ("consumer", "Empty"),
            "d": ("share", "Stable"),
        }
    )
    assert [each.result for each in found] == [PROBLEM, PROBLEM]
    assert found[0].finding.startswith("b: use the consumer protocol")
    assert found[1].finding.startswith("d: are share groups")
