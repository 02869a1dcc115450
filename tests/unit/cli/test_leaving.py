"""The findings of `ottla migrate --to kafka-4`."""

from __future__ import annotations

from ottla.cli.leaving_checks import (
    NOTE,
    OK,
    PROBLEM,
    Finding,
    check_features,
    check_files,
    check_groups,
    check_left_behind,
    check_partitions,
    check_quotas,
    check_reassignments,
    check_segments,
    check_states,
    check_tiered_topics,
    check_tokens,
)
from ottla.protocol.messages.metadata import MetadataResponsePartition

ZOOKEEPER = {"zookeeper.connect": "zk:2181", "inter.broker.protocol.version": "3.9-IV0"}


def test_a_broker_that_is_ready_has_no_finding() -> None:
    values = {**ZOOKEEPER, "log.segment.bytes": "1073741824"}
    assert check_files({1: values}, {1: {"zookeeper.connect": "zk:2181"}}) == []


def test_a_broker_without_zookeeper_has_a_tree_to_serve() -> None:
    (found,) = check_files({1: {"zookeeper.connect": ""}}, {})
    assert (found.result, found.what) == (PROBLEM, "broker 1")
    assert "ottla zookeeper --data-dir DIRECTORY" in found.finding


def test_settings_that_kafka_does_not_accept() -> None:
    values = {
        **ZOOKEEPER,
        "log.segment.bytes": "1048575",
        "inter.broker.protocol.version": "3.2",
    }
    file = {"ottla.console.enable": "true", "password.encoder.secret": "x"}
    found = check_files({7: values}, {7: {**file, "log.segment.bytes": "1048575"}})
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


def only(found: list[Finding], result: str) -> str:
    """The text of the one finding."""
    (finding,) = found
    assert finding.result == result
    return finding.finding


def test_a_dynamic_setting_is_mended_with_a_command() -> None:
    text = only(check_files({7: {**ZOOKEEPER, "log.segment.bytes": "20000"}}, {7: {}}), PROBLEM)
    assert "`ottla configs set broker 7 log.segment.bytes=1048576`" in text


def test_classes_that_are_in_python() -> None:
    for name in ("create.topic.policy.class.name", "client.quota.callback.class"):
        text = only(check_files({7: ZOOKEEPER}, {7: {name: "rules:Ours"}}), PROBLEM)
        assert f"{name}=rules:Ours is a Python class" in text
        assert "remove it from the file" in text


def test_tiered_storage_needs_the_plugin() -> None:
    values = {**ZOOKEEPER, "remote.log.storage.system.enable": "true"}
    name, path = "remote.log.storage.manager.class.name", "remote.log.storage.manager.class.path"
    text = only(check_files({7: {**values, name: "aiven"}}, {}), PROBLEM)
    assert f"set {name}=io.aiven.kafka.tieredstorage.RemoteStorageManager and {path}=JARS" in text
    text = only(check_files({7: {**values, name: "io.aiven.Manager"}}, {}), PROBLEM)
    assert f"set {path}=JARS" in text
    assert check_files({7: {**values, name: "io.aiven.Manager", path: "/jars/*"}}, {}) == []
    assert check_tiered_topics([]) == []
    assert "`ottla tiered verify`" in only(check_tiered_topics(["history"]), NOTE)


def row(index: int, leader: int, isr: list[int]) -> MetadataResponsePartition:
    return MetadataResponsePartition(
        partition_index=index, leader_id=leader, replica_nodes=[1, 2], isr_nodes=isr
    )


def test_partitions_that_are_not_in_sync() -> None:
    assert (
        only(check_partitions([("t", [row(0, 1, [1, 2])])]), OK) == "all 1 partitions are in sync"
    )
    rows = [row(0, 1, [1]), row(1, -1, [2]), row(2, 2, [2, 1])]
    offline, behind = check_partitions([("t", rows)])
    assert (offline.result, behind.result) == (PROBLEM, PROBLEM)
    assert offline.finding.startswith("1 partition(s) have no leader: t-1. ")
    assert "`ottla partitions under-replicated`" in offline.finding
    assert behind.finding.startswith("1 partition(s) miss in-sync replicas: t-0. ")
    assert "`ottla partitions progress`" in behind.finding


def test_reassignments_have_to_end() -> None:
    assert check_reassignments([]) == []
    names = [f"t-{number}" for number in range(30)]
    text = only(check_reassignments(names), PROBLEM)
    assert text.startswith("30 partition(s) are being reassigned: t-0, ")
    assert "t-19 and 10 more. Wait; `ottla partitions reassign list`" in text


def test_what_comes_along_is_a_note() -> None:
    assert check_quotas(0) == check_tokens(0) == []
    assert "`ottla quotas describe`" in only(check_quotas(3), NOTE)
    assert "delegation.token.secret.key" in only(check_tokens(3), NOTE)


def test_settings_that_stay_behind() -> None:
    assert check_left_behind([], []) == []
    groups, metrics = check_left_behind(["sharers"], ["daily"])
    assert "`ottla configs describe group sharers`" in groups.finding
    assert "`ottla configs describe metrics daily`" in metrics.finding
    assert "--entity-type client-metrics" in metrics.finding


def test_finalized_features() -> None:
    assert check_features({}) == []
    assert "is off as soon as Kafka 3.9 registers" in only(
        check_features({"transaction.version": 2}), NOTE
    )
    text = only(check_features({"kraft.version": 1}), PROBLEM)
    assert "`ottla features --set kraft.version=0`" in text


def test_what_brokers_report() -> None:
    aside = {"name": "records-set-aside", "problem": "1 item", "fix": "restore it"}
    expiring = {"name": "certificate-expiring", "problem": "soon", "fix": "renew it"}
    found = check_states(
        {
            1: {"faults": [aside, expiring], "compactions": 2},
            2: {"faults": [], "compactions": 0},
            3: None,
        }
    )
    assert [(each.result, each.what) for each in found] == [
        (PROBLEM, "broker 1"),
        (NOTE, "broker 1"),
        (NOTE, "broker 1"),
        (NOTE, "broker 3"),
    ]
    assert [each.finding for each in found][:2] == ["1 item: restore it", "soon: renew it"]
    assert "compacts 2 log(s): stop it with SIGTERM" in found[2].finding
    assert "`ottla log set-aside list DIRECTORY`" in found[3].finding
