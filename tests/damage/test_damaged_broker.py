"""A broker of its own process, without ZooKeeper, starts on damaged files, or names the one."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

from tests.damage.damages import damage_file
from tests.damage.fetching import fetch_offsets
from tests.doubles.broker_process import BrokerProcess

RECORDS = 60
# A damage of a derived file costs no record, however it is damaged.
SUFFIXES = (".index", ".timeindex", ".snapshot", "leader-epoch-checkpoint")
ACTIONS = ("flip", "sign", "zeros", "garbage", "truncate", "directory", "dangling", "loop")
TOPICS = [f"{action}-{suffix.strip('.')}" for action in ACTIONS for suffix in SUFFIXES]
SETTINGS = {"segment.bytes": "1100", "index.interval.bytes": "150"}


@pytest.fixture(scope="module")
def intact(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The directory of a broker that was stopped cleanly."""
    directory = tmp_path_factory.mktemp("intact")
    broker = BrokerProcess(directory / "broker", {"num.partitions": "1"})
    broker.start()
    try:
        admin = AdminClient({"bootstrap.servers": broker.bootstrap})
        created = admin.create_topics([NewTopic(t, 1, 1, config=SETTINGS) for t in TOPICS])
        for future in created.values():
            future.result()
        producer = Producer({"bootstrap.servers": broker.bootstrap, "linger.ms": 0})
        for number in range(RECORDS):
            for topic in TOPICS:
                producer.produce(topic, b"value-%d" % number, partition=0)
            producer.flush()
        assert broker.stop() == 0
    finally:
        if broker.is_running:
            broker.kill()
    return broker.data_directory


@pytest.fixture
def broker(intact: Path, tmp_path: Path) -> Iterator[BrokerProcess]:
    """A broker on a copy, not started yet."""
    copy = BrokerProcess(tmp_path / "broker", {})
    copy.data_directory.parent.mkdir()
    shutil.copytree(intact, copy.data_directory)
    yield copy
    if copy.is_running:
        copy.kill()


@pytest.mark.parametrize("seed", [1, 2])
def test_derived_files(broker: BrokerProcess, seed: int) -> None:
    random = Random(seed)
    damages = {}
    for topic in TOPICS:
        action, _, suffix = topic.partition("-")
        files = [
            path
            for path in sorted((broker.data_directory / f"{topic}-0").iterdir())
            if path.name.endswith(suffix) and path.stat().st_size
        ]
        damages[topic] = damage_file(random, random.choice(files), suffix, action, running=False)
    for when in ("first", "second"):
        broker.start()
        for topic in TOPICS:
            served = fetch_offsets(broker.bootstrap, topic, RECORDS, max_bytes=400)
            expected = {number: b"value-%d" % number for number in range(RECORDS)}
            assert served.values == expected, f"{when} start: {damages[topic]}: {served.errors}"
        assert broker.stop() == 0
    log = broker.log()
    assert "Traceback" not in log
    assert "is offline" not in log


def _truncate(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:5000])


@pytest.mark.parametrize(
    ("name", "damage"),
    [
        ("meta.properties", lambda path: path.write_bytes(b"\x00\xff garbage")),
        ("meta.properties", lambda path: path.write_text("version=7\nbroker.id=1\n")),
        ("meta.properties", lambda path: path.write_text("version=0\nbroker.id=one\n")),
        ("meta.properties", lambda path: (path.unlink(), path.mkdir())),
        ("ottla-znodes.db", _truncate),
        ("ottla-znodes.db", lambda path: path.write_bytes(b"another file" * 1000)),
        ("ottla-znodes.db", lambda path: (path.unlink(), path.mkdir())),
    ],
)
def test_a_file_without_which_nothing_is_known(
    broker: BrokerProcess, name: str, damage: Callable[[Path], object]
) -> None:
    damage(broker.data_directory / name)
    with pytest.raises(AssertionError, match=r"the broker ended with [1-9]"):
        broker.start()
    log = broker.log()
    (line,) = [each for each in log.splitlines() if each.startswith("ottla: ")]
    assert f"{broker.data_directory}/{name}" in line
    assert "Traceback" not in log
