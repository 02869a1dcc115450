"""`ottla topics`, `configs`, `cluster info`, `log-dirs`, `features`: what the user sees."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.doubles.command_line import CommandLine


def test_a_topic_from_its_creation_to_its_end(ottla: CommandLine) -> None:
    created = ottla.done("topics", "create", "life", "-p", "3", "-c", "retention.ms=86400000")
    assert created.output == "Topic life created: 3 partitions, 1 replica each.\n"
    assert ["life", "3", "1", "0"] in ottla.done("topics", "list").lines
    described = ottla.done("topics", "describe", "life").lines
    assert described[0] == ["topic", "life"]
    assert described[-1] == ["2", "7", "0", "7", "7", "in", "sync"]
    grown = ottla.done("topics", "alter", "life", "--partitions", "5")
    assert grown.output == "Topic life has 5 partitions.\n"
    assert len(ottla.done("topics", "describe", "life", "--json").value[0]["partitions"]) == 5
    assert ottla.done("topics", "delete", "life", "--yes").output == "Topic life deleted.\n"
    gone = ottla("topics", "describe", "life")
    assert (gone.code, gone.output) == (1, "")
    assert gone.errors.startswith("ottla: topic life: The topic 'life' does not exist (UNKNOWN_")


def test_topics_are_chosen_by_a_regular_expression(ottla: CommandLine) -> None:
    for name in ("regular.one", "regular-one", "regular.two"):
        ottla.done("topics", "create", name, "-p", "3")

    def names(*words: str) -> list[str]:
        rows = ottla.done("topics", *words, "--json").value
        return [row.get("name") or f"{row['topic']}:{row['partition']}" for row in rows]

    assert names("list", "--regex", "regular.one") == ["regular-one", "regular.one"]
    assert names("describe", "--regex", r"regular\.\w+") == ["regular.one", "regular.two"]
    assert names("list", "--regex", "regular") == []  # the whole name has to match
    offsets = names("offsets", "--regex", r"regular\..*:1-", "--regex", "regular-.*:0-1")
    wanted = ["regular-one:0", *(f"regular.{n}:{p}" for n in ("one", "two") for p in (1, 2))]
    assert offsets == wanted
    grown = ottla.done("topics", "alter", "--regex", "regular.one", "--partitions", "4")
    assert grown.output.splitlines() == [
        f"Topic regular{each}one has 4 partitions." for each in "-."
    ]
    for words, error in (
        (("describe", "--regex", "regular.one", "regular.two"), "name topics, or choose them"),
        (("delete", "--yes"), "name topics, or choose them"),
        (("alter", "--partitions", "9"), "name topics, or choose them"),
        (("offsets", "--regex", "regular.*:1:2"), "write partitions as 0, 0-2, 3- or -3"),
        (("delete", "--regex", "(", "--yes"), "is not a regular expression"),
    ):
        outcome = ottla("topics", *words)
        assert (outcome.code, outcome.output) == (2, ""), words
        assert error in outcome.errors
    asked = ottla("topics", "delete", "--regex", "regular.*", text="n\n")
    assert asked.code == 1
    assert "Delete regular-one, regular.one, regular.two with all records?" in asked.errors
    ottla.done("topics", "delete", "--regex", "regular.*", "--yes")
    gone = ottla("topics", "delete", "--regex", "regular.*", "--yes")
    assert (gone.code, gone.errors) == (
        1,
        "ottla: no topic matches --regex regular.*; see `ottla topics list`.\n",
    )
    gone = ottla("topics", "delete", "--regex", "regular.*", "--if-exists", "--json")  # no question
    assert gone.value == {"deleted": [], "marked": []}
    assert gone.errors == "No topic matches --regex regular.*.\n"


def test_a_topic_that_does_not_exist_is_not_in_sync(ottla: CommandLine) -> None:
    done = ottla("partitions", "under-replicated", "mistyped")
    assert (done.code, done.output) == (1, "")
    assert "The topic 'mistyped' does not exist (UNKNOWN_TOPIC_OR_PARTITION)" in done.errors


def test_a_setting_that_cannot_be_unset_is_reported(ottla: CommandLine) -> None:
    ottla.done("topics", "create", "unsettled", "-c", "retention.ms=5000")
    mistyped = ottla("configs", "unset", "topic", "unsettled", "retention.mss")
    assert (mistyped.code, mistyped.output) == (1, "")
    assert "topics have no setting retention.mss" in mistyped.errors
    valued = ottla("configs", "unset", "topic", "unsettled", "retention.ms=5000")
    assert (valued.code, valued.output) == (2, "")
    assert "unset takes names only: retention.ms, not" in valued.errors
    ottla.done("configs", "unset", "topic", "unsettled", "retention.ms")
    ottla.done("configs", "unset", "topic", "unsettled", "retention.ms")


def test_creating_a_topic_twice_says_how_to_mean_it(ottla: CommandLine) -> None:
    ottla.done("topics", "create", "twice")
    again = ottla("topics", "create", "twice")
    assert again.code == 1
    assert "already exists (TOPIC_ALREADY_EXISTS): add --if-not-exists" in again.errors
    assert ottla.done("topics", "create", "twice", "--if-not-exists").output == ""


def test_validate_only_changes_nothing(ottla: CommandLine) -> None:
    checked = ottla.done("topics", "create", "imagined", "--validate-only")
    assert checked.output == "Topic imagined could be created: 1 partition, 1 replica each.\n"
    assert ottla("topics", "describe", "imagined").code == 1


def test_too_many_replicas_are_explained(ottla: CommandLine) -> None:
    refused = ottla("topics", "create", "wide", "-r", "3")
    assert refused.code == 1
    assert "INVALID_REPLICATION_FACTOR" in refused.errors
    assert "cannot be above the number of brokers" in refused.errors


def test_deleting_asks_and_a_no_deletes_nothing(ottla: CommandLine) -> None:
    ottla.done("topics", "create", "kept")
    refused = ottla("topics", "delete", "kept", text="n\n")
    assert refused.code == 1
    assert refused.errors.endswith("ottla: nothing was deleted.\n")
    assert ottla("topics", "describe", "kept").code == 0


def test_all_topics_that_are_not_deleted_are_named(ottla: CommandLine) -> None:
    ottla.done("topics", "create", "doomed")
    done = ottla("topics", "delete", "missing1", "doomed", "missing2", "--yes")
    assert (done.code, done.output) == (1, "Topic doomed deleted.\n")
    assert "The topic 'missing1' does not exist (UNKNOWN_TOPIC_OR_PARTITION)" in done.errors
    assert "The topic 'missing2' does not exist (UNKNOWN_TOPIC_OR_PARTITION)" in done.errors


def test_settings_of_a_topic_are_set_and_taken_back(ottla: CommandLine) -> None:
    ottla.done("topics", "create", "settled")
    nothing = ottla.done("configs", "describe", "topic", "settled")
    assert nothing.output == "Nothing differs from the defaults; --all shows those too.\n"
    ottla.done("configs", "set", "topic", "settled", "retention.ms=1000", "cleanup.policy=compact")
    ottla.done("configs", "append", "topic", "settled", "cleanup.policy=delete")
    shown = ottla.done("configs", "describe", "topic", "settled").lines
    assert shown[1:] == [
        ["cleanup.policy", "compact,delete", "topic", "list"],
        ["retention.ms", "1000", "topic", "long"],
    ]
    ottla.done("configs", "unset", "topic", "settled", "retention.ms")
    left = ottla.done("configs", "describe", "topic", "settled", "--json").value
    assert [row["name"] for row in left] == ["cleanup.policy"]
    wrong = ottla("configs", "set", "topic", "settled", "retention.ms=soon")
    assert wrong.code == 1
    assert "Invalid value soon for configuration retention.ms" in wrong.errors


def test_settings_of_all_brokers_and_of_one(ottla: CommandLine) -> None:
    ottla.done("configs", "set", "cluster", "message.max.bytes=2000000")
    try:
        cluster = ottla.done("configs", "describe", "cluster").lines
        assert cluster[1] == ["message.max.bytes", "2000000", "all", "brokers", "int"]
        broker = ottla.done("configs", "describe", "broker", "7", "-s", "message.max.bytes")
        assert broker.lines[1][:4] == ["message.max.bytes", "2000000", "all", "brokers"]
    finally:
        ottla.done("configs", "unset", "cluster", "message.max.bytes")


def test_wrong_usage_is_2(ottla: CommandLine) -> None:
    for arguments, sentence in {
        ("configs", "describe", "group"): "group needs a name after it.",
        ("configs", "describe", "queue", "x"): "'queue' is not one of topic, broker",
        ("configs", "set", "topic", "x", "novalue"): "'novalue' is not name=value",
        ("topics", "create", "x", "--replica-assignment", "a"): "write brokers with colons",
        ("topics", "lst"): "Did you mean 'list'?",
        ("topix",): "Did you mean 'topics'?",
        ("configs", "get", "topic", "t"): "No such command 'get'. Did you mean 'describe'?",
        ("consume", "x", "--from-end", "--offset", "1"): "choose one of --from-beginning",
        ("consume", "x", "--from-time", "yesterday"): "'yesterday' is not a time",
    }.items():
        response = ottla(*arguments)
        assert response.code == 2, response
        assert sentence in response.errors


def test_no_broker_there_is_3() -> None:
    response = CommandLine("127.0.0.1:1")("topics", "list")
    assert (response.code, response.output) == (3, "")
    assert response.errors.startswith("ottla: cannot reach the cluster: cannot connect to broker ")
    assert response.errors.count("\n") == 1


def test_a_broker_that_is_not_in_the_cluster(ottla: CommandLine) -> None:
    response = ottla("configs", "describe", "broker", "99")
    assert response.code == 1, response
    assert response.errors.startswith("ottla: broker 99 is not in the cluster; the brokers there")


def test_the_cluster_its_apis_and_its_disks(ottla: CommandLine) -> None:
    ottla.done("topics", "create", "counted", "-p", "2")
    info = ottla.done("cluster", "info", "--json").value
    assert info["controller"] == 7
    assert [row["broker"] for row in info["brokers"]] == [7]
    assert info["without_leader"] == 0
    apis = ottla.done("features", "--json").value[0]["apis"]
    assert {"broker": 7, "api": "Produce", "key": 0, "versions": "0-12"} in apis
    features_are_set(ottla)
    rows = ottla.done("log-dirs", "counted", "--json").value["partitions"]
    assert [(row["topic"], row["partition"], row["broker"]) for row in rows] == [
        ("counted", 0, 7),
        ("counted", 1, 7),
    ]


def features_are_set(ottla: CommandLine) -> None:
    name = "transaction.version"
    for level in (1, 1, 0, 2):
        (found,) = ottla.done("features", "--set", f"{name}={level}", "--json").value
        expected = [{"feature": name, "supported": "0-2", "finalized": level or None}]
        assert found["features"] == expected
    assert f"features: {name} 0-2 (finalized: 2)" in ottla.done("features").output
    for wrong, code, error in (
        (f"{name}=9", 1, f"{name}: Could not apply finalized feature update"),
        ("other=1", 1, "other: Could not apply finalized feature update"),
        (f"{name}=off", 2, f"ottla: --set {name}=off is not NAME=LEVEL"),
    ):
        refused = ottla("features", "--set", wrong)
        assert refused.code == code
        assert error in refused.errors


def test_client_properties_are_checked_before_anything_is_asked(
    ottla: CommandLine, tmp_path: Path
) -> None:
    properties = tmp_path / "client.properties"
    properties.write_text("security.protocol=TLS\n")
    response = ottla("topics", "list", "--command-config", str(properties))
    assert response.code == 2
    assert "security.protocol=TLS is not one of PLAINTEXT, SSL" in response.errors
    response = ottla("topics", "list", "--command-config", str(tmp_path / "none"))
    assert response.code == 2
    assert "No such file" in response.errors


def test_quotas_are_set_shown_and_removed(ottla: CommandLine) -> None:
    ottla.done("quotas", "alter", "--client", "loader", "--set", "producer_byte_rate=1048576")
    ottla.done("quotas", "alter", "--user-default", "--set", "consumer_byte_rate=2048")
    rows = ottla.done("quotas", "describe", "--json").value
    assert {"user": None, "client": "loader", "ip": None} | {
        "quota": "producer_byte_rate",
        "limit": 1048576.0,
    } in rows
    assert ["<default>", "-", "-", "consumer_byte_rate", "2,048.0"] in (
        ottla.done("quotas", "describe").lines
    )
    ottla.done("quotas", "alter", "--client", "loader", "--remove", "producer_byte_rate")
    ottla.done("quotas", "alter", "--user-default", "--remove", "consumer_byte_rate")
    assert ottla.done("quotas", "describe").output == "No quotas are set.\n"
    ottla.done("quotas", "alter", "--client", "free", "--set", "request_percentage=inf")
    described = ottla.done("quotas", "describe", "--json").output
    assert json.loads(described, parse_constant=pytest.fail)[0]["limit"] is None
    ottla.done("quotas", "alter", "--client", "free", "--remove", "request_percentage")
    wrong = ottla("quotas", "alter", "--client", "loader", "--set", "speed=1")
    assert wrong.code == 2
    assert "speed" in wrong.errors
    assert ottla("quotas", "alter", "--set", "producer_byte_rate=1").code == 2
    mistyped = ottla("quotas", "alter", "--client", "loader", "--remove", "producer_byte_rates")
    assert (mistyped.code, mistyped.output) == (2, "")


def test_kafka_configs_describes_the_entities_of_a_type_only(ottla: CommandLine) -> None:
    entities = {
        "users": ["--user", "ann"],
        "clients": ["--client", "job"],
        "ips": ["--ip", "10.0.0.1"],
        "users clients": ["--user", "ann", "--client", "job"],
    }
    for names in entities.values():
        quota = "connection_creation_rate" if "--ip" in names else "request_percentage"
        ottla.done("quotas", "alter", *names, "--set", f"{quota}=5")
    for types, names in entities.items():
        typed = [word for each in types.split() for word in ("--entity-type", each)]
        shown = ottla.done("kafka-configs", "--describe", *typed).lines
        row = [names[names.index(each) + 1] if each in names else "-" for each in _COMPONENTS]
        assert [line[:3] for line in shown[1:] if line[-1] == "5.0"] == [row], types
        assert (["No", "SCRAM", "credentials."] in shown) == (types == "users")
    for names in entities.values():
        quota = "connection_creation_rate" if "--ip" in names else "request_percentage"
        ottla.done("quotas", "alter", *names, "--remove", quota)
    assert ottla("quotas", "describe", "--only", "group").code == 2


_COMPONENTS = ("--user", "--client", "--ip")
