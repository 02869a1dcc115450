"""`ottla produce` when responses get lost."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from ottla.broker.testing.embedded import Broker
from tests.doubles.command_line import CommandLine


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    with Broker() as started:
        yield started


def test_a_response_that_got_lost_writes_nothing_twice(broker: Broker) -> None:
    broker.create_topic("once")
    with broker.faults.disconnect("Produce", executed=True, times=2) as fault:
        response = CommandLine(broker.bootstrap).done("produce", "once", text="a\nb\n")
    assert fault.hits == 2
    assert broker.end_offset("once") == 2
    assert "2 record(s) written to once." in response.errors


@pytest.mark.parametrize(
    "code",
    [
        "UNKNOWN_TOPIC_OR_PARTITION",
        "NOT_ENOUGH_REPLICAS",
        "NOT_LEADER_OR_FOLLOWER",
        "KAFKA_STORAGE_ERROR",
        "REQUEST_TIMED_OUT",
    ],
)
@pytest.mark.parametrize("acks", ["all", "1"])
def test_what_kafkas_producer_retries_is_retried(broker: Broker, code: str, acks: str) -> None:
    """A broker that starts again, an election, replicas that come back."""
    topic = f"{code.lower()}-{acks}"
    broker.create_topic(topic)
    with broker.faults.error("Produce", code, times=2) as fault:
        CommandLine(broker.bootstrap).done("produce", topic, "--acks", acks, text="a\nb\n")
    assert fault.hits == 2
    assert broker.end_offset(topic) == 2


def test_a_producer_id_is_waited_for(broker: Broker) -> None:
    """While ZooKeeper is away, or the controller moves."""
    broker.create_topic("identified")
    with broker.faults.error("InitProducerId", "COORDINATOR_NOT_AVAILABLE", times=3):
        response = CommandLine(broker.bootstrap).done("produce", "identified", text="a\n")
    assert "without idempotence" not in response.errors


def test_sequences_go_on_from_batch_to_batch(broker: Broker) -> None:
    broker.create_topic("many", 2)
    lines = "".join(f"{number}:{number:01000}\n" for number in range(300))  # several reads
    CommandLine(broker.bootstrap).done("produce", "many", "-k", ":", text=lines)
    assert broker.end_offset("many", 0) + broker.end_offset("many", 1) == 300


def test_without_acks_of_all_it_is_not_sent_again(broker: Broker) -> None:
    broker.create_topic("unsure")
    with broker.faults.disconnect("Produce", executed=True, times=1):
        response = CommandLine(broker.bootstrap)("produce", "unsure", "--acks", "1", text="a\n")
    assert response.code == 3
    assert broker.end_offset("unsure") == 1


def test_where_there_is_no_producer_id_it_writes_without(broker: Broker) -> None:
    broker.create_topic("plain")
    with broker.faults.error("InitProducerId", "CLUSTER_AUTHORIZATION_FAILED"):
        response = CommandLine(broker.bootstrap).done("produce", "plain", text="a\n")
    assert "Writing without idempotence" in response.errors
    assert broker.end_offset("plain") == 1


def test_lines_that_fit_one_by_one_are_written_however_small_the_batches_must_be(
    broker: Broker,
) -> None:
    broker.create_topic("narrow", 2, config={"max.message.bytes": "3000"})
    ottla = CommandLine(broker.bootstrap)
    lines = "".join(f"{number}:{number:0500}\n" for number in range(200))
    ottla.done("produce", "narrow", "-k", ":", text=lines)
    rows = ottla.done("consume", "narrow", "--format", "json").output.splitlines()
    assert sorted(int(json.loads(row)["key"]) for row in rows) == list(range(200))
    too_large = ottla("produce", "narrow", text="x" * 4000)
    assert too_large.code == 1
    assert "MESSAGE_TOO_LARGE" in too_large.errors


def test_timestamps_of_json_lines_are_kept(broker: Broker) -> None:
    broker.create_topic("timed")
    ottla = CommandLine(broker.bootstrap)
    written = [0, 1, 1_772_359_200_000]
    lines = "".join(f'{{"value": "v", "timestamp": {each}}}\n' for each in written)
    ottla.done("produce", "timed", "--json-lines", text=lines)
    rows = ottla.done("consume", "timed", "--format", "json").output.splitlines()
    assert [json.loads(row)["timestamp"] for row in rows] == written
    for wrong in ("1e999", "9223372036854775808"):
        refused = ottla("produce", "timed", "--json-lines", text=f'{{"timestamp": {wrong}}}\n')
        assert refused.code == 2
        assert "is not a JSON object with key, value and headers" in refused.errors


def test_headers_of_one_name_are_all_written(broker: Broker) -> None:
    broker.create_topic("headed")
    ottla = CommandLine(broker.bootstrap)
    ottla.done("produce", "headed", "-H", "a=1", "-H", "a=2", "-H", "b=", text="v\n")
    row = json.loads(ottla.done("consume", "headed", "--json").output)
    assert row["headers"] == [["a", "1"], ["a", "2"], ["b", ""]]


def test_a_file_without_its_option(broker: Broker) -> None:
    response = CommandLine(broker.bootstrap)("produce", "orders", "orders.txt", text="")
    assert response.code == 2
    assert "name the file by --file orders.txt" in response.errors


def test_a_broker_that_the_cluster_does_not_have(broker: Broker) -> None:
    """The cluster was reached, so it is not exit code 3."""
    response = CommandLine(broker.bootstrap)(
        "configs", "set", "broker", "9", "log.cleaner.threads=2"
    )
    assert response.code == 1
    assert "broker 9 is not in the cluster" in response.errors


@pytest.mark.parametrize(
    "options",
    [
        ["--json-lines", "-H", "source=import"],
        ["--json-lines", "--key", "k"],
        ["--json-lines", "--key-separator", ":"],
        ["--json-lines", "--null", ""],
        ["--key", "k", "--key-separator", ":"],
    ],
)
def test_options_without_effect_are_wrong_usage(broker: Broker, options: list[str]) -> None:
    refused = CommandLine(broker.bootstrap)("produce", "timed", *options, text='{"value": "v"}\n')
    assert (refused.code, refused.output) == (2, "")
