"""Several real brokers on one real ZooKeeper, for tests."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from tests.doubles.broker_process import BrokerProcess
from tests.doubles.zookeeper_process import ZooKeeperProcess, start_zookeeper

# A broker that is killed is noticed when its session ends: short, so that tests need not wait.
SESSION_TIMEOUT_MS = 3_000
LAG_TIME_MS = 2_000


class BrokerCluster:
    """The brokers by id."""

    def __init__(self, brokers: dict[int, BrokerProcess], zookeeper: ZooKeeperProcess) -> None:
        self.brokers = brokers
        self.zookeeper = zookeeper

    @property
    def bootstrap(self) -> str:
        """The addresses of all brokers, for clients."""
        return ",".join(broker.bootstrap for broker in self.brokers.values())

    def __getitem__(self, broker_id: int) -> BrokerProcess:
        return self.brokers[broker_id]

    def start_all(self) -> None:
        """Starts those that are down: a test that failed must not fail the next."""
        for broker in self.brokers.values():
            if not broker.is_running:
                broker.start()

    def stop_all(self) -> None:
        """Stops all, one after the other."""
        for broker in self.brokers.values():
            broker.stop()

    def copy_zookeeper(self, target: Path) -> None:
        """A backup of ZooKeeper's data, which stops meanwhile."""
        self.zookeeper.stop()
        shutil.copytree(self.zookeeper.directory, target)
        self.zookeeper.start()

    def exchange_zookeeper(self, other: Path, kept: Path) -> None:
        """Starts ZooKeeper on other data; those that it had are `kept`."""
        self.zookeeper.stop()
        self.zookeeper.directory.rename(kept)
        other.rename(self.zookeeper.directory)
        self.zookeeper.start()


@contextmanager
def start_cluster(
    directory: Path,
    count: int = 3,
    each: Callable[[int], Mapping[str, str]] = lambda broker_id: {},
    kind: type[BrokerProcess] = BrokerProcess,
    **settings: object,
) -> Iterator[BrokerCluster]:
    """`count` started brokers with the ids 1, 2, ...; all ended when the block ends. `each` gives
    the settings of a single one; those of `kind` may be brokers of Kafka."""
    texts = {name.replace("_", "."): str(value) for name, value in settings.items()}
    with start_zookeeper(directory / "zookeeper") as zookeeper:
        common = {
            "zookeeper.connect": zookeeper.connect,
            "zookeeper.session.timeout.ms": str(SESSION_TIMEOUT_MS),
            "replica.lag.time.max.ms": str(LAG_TIME_MS),
            "group.initial.rebalance.delay.ms": "0",
            "offsets.topic.num.partitions": "5",
            **texts,
        }
        brokers = {
            broker_id: kind(
                directory / f"broker-{broker_id}",
                {"broker.id": str(broker_id), **common, **each(broker_id)},
            )
            for broker_id in range(1, count + 1)
        }
        try:
            for broker in brokers.values():
                broker.start()
            yield BrokerCluster(brokers, zookeeper)
        finally:
            for broker in brokers.values():
                if broker.is_running:
                    broker.kill()
