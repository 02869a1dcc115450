"""The settings of each worker, and what is refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from ottla.broker.config.broker_config import BrokerConfig
from ottla.broker.config.errors import ConfigError
from ottla.broker.config.workers import (
    WorkerPlace,
    WorkersLeft,
    bootstrap_ports,
    check_no_worker_is_left,
    worker_count,
    worker_settings,
)

LISTENERS = "A://0.0.0.0:9092,B://0.0.0.0:29092"
TWO = {
    "listeners": LISTENERS,
    "listener.security.protocol.map": "A:PLAINTEXT,B:PLAINTEXT",
    "inter.broker.listener.name": "B",
    "advertised.listeners": "A://outside:19092,B://inside:29092",
}


def config(**settings: str) -> BrokerConfig:
    given = {name.replace("_", "."): text for name, text in settings.items()}
    return BrokerConfig({"broker.rack": "here", "zookeeper.connect": "zk:2181", **given})


def test_one_is_the_default() -> None:
    assert worker_count(BrokerConfig()) == 1


def test_the_first_worker_has_the_settings_as_they_are() -> None:
    assert worker_settings(config(ottla_workers="3", broker_id="7"), 0) == {}


def test_the_others_count_up() -> None:
    found = worker_settings(config(ottla_workers="3", broker_id="7", log_dirs="/a,/b"), 2)
    assert found == {
        "broker.id": "9",
        "node.id": "9",
        "listeners": "PLAINTEXT://:9094",
        "log.dirs": "/a/ottla-workers/2,/b/ottla-workers/2",
    }


def test_a_generated_id_is_generated_for_each() -> None:
    assert "broker.id" not in worker_settings(config(ottla_workers="2"), 1)


def test_mapped_ports_count_up_from_the_mapped_one() -> None:
    found = worker_settings(config(ottla_workers="2", **TWO), 1)
    assert found["listeners"] == "A://0.0.0.0:9093,B://0.0.0.0:29093"
    assert found["advertised.listeners"] == "A://outside:19093,B://inside:29093"


def test_listeners_of_a_worker_may_show_one_address() -> None:
    behind_proxy = {**TWO, "advertised.listeners": "A://outside:19092,B://outside:19092"}
    found = worker_settings(config(ottla_workers="3", **behind_proxy), 2)
    assert found["advertised.listeners"] == "A://outside:19094,B://outside:19094"


def test_listeners_that_show_one_address_show_one_of_each_worker() -> None:
    given = {**TWO, "advertised.listeners": "A://outside:9092,B://outside:9092"}
    found = worker_settings(
        config(ottla_workers="2", ottla_workers_ports="A:9300,B:9400", **given), 1
    )
    assert found["advertised.listeners"] == "A://outside:9300,B://outside:9300"


def test_listeners_of_both_families_share_the_ports_of_each_worker() -> None:
    families = {**TWO, "listeners": "A://127.0.0.1:9092,B://[::1]:9092"}
    given = config(ottla_workers="2", ottla_workers_ports="A:9300,B:9300", **families)
    assert worker_settings(given, 1)["listeners"] == "A://127.0.0.1:9300,B://[::1]:9300"
    assert bootstrap_ports(given) == {"A": 9192, "B": 9192}


def test_what_is_listed_is_used() -> None:
    given = config(
        ottla_workers="3",
        broker_id="7",
        ottla_workers_broker_ids="17,27",
        ottla_workers_log_dirs="/disks/{worker}/ottla",
        ottla_workers_ports="A:9292,B:9293,A:9392,B:9393",
        ottla_workers_bootstrap_ports="A:9000",
        **TWO,
    )
    found = worker_settings(given, 2)
    assert found["broker.id"] == "27"
    assert found["log.dirs"] == "/disks/2/ottla"
    assert found["listeners"] == "A://0.0.0.0:9392,B://0.0.0.0:9393"
    assert found["advertised.listeners"] == "A://outside:19094,B://inside:9393"
    assert bootstrap_ports(given) == {"A": 9000}


def test_bootstrap_ports() -> None:
    assert bootstrap_ports(config(ottla_workers="2", **TWO)) == {"A": 9192, "B": 29192}
    assert bootstrap_ports(config(ottla_workers="2", ottla_workers_bootstrap_ports="none")) == {}


def test_a_machine_without_zookeeper_has_one_replica_of_internal_topics() -> None:
    alone = BrokerConfig({"ottla.workers": "2", "transaction.state.log.min.isr": "2"})
    for number in (0, 1):
        found = worker_settings(alone, number)
        assert found["offsets.topic.replication.factor"] == "1"
        assert "transaction.state.log.min.isr" not in found
    assert "broker.rack" in worker_settings(alone, 0)


def test_a_worker_is_a_configuration_of_its_own() -> None:
    base = config(ottla_workers="2", broker_id="7")
    place = WorkerPlace(1, 2, "here", "/run", {}, None)
    made = base.for_worker(worker_settings(base, 1), place)
    assert made.broker_id == 8
    assert made.worker == place
    assert base.worker is None


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"ottla_workers": "many"}, "not a number from 1 to 64, nor auto"),
        ({"ottla_workers": "0"}, "not a number from 1 to 64"),
        ({"ottla_workers": "65"}, "not a number from 1 to 64"),
        ({"ottla_workers": "2", "listeners": "PLAINTEXT://:65535"}, "port 65536"),
        (
            {"ottla_workers": "2", "listeners": "PLAINTEXT://:9092,SSL://:9093"},
            "listener SSL of worker 0 and listener PLAINTEXT of worker 1 would have the same port",
        ),
        ({"ottla_workers": "3", "ottla_workers_ports": "9300"}, "worker 2 has none"),
        (
            {"ottla_workers": "2", **TWO, "ottla_workers_ports": "A:9300,B:9300"},
            "ottla.workers.ports: A://0.0.0.0:9300 and B://0.0.0.0:9300 use the same port",
        ),
        (
            {"ottla_workers": "2", **TWO, "ottla_workers_bootstrap_ports": "A:9000,B:9000"},
            "ottla.workers.bootstrap.ports: A://0.0.0.0:9000 and B://0.0.0.0:9000 use the same",
        ),
        (
            {"ottla_workers": "2", **TWO, "ottla_workers_bootstrap_ports": "A:9093"},
            "and the bootstrap port of listener A would have the same port 9093",
        ),
        (
            {
                "ottla_workers": "2",
                **TWO,
                "advertised.listeners": "A://outside:19092,B://outside:19093",
            },
            "listener B of worker 0 and listener A of worker 1 would both advertise outside:19093",
        ),
        (
            {"ottla_workers": "2", "advertised_listeners": "PLAINTEXT://outside:65535"},
            "port 65536 of worker 1 is above",
        ),
        ({"ottla_workers": "2", "ottla_workers_ports": "C:9300"}, "C is none of the listeners"),
        ({"ottla_workers": "2", "ottla_workers_ports": "x"}, "'x' has no port"),
        ({"ottla_workers": "2", "ottla_workers_bootstrap_ports": "1,2"}, "one is shared"),
        ({"ottla_workers": "2", "ottla_workers_bootstrap_ports": "9093"}, "the same port 9093"),
        ({"ottla_workers": "2", "ottla_workers_log_dirs": "/a"}, "/a needs {worker}"),
        (
            {"ottla_workers": "3", "broker_id": "1", "ottla_workers_broker_ids": "2"},
            "worker 2 has none",
        ),
        (
            {"ottla_workers": "2", "broker_id": "1", "ottla_workers_broker_ids": "1"},
            "a broker id of its own",
        ),
        (
            {"ottla_workers": "2", "broker_id": "1", "ottla_workers_broker_ids": "one"},
            "'one' is not a broker id",
        ),
    ],
)
def test_wrong_settings_are_named(settings: dict[str, str], words: str) -> None:
    with pytest.raises(ConfigError) as raised:
        config(**settings)
    assert words in str(raised.value)


def test_auto_is_a_number_of_workers() -> None:
    assert 1 <= worker_count(config(ottla_workers="auto")) <= 64


def test_directories_inside_of_a_log_directory_are_refused(tmp_path: Path) -> None:
    """Worker 0 would take `w-1` for a partition of the topic w, and set it aside."""
    (tmp_path / "link").symlink_to(tmp_path / "data")
    for pattern, words in {
        "data/w-{worker}": "/data of worker 0; name directories beside it",
        "link/w-{worker}": "/data of worker 0; name directories beside it",
        "data/w{worker}/..": "workers 0 and 1 would have the same directory",
    }.items():
        with pytest.raises(ConfigError, match=words):
            config(
                ottla_workers="2",
                log_dirs=str(tmp_path / "data"),
                ottla_workers_log_dirs=str(tmp_path / pattern),
            )


@pytest.mark.parametrize("pattern", ["", "{}/../other-{worker}/data"])
def test_fewer_workers_need_empty_directories(tmp_path: Path, pattern: str) -> None:
    settings = {"log.dirs": str(tmp_path / "data")}
    if pattern:
        settings["ottla.workers.log.dirs"] = pattern.replace("{}", str(tmp_path / "data"))
    three = BrokerConfig({"ottla.workers": "3", **settings})
    for number in (1, 2):
        folder = Path(worker_settings(three, number)["log.dirs"])
        (folder / "orders-0").mkdir(parents=True)
        (folder / f"gone-0.{'0' * 32}-delete").mkdir()
        (folder / "meta.properties").touch()
    check_no_worker_is_left(three)
    with pytest.raises(WorkersLeft) as raised:
        check_no_worker_is_left(BrokerConfig({"ottla.workers": "2", **settings}))
    assert "worker 2 has 1 partition(s), such as orders-0" in str(raised.value)
    assert "Start with --workers 3" in str(raised.value)
    (folder / "orders-0").rmdir()
    check_no_worker_is_left(BrokerConfig({"ottla.workers": "2", **settings}))
    with pytest.raises(WorkersLeft, match="worker 1 has"):
        check_no_worker_is_left(BrokerConfig(settings))
