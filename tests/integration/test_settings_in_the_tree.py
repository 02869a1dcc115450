"""What the znode tree holds and no broker would have written: at a start, and repaired offline."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition

from ottla.broker.config.broker_config import BrokerConfig
from ottla.broker.config.errors import ConfigError
from ottla.broker.server.znode_store import open_store
from ottla.broker.testing.embedded import Broker
from ottla.cli.zookeeper_server import free_port
from ottla.controller.tree import znodes
from ottla.controller.tree.store import make_paths, set_or_create
from ottla.controller.tree.znodes_admin import encode_config
from tests.doubles.broker_process import start_broker
from tests.doubles.command_line import CommandLine
from tests.doubles.eventually import eventually
from tests.doubles.zookeeper_process import start_ottla_zookeeper

WRONG = {
    "max.connections.per.ip.overrides": "127.0.0.1",
    "max.connections": "0",
    "num.replica.fetchers": "0",
    "num.io.threads": "2147483647",
    "num.partitions": "7",
    "log.dirs": "/elsewhere",
    "message.max.bytes": "2000000",
}
# 2020-01-01.
OLD_MS = 1_577_836_800_000
IGNORED = {*WRONG} - {"num.io.threads", "message.max.bytes"}
ENTITIES = {"broker": "brokers/0", "cluster": "brokers/<default>"}


@pytest.fixture(params=["embedded", "zookeeper"])
def settings(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[dict[str, str]]:
    """Of a broker that was started once and is stopped."""
    if request.param == "embedded":
        found = {"log.dirs": str(tmp_path / "data")}
        with Broker(tmp_path / "data", broker_id=0) as broker:
            broker.create_topic("t")
        yield found
        return
    with start_ottla_zookeeper(tmp_path) as zookeeper:
        address = f"127.0.0.1:{zookeeper.port}"
        found = {"log.dirs": str(tmp_path / "data"), "zookeeper.connect": address}
        with Broker(tmp_path / "data", zookeeper_connect=address, broker_id=0) as broker:
            broker.create_topic("t")
        yield found


def write_old_records(bootstrap: str, topic: str) -> None:
    producer = Producer({"bootstrap.servers": bootstrap})
    for _ in range(3):
        producer.produce(topic, b"x", timestamp=OLD_MS)
        assert producer.flush(60) == 0


def first_offset(bootstrap: str, topic: str) -> int:
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "offsets"})
    try:
        return int(consumer.get_watermark_offsets(TopicPartition(topic, 0), timeout=60)[0])
    finally:
        consumer.close()


def write(settings: dict[str, str], entity: str, data: bytes) -> None:
    async def run() -> None:
        store = open_store(BrokerConfig(settings))
        await store.connect()
        path = znodes.config_path(entity)
        await make_paths(store, [path.rpartition("/")[0]])
        await set_or_create(store, path, data)
        await store.close()

    asyncio.run(run())


def again(settings: dict[str, str]) -> Broker:
    options = {name: value for name, value in settings.items() if name != "log.dirs"}
    broker = Broker(settings["log.dirs"], broker_id=0)
    broker._settings.update(options)
    return broker


def where(settings: dict[str, str]) -> list[str]:
    if "zookeeper.connect" in settings:
        return ["--offline", "--zookeeper", settings["zookeeper.connect"]]
    return ["--offline", "--data-dir", settings["log.dirs"]]


@pytest.mark.parametrize("kind", ENTITIES)
def test_wrong_values_are_named_and_removed_without_a_broker(
    settings: dict[str, str], kind: str
) -> None:
    write(settings, ENTITIES[kind], encode_config(WRONG))
    with again(settings) as broker:
        config = broker.server.parts.config
        assert {each.name for each in config.ignored} == IGNORED
        assert (config.message_max_bytes, config.num_partitions) == (2_000_000, 1)
        state = broker.server._state
        assert state is not None
        faults = [each for each in state.faults() if each.name == "dynamic-setting-ignored"]
        assert len(faults) == len(IGNORED)
        assert all(f"/config/{ENTITIES[kind]}" in each.problem for each in faults)
    ottla = CommandLine("127.0.0.1:1")
    name = ["0"] if kind == "broker" else []
    found = ottla.done("configs", "describe", kind, *name, "--json", *where(settings)).value
    assert {row["setting"]: row["value"] for row in found} == WRONG
    ottla.done("configs", "unset", kind, *name, *sorted(IGNORED), *where(settings))
    with again(settings) as broker:
        config = broker.server.parts.config
        assert config.ignored == []
        assert config.message_max_bytes == 2_000_000


@pytest.mark.parametrize("kind", ENTITIES)
def test_garbage_stops_the_start_until_it_is_removed(settings: dict[str, str], kind: str) -> None:
    """It may have restricted clients."""
    write(settings, ENTITIES[kind], b'{"version":2,"config":{}}')
    broker = again(settings)
    with pytest.raises(ConfigError, match=f"/config/{ENTITIES[kind]} holds no configuration of"):
        broker.start()
    broker.stop()
    ottla = CommandLine("127.0.0.1:1")
    name = ["0"] if kind == "broker" else []
    failed = ottla("configs", "unset", kind, *name, "max.connections", *where(settings))
    assert failed.code == 1
    assert "--all` empties it" in failed.errors
    ottla.done("configs", "unset", kind, *name, "--all", *where(settings))
    with again(settings) as broker:
        assert broker.server.parts.config.ignored == []


def test_a_running_broker_has_the_tree_for_itself(tmp_path: Path) -> None:
    with start_broker(tmp_path) as broker:
        path = str(broker.data_directory)
        offline = ["--offline", "--data-dir", path]
        failed = CommandLine("127.0.0.1:1")("configs", "describe", "cluster", *offline)
    assert failed.code == 1
    assert path in failed.errors


def test_the_options_of_the_command(tmp_path: Path) -> None:
    ottla = CommandLine("127.0.0.1:1")
    data = ["--data-dir", str(tmp_path)]
    for arguments, words in (
        (["describe", "cluster", *data], "need --offline"),
        (["unset", "cluster", "a", "--all"], "--all needs --offline"),
        (["unset", "cluster", "--offline", *data], "name the settings to remove"),
        (["unset", "cluster", "a", "--all", "--offline", *data], "name the settings to remove"),
        (["describe", "group", "g", "--offline", *data], "--offline is for topic, broker, cluster"),
        (["describe", "cluster", "--offline", "--zookeeper", "z:1", *data], "name one of"),
        (["describe", "cluster", "--offline", *data], "there is no ottla-znodes.db"),
    ):
        failed = ottla("configs", *arguments)
        assert failed.code != 0
        assert words in failed.errors, failed
    file = tmp_path / "server.properties"
    file.write_text(
        f"log.dirs={tmp_path / 'data'}\nlisteners=PLAINTEXT://127.0.0.1:{free_port()}\n"
    )
    with Broker(tmp_path / "data"):
        pass
    offline = ["--offline", "--config", str(file)]
    assert ottla.done("configs", "describe", "cluster", *offline).output == "Nothing is stored.\n"
    assert ottla.done("configs", "unset", "cluster", "--all", "--json", *offline).value == {
        "kind": "cluster",
        "name": "",
        "removed": [],
    }
    missing = ottla("configs", "unset", "cluster", "max.connections", *offline)
    assert "cluster has no max.connections stored" in missing.errors
    assert json.loads(ottla.done("configs", "describe", "cluster", "--json", *offline).output) == []


DAMAGED = {
    "garbage": b"\xff{",
    "another version": b'{"version":9,"config":{"retention.ms":"-1"}}',
    "a wrong value": encode_config({"retention.ms": "minus one"}),
}


@pytest.mark.parametrize("how", DAMAGED)
def test_records_stay_when_the_settings_of_their_topic_cannot_be_read(
    settings: dict[str, str], how: str
) -> None:
    """They are older than what the broker's default keeps, as those of `old`, which go."""
    given = {name.replace(".", "_"): text for name, text in settings.items() if name != "log.dirs"}
    quick = {"log_retention_check_interval_ms": "200", "log_initial_task_delay_ms": "200"}
    with Broker(settings["log.dirs"], broker_id=0, **given) as broker:
        for topic in ("kept", "old"):
            broker.create_topic(topic, retention_ms=-1)
            write_old_records(broker.bootstrap, topic)
    write(settings, "topics/kept", DAMAGED[how])
    write(settings, "topics/old", encode_config({}))
    with Broker(settings["log.dirs"], broker_id=0, **given, **quick) as broker:
        eventually(lambda: first_offset(broker.bootstrap, "old") > 0, seconds=60)
        assert first_offset(broker.bootstrap, "kept") == 0
        assert "/config/topics/kept" in broker.server.parts.unusable_znodes.found
