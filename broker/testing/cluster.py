"""Several brokers inside your own process, on a ZooKeeper of their own without Java.

    from ottla.testing import Cluster

    with Cluster(brokers=3) as cluster:
        producer = Producer({"bootstrap.servers": cluster.bootstrap, "acks": "all"})
        cluster[1].crash()

Each broker runs on a thread of its own, and so does the ZooKeeper (`ottla zookeeper`, in memory).
Topics have three replicas unless there are fewer brokers, and two of them must be in sync.
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Callable, Coroutine, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import wraps
from typing import TYPE_CHECKING, Any, ParamSpec, Self

from ottla.broker.cluster.metadata_cache import MetadataSnapshot
from ottla.broker.config.resource_rules import replica_settings
from ottla.broker.testing.block import RunsInBlock
from ottla.broker.testing.embedded import (
    START_SECONDS,
    STOP_SECONDS,
    Broker,
    settings_of,
)
from ottla.broker.testing.hints import (
    CLIENT_CONFIG,
    CLUSTER,
    CLUSTER_ATTRIBUTES,
    NO_DIRECTORY,
    OTHER_SETTINGS,
    PARTITION,
    TOPIC,
    missing,
    refuse,
    refuses,
)
from ottla.broker.testing.security import Library, Mechanism, Security
from ottla.controller.zookeeper_server.server import ZooKeeperServer
from ottla.protocol.errors import ErrorCode, KafkaError

TICK_TIME_MS = 500
_ELECTION_SECONDS = 5.0  # of a process whose threads share one interpreter, on a busy machine
_NOT_RUNNING = "the cluster is not running: call start(), or use it in a `with` block"
_NONE_RUNS = "no broker of the cluster is running: call start(), or that of one broker"
SESSION_TIMEOUT_MS = 6000
"""Shorter than Kafka's 18 s, so that tests of a crash need not wait; long enough for a process
whose threads share one interpreter."""


Parameters = ParamSpec("Parameters")


def _refuses_a_directory(function: Callable[Parameters, None]) -> Callable[Parameters, None]:
    """Decorate the constructor: a first argument that is a path is not the number of brokers."""

    @wraps(function)
    def checked(*arguments: Parameters.args, **named: Parameters.kwargs) -> None:
        __tracebackhide__ = True
        if len(arguments) > 1 and isinstance(arguments[1], str | os.PathLike):
            raise TypeError(f"Cluster({arguments[1]!r}): {NO_DIRECTORY}; write brokers=3")
        function(*arguments, **named)

    return checked


class Cluster(RunsInBlock):
    """Brokers with the ids 1, 2, ...: a context manager, or `start` and `stop`."""

    @_refuses_a_directory
    def __init__(
        self,
        brokers: int = 3,
        *,
        tls: bool = False,
        users: Mapping[str, str] | None = None,
        acls: Mapping[str, Iterable[str]] | None = None,
        **settings: object,
    ) -> None:
        """`settings` are those of every broker, by Kafka's names with `_` for `.`; `tls`, `users`
        and `acls` as for `Broker`. Raises TypeError for arguments that other tools have, and
        ValueError for a setting that the cluster chooses."""
        refuse(settings, CLUSTER)
        if isinstance(brokers, Mapping):
            refuse({"settings": brokers}, CLUSTER)
        if type(brokers) is not int:
            raise TypeError(f"brokers={brokers!r}: expected an int")
        if brokers < 1:
            raise ValueError("a cluster has at least one broker")
        self._count = brokers
        self._settings = settings_of(settings)
        _check_settings(self._settings, brokers)
        client_auth = self._settings.get("ssl.client.auth", "none")
        self._security = Security(tls, users, acls, client_certificate=client_auth != "none")
        self._tls = tls
        self._acls = acls
        self._pid = os.getpid()
        self._brokers: dict[int, Broker] = {}
        self._zookeeper: ZooKeeperServer | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._was_stopped = False

    def __repr__(self) -> str:
        """Each broker, for a test that failed."""
        return f"<Cluster of {self._count}: {self.brokers or 'not running'}>"

    if not TYPE_CHECKING:  # a type checker is to find them

        def __getattr__(self, name: str) -> Any:
            raise missing(self, name, CLUSTER_ATTRIBUTES)

    def __len__(self) -> int:
        """The number of brokers, also of those that are not running."""
        return self._count

    def __iter__(self) -> Iterator[Broker]:
        """The brokers in the order of their ids. Raises RuntimeError when the cluster is not
        running."""
        if not self._brokers:
            raise RuntimeError(_NOT_RUNNING)
        return iter(self.brokers)

    def __getitem__(self, broker_id: int) -> Broker:
        """A broker by its id, from 1 on. Raises RuntimeError when the cluster is not running,
        KeyError for another id and TypeError for one that is not a number."""
        if type(broker_id) is not int:
            raise TypeError(f"cluster[{broker_id!r}]: expected the id of a broker, an int")
        if not self._brokers:
            raise RuntimeError(_NOT_RUNNING)
        if broker_id not in self._brokers:
            raise KeyError(f"there is no broker {broker_id}: the ids are 1 to {self._count}")
        return self._brokers[broker_id]

    @property
    def brokers(self) -> list[Broker]:
        """The brokers in the order of their ids; none when the cluster is not running."""
        return list(self._brokers.values())

    @property
    def is_running(self) -> bool:
        """Whether a broker is running."""
        return bool(self._running())

    def _running(self) -> list[Broker]:
        return [broker for broker in self.brokers if broker.is_running]

    @property
    def bootstrap(self) -> str:
        """The addresses of all brokers, with commas. Raises RuntimeError when the cluster is not
        running."""
        if not self._brokers:
            raise RuntimeError(_NOT_RUNNING)
        return ",".join(broker.bootstrap for broker in self._brokers.values())

    @refuses(CLIENT_CONFIG, others=OTHER_SETTINGS)
    def client_config(
        self,
        library: Library = "confluent",
        user: str | None = None,
        mechanism: Mechanism = "PLAIN",
    ) -> dict[str, Any]:
        """As `Broker.client_config`, with the addresses of all brokers."""
        return self._security.client_config(library, self.bootstrap, user, mechanism)

    @property
    def zookeeper(self) -> str:
        """The address of the ZooKeeper, for tools that read the znodes. Raises RuntimeError when
        the cluster is not running."""
        if self._zookeeper is None:
            raise RuntimeError(_NOT_RUNNING)
        return f"127.0.0.1:{self._zookeeper.port}"

    def start(self) -> Self:
        """Start all brokers that do not run; return it when they serve clients and have the
        metadata of each other. After a stop it begins empty again.

        Raises ConfigError for a wrong setting, and RuntimeError when all brokers are running."""
        if self._thread is not None:
            if all(broker.is_running for broker in self.brokers):
                raise RuntimeError("the cluster is running")
            self.start_stopped()
            return self
        self._was_stopped = False
        zookeeper = self._zookeeper = ZooKeeperServer(tick_time_ms=TICK_TIME_MS)
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(
            target=self._loop.run_forever, name="ottla-zookeeper", daemon=True
        )
        self._thread.start()
        try:
            self._call(zookeeper.start(), START_SECONDS)
            common: dict[str, Any] = {
                "zookeeper.connect": self.zookeeper,
                "zookeeper.session.timeout.ms": SESSION_TIMEOUT_MS,
                **replica_settings(self._count),
                **self._settings,
            }
            # With the password of the brokers' own user, which is the same for all.
            security: dict[str, Any] = {"users": self._security.users or None, "acls": self._acls}
            self._brokers = {
                number: Broker(tls=self._tls, **security, **{**common, "broker.id": number})
                for number in range(1, self._count + 1)
            }
            with ThreadPoolExecutor(self._count) as pool:
                list(pool.map(Broker.start, self._brokers.values()))
            self._wait_until_complete()
        except BaseException:
            self.stop()
            raise
        return self

    def start_stopped(self) -> None:
        """Start the brokers that were stopped or have crashed; return when all know each other. A
        cluster that was stopped is started anew."""
        if os.getpid() != self._pid:
            return
        if self._was_stopped:
            self.start()
            return
        stopped = [broker for broker in self.brokers if not broker.is_running]
        for broker in stopped:
            broker.start()
        if stopped:
            self._wait_until_complete()

    def _wait_until_complete(self) -> None:
        for broker in self._brokers.values():
            if not broker.wait_for_metadata(self._is_complete):
                raise RuntimeError(
                    f"{broker!r} did not receive the metadata of the cluster in "
                    f"{START_SECONDS:.0f} s: its log says why"
                )

    def _is_complete(self, snapshot: MetadataSnapshot) -> bool:
        return len(snapshot.brokers) == self._count and snapshot.controller_id in self._brokers

    def stop(self) -> None:
        """Stop all brokers that run, then the ZooKeeper; all data is removed. In a forked child it
        does nothing: the cluster is its parent's."""
        if os.getpid() != self._pid:
            return
        with ThreadPoolExecutor(self._count) as pool:
            list(pool.map(Broker.stop, self._brokers.values()))
        self._brokers = {}
        loop, thread, zookeeper = self._loop, self._thread, self._zookeeper
        if loop is None or thread is None or zookeeper is None:
            return
        self._was_stopped = True
        self._call(zookeeper.stop(), STOP_SECONDS)
        self._loop = self._thread = self._zookeeper = None
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()

    @refuses(TOPIC, form="write create_topic('orders')")
    def create_topic(
        self,
        name: str,
        partitions: int | None = None,
        config: Mapping[str, object] | None = None,
        *,
        replication_factor: int = -1,
        **settings: object,
    ) -> None:
        """As `Broker.create_topic`, by the controller. Raises RuntimeError when no broker runs."""
        __tracebackhide__ = True
        # Its error has the message; another broker has the code of the controller's response only.
        self._controller().create_topic(
            name, partitions, config, replication_factor=replication_factor, **settings
        )

    def delete_topic(self, name: str) -> None:
        """As `Broker.delete_topic`, by the controller. Raises RuntimeError when no broker runs."""
        __tracebackhide__ = True
        self._controller().delete_topic(name)

    @refuses(PARTITION, form="write leader_of('orders')")
    def leader_of(self, topic: str, partition: int = 0) -> Broker:
        """The broker that leads a partition. After a crash it waits until the controller has
        elected another one, at most the timeout of the ZooKeeper session and some seconds.

        Raises KafkaError for a partition that does not exist or gets no leader, and RuntimeError
        when no broker runs."""
        __tracebackhide__ = True
        asked = self._any()
        asked.leader_id(topic, partition)  # of a partition that exists: waiting creates none
        found: list[Broker] = []

        def is_decided(snapshot: MetadataSnapshot) -> bool:
            known = (
                snapshot.topics[topic].partitions[partition] if topic in snapshot.topics else None
            )
            running = [number for number, each in self._brokers.items() if each.is_running]
            if known is not None and known.leader in running:
                found.append(self._brokers[known.leader])
            # Without a replica that runs, nobody can be elected.
            return bool(found) or known is None or not set(known.replicas) & set(running)

        asked.wait_for_metadata(is_decided, self._election_seconds())
        if not found:
            raise KafkaError(
                ErrorCode.LEADER_NOT_AVAILABLE, f"{topic}-{partition} has no leader that runs"
            )
        return found[0]

    def _election_seconds(self) -> float:
        """How long the loss of a leader may take: its session ends, and another one is elected."""
        timeout_ms = self._settings.get("zookeeper.session.timeout.ms", SESSION_TIMEOUT_MS)
        return int(timeout_ms) / 1000 + _ELECTION_SECONDS

    @refuses(PARTITION, form="write end_offset('orders')")
    def end_offset(self, topic: str, partition: int = 0) -> int:
        """The log end offset of a partition, on its leader: in a new topic, how many records were
        written. Raises as `leader_of`."""
        __tracebackhide__ = True
        return self.leader_of(topic, partition).end_offset(topic, partition)

    def _controller(self) -> Broker:
        """The running broker that is the controller, or any if none is now."""
        running = self._running()
        running.sort(key=lambda broker: not broker.server.parts.controller.is_active)
        return running[0] if running else self._any()

    def _any(self) -> Broker:
        running = self._running()
        if not running:
            raise RuntimeError(_NONE_RUNS if self._brokers else _NOT_RUNNING)
        return running[0]

    def _call(self, coroutine: Coroutine[Any, Any, None], seconds: float) -> None:
        assert self._loop is not None
        asyncio.run_coroutine_threadsafe(coroutine, self._loop).result(seconds)


def _check_settings(settings: Mapping[str, str], count: int) -> None:
    """Raise ValueError for settings that the cluster chooses, or that it cannot have."""
    for name in ("log.dir", "log.dirs"):
        if name in settings:
            raise ValueError(f"{name}: {NO_DIRECTORY}")
    if "broker.id" in settings:
        raise ValueError(f"broker.id={settings['broker.id']}: the ids are 1 to {count}")
    replicas = settings.get("default.replication.factor", "")
    if replicas.isdecimal() and int(replicas) > count:
        raise ValueError(
            f"default_replication_factor={replicas}: {count} brokers have at most {count} replicas "
            f"of a topic; write brokers={replicas}"
        )
