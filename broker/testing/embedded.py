"""A broker inside your own process, for tests and small tools. Its public name is `ottla.testing`.

    from ottla.testing import Broker

    with Broker(num_partitions=3) as broker:
        producer = Producer({"bootstrap.servers": broker.bootstrap})

The broker runs on a thread with an event loop of its own, on a free port of 127.0.0.1. Its data is
in a temporary directory that `stop` removes. Settings are Kafka's names with `_` for `.`. Several
brokers may run at once; each is a cluster of its own. `Broker.faults` injects failures and `crash`
ends the broker as `kill -9` does. docs/testing.md shows all of it, and the pytest fixtures.

A broker that is never stopped ends with the process, which also removes its temporary directory. It
belongs to the process that started it: a forked child may connect to it, and ends nothing of it.
"""

from __future__ import annotations

import asyncio
import difflib
import logging
import os
import re
import shutil
import tempfile
import threading
import weakref
from collections.abc import Callable, Coroutine, Iterable, Mapping
from contextlib import nullcontext, suppress
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self, TypeVar

from ottla.broker.cluster.metadata_cache import MetadataSnapshot
from ottla.broker.config.broker_config import BrokerConfig
from ottla.broker.config.errors import ConfigError
from ottla.broker.config.resource_rules import validate_topic_config
from ottla.broker.net.listener import PortInUse
from ottla.broker.runtime.event_loop import new_event_loop
from ottla.broker.server.broker_server import BrokerServer
from ottla.broker.testing.block import RunsInBlock
from ottla.broker.testing.faults import Faults, TopicsOfRequests
from ottla.broker.testing.hints import (
    BROKER,
    BROKER_ATTRIBUTES,
    CLIENT_CONFIG,
    OTHER_SETTINGS,
    PARTITION,
    RESTART,
    TOPIC,
    missing,
    refuse,
    refuses,
)
from ottla.broker.testing.security import Library, Mechanism, Security
from ottla.controller.admin.topic_admin import NewTopic
from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.storage.errors import DirectoryInUse

# A start takes a fraction of a second; one that takes longer than this hangs.
START_SECONDS = 30.0
STOP_SECONDS = 30.0

# The differences from a broker that is started as a process. Internal topics have one partition
# each: tests gain nothing from groups spread over 50, and creating 50 logs takes most of the time.
_DEFAULTS = {
    "offsets.topic.num.partitions": "1",
    "transaction.state.log.num.partitions": "1",
}

# An address where a directory is expected.
_ADDRESS = re.compile(r"(\w+://)?[\w.-]*:\d+(,.*)?")
_PORT_MAX = 65535

# Arguments of `create_topic`; others are settings of the topic.
_TOPIC_ARGUMENTS = ("partitions", "replication_factor", "config")

Result = TypeVar("Result")

# References to running brokers: a broker that is garbage-collected while it runs would lose its
# temporary directory.
_running: set[Broker] = set()

# Maximum number of topics that a text for people names.
_TOPICS_SHOWN = 5

NOT_RUNNING = "the broker is not running: call start(), or use it in a `with` block"
_IN_THE_PARENT = "the broker runs in the parent of this process: only its address is of use here"


def setting_name(name: str) -> str:
    """Kafka's name of a setting that is given as an argument: `_` is a dot, `__` is `_`. A name
    with a dot is left as it is, such as that of a listener with `_`."""
    if "." in name:
        return name
    return name.replace("__", "\0").replace("_", ".").replace("\0", "_")


def settings_of(named: Mapping[str, object]) -> dict[str, str]:
    """Settings by Kafka's names. Raises TypeError for one that is given twice, and for the name of
    a variable of an image."""
    __tracebackhide__ = True
    found: dict[str, str] = {}
    for name, value in named.items():
        if name.isupper():
            lower = name.removeprefix("KAFKA_").removeprefix("CFG_").lower()
            raise TypeError(f"{name}=...: write {lower}=..., as settings are named here")
        kafka_name = setting_name(name)
        if kafka_name in found:
            raise TypeError(f"the setting {kafka_name} is given twice")
        found[kafka_name] = _text(kafka_name, value)
    return found


class _KnownCrash(logging.Filter):
    """While a broker starts that its test has crashed: the line that its logs are recovered is
    written at INFO, since nobody has to find out why."""

    LOGGER = logging.getLogger("ottla.storage")

    def __init__(self, directory: Path) -> None:
        super().__init__()
        self._directory = os.path.abspath(directory)

    def filter(self, record: logging.LogRecord) -> bool:
        own = isinstance(record.args, tuple) and self._directory in record.args
        if own and "was not shut down cleanly" in record.msg:
            record.levelno, record.levelname = logging.INFO, "INFO"
        return self.LOGGER.isEnabledFor(record.levelno)

    def __enter__(self) -> None:
        self.LOGGER.addFilter(self)

    def __exit__(self, *_: object) -> None:
        self.LOGGER.removeFilter(self)


class Broker(RunsInBlock):
    """One broker on a thread of its own: a context manager, or `start` and `stop`.

    `async with` starts and stops it on a worker thread, so the caller's event loop is not blocked.
    The methods are blocking calls, most of some milliseconds; in a coroutine, `asyncio.to_thread`
    keeps them off the event loop. One thread at a time may start and stop a broker.
    """

    def __init__(
        self,
        directory: str | Path | None = None,
        *,
        port: int = 0,
        tls: bool = False,
        users: Mapping[str, str] | None = None,
        acls: Mapping[str, Iterable[str]] | None = None,
        **settings: object,
    ) -> None:
        """Keeps data in `directory`; by default in a temporary one that `stop` removes. A start
        after it begins with an empty one. `port` is that of the listener; by default a free one is
        chosen.

        `tls`: clients connect with TLS. `users`: names and passwords, with which they authenticate
        by SASL. `acls`: what each user may do, such as {"alice": ["READ topic:orders"]}; without it
        every user may do everything. `client_config` returns the settings for clients.

        `settings` are broker settings by Kafka's names with `_` for `.` (`__` for `_`). They are
        checked by `start`. Raises ValueError for wrong users or ACLs, and TypeError for arguments
        that other tools have."""
        refuse(settings, BROKER)
        given = _checked_directory(directory)
        self._wanted_port = _checked_port(port)
        self._settings = settings_of(settings)
        #: Who starts and stops the broker, for the errors: a sentence, if it is not the caller.
        self.owner = ""
        client_auth = self._settings.get("ssl.client.auth", "none")
        self._security = Security(tls, users, acls, client_certificate=client_auth != "none")
        _check_settings(self._settings, tls=tls)
        if "listeners" in self._settings and not self._security.is_default:
            raise ValueError("tls and users choose the listener: drop the setting listeners")
        if "listeners" in self._settings and port:
            raise ValueError(f"port={port} chooses the listener: drop the setting listeners")
        self._temporary = given is None
        if given is None:
            self._make_directory()
        else:
            self._directory = given
        self._port = 0
        self._server: BrokerServer | None = None
        self._faults: Faults | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._is_inherited = False  # from the parent process, which runs it
        self._ended = ""  # by which method, for the errors
        self._has_crashed = False

    def _make_directory(self) -> None:
        self._directory = Path(tempfile.mkdtemp(prefix="ottla-"))
        # Also when `stop` is never called: at the end of the process.
        self._remove_directory = weakref.finalize(self, _remove, self._directory, os.getpid())

    if not TYPE_CHECKING:  # a type checker is to find them

        def __getattr__(self, name: str) -> Any:
            raise missing(self, name, BROKER_ATTRIBUTES)

    def __getstate__(self) -> object:
        raise TypeError("a broker cannot be passed to another process: pass broker.bootstrap")

    def __repr__(self) -> str:
        """The address, the state and the topics with their records, for a test that failed."""
        if self._is_inherited:
            return f"<Broker {self._address()} of the parent process>"
        if self._server is None:
            return f"<Broker {self._address()} not running>"
        return f"<Broker {self._address()} running: {_topics_text(self._server)}>"

    def _address(self) -> str:
        return f"127.0.0.1:{self._port}" if self._port else "without an address"

    @property
    def bootstrap(self) -> str:
        """The address for clients, "127.0.0.1:port". A restart keeps the port. Raises RuntimeError
        before the first start."""
        if not self._port:
            raise RuntimeError(NOT_RUNNING)
        return f"127.0.0.1:{self._port}"

    @refuses(CLIENT_CONFIG, others=OTHER_SETTINGS)
    def client_config(
        self,
        library: Library = "confluent",
        user: str | None = None,
        mechanism: Mechanism = "PLAIN",
    ) -> dict[str, Any]:
        """The settings with which a client of this library connects: address, TLS, login.

        For "confluent" and "java" a dictionary of properties, for "aiokafka" and "kafka-python" the
        arguments of their classes. `user` is by default the first of `users`; "admin" may do
        everything. Raises RuntimeError before the first start, and ValueError for other names."""
        return self._security.client_config(library, self.bootstrap, user, mechanism)

    @property
    def is_running(self) -> bool:
        """Whether it was started, and neither stopped nor crashed since."""
        return self._server is not None

    @property
    def directory(self) -> Path:
        """The log directory (`log.dirs`)."""
        return self._directory

    @property
    def server(self) -> BrokerServer:
        """The running broker itself. Private: it may change in any version, and its event loop runs
        on another thread. Raises RuntimeError when the broker is not running."""
        if self._server is None:
            raise RuntimeError(self._why_not_running())
        return self._server

    @property
    def faults(self) -> Faults:
        """Injects failures. Faults end when the broker stops. Raises RuntimeError when the broker
        is not running."""
        if self._faults is None:
            raise RuntimeError(self._why_not_running())
        return self._faults

    def start(self) -> Self:
        """Start the broker; return it when it serves clients.

        Raises ConfigError for a wrong setting, PortInUse, DirectoryInUse or DirectoryUnwritable for
        a port or directory that it cannot have, ZooKeeperUnreachable when `zookeeper_connect` names
        no ZooKeeper, and RuntimeError when the broker is running."""
        __tracebackhide__ = True  # pytest shows the line of the test
        if self._thread is not None:
            raise RuntimeError(f"the broker is running{self.owner and f': {self.owner}'}")
        if self._is_inherited:
            raise RuntimeError(_IN_THE_PARENT)
        if self._temporary and not self._remove_directory.alive:
            self._make_directory()
        port = self._port or self._wanted_port
        try:
            config = BrokerConfig(
                {
                    "log.dirs": str(self._directory),
                    "listeners": f"{self._security.protocol}://127.0.0.1:{port}",
                    **_DEFAULTS,
                    **self._security.settings(),
                    **self._settings,
                }
            )
        except ConfigError as error:
            raise error.with_traceback(None) from None
        loop = self._loop = new_event_loop()
        # A daemon thread: a broker that is never stopped must not keep the process from ending.
        self._thread = threading.Thread(
            target=_run_loop, args=(loop,), name="ottla-broker", daemon=True
        )
        self._thread.start()
        try:
            # The test holds the interpreter for long, not the broker: no stalls are logged.
            server = BrokerServer(
                config, lambda: None, watches_stalls=False, new_users=self._security.new_users()
            )
            self._server = server
            with _KnownCrash(self._directory) if self._has_crashed else nullcontext():
                ports = self._call(server.start(), START_SECONDS)
            if self._security.acls:
                self._call(self._add_acls(server), START_SECONDS)
        except BaseException as error:
            self._end_thread()
            taken = self._taken(error, port)
            if taken is not None:
                raise taken from None
            raise
        _running.add(self)
        self._port = next(iter(ports.values()))
        parts = server.parts
        topics = TopicsOfRequests(parts.metadata, parts.fetch_sessions.cache)
        self._faults = Faults(loop, parts.request_channel, topics)
        return self

    def _taken(self, error: BaseException, port: int) -> Exception | None:
        """The error in words of the arguments, if another broker has the port or the directory."""
        if isinstance(error, PortInUse) and "listeners" not in self._settings:
            return PortInUse(
                f"port={port}: another broker or process listens on 127.0.0.1:{port}; stop it, or "
                "write another port=, or none for a free one"
            )
        if isinstance(error, DirectoryInUse) and "log.dirs" not in self._settings:
            return DirectoryInUse(
                f"directory={str(self._directory)!r}: another running broker or process uses it; "
                "stop it, or give each broker a directory of its own"
            )
        return None

    def start_stopped(self) -> None:
        """Start the broker if it was stopped or has crashed: for the fixtures, after a test."""
        if self._ended and not self.is_running and not self._is_inherited:
            self.start()

    def stop(self) -> None:
        """Stop the broker, if it is running. Data in a given directory is flushed and closed as in
        a controlled shutdown; a temporary directory is removed. In a forked child it does nothing:
        the broker is its parent's."""
        self._end("stopped", crash=self._temporary)
        if self._temporary and not self._is_inherited:
            self._remove_directory()

    def pause(self) -> None:
        """Shut the broker down cleanly and keep its data; `start` uses them and the same port."""
        self._end("paused", crash=False)

    def crash(self) -> None:
        """End the broker as `kill -9` does: connections break, nothing is flushed, and the next
        `start` recovers the logs. Acknowledged records are still there, as after a kill; after a
        power failure they might not be."""
        self._end("crashed", crash=True)

    @refuses(RESTART, "write restart() or restart(crash=True); it returns when clients are served")
    def restart(self, *, crash: bool = False) -> None:
        """Shut the broker down, or crash it, and start it with the same data and port."""
        self._end("stopped", crash=crash)
        self.start()

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
        """Create a topic and wait until all its partitions have a leader.

        `config` holds topic settings by Kafka's names, which are checked as for every client;
        `settings` are more of them, with `_` for `.`. The numbers of partitions and replicas are
        those of the broker's settings unless they are given. Raises KafkaError, whose `name` is for
        example "TOPIC_ALREADY_EXISTS", and TypeError for an argument of another type or name."""
        __tracebackhide__ = True  # pytest shows the line of the test
        for given in settings:
            matches = difflib.get_close_matches(given, _TOPIC_ARGUMENTS, n=1, cutoff=0.8)
            if matches:
                raise TypeError(f"{given}=...: did you mean {matches[0]}?")
        if not isinstance(name, str):
            raise TypeError(f"name={name!r}: expected a str")
        for what, number in {
            "partitions": partitions,
            "replication_factor": replication_factor,
        }.items():
            if number is not None and type(number) is not int:
                raise TypeError(f"{what}={number!r}: expected an int")
        if config is not None and not (
            isinstance(config, Mapping) and all(isinstance(key, str) for key in config)
        ):
            named = "; replication_factor= is a named argument" if isinstance(config, int) else ""
            raise TypeError(f"config={config!r}: expected {{name: value}}{named}")
        more = settings_of(settings)
        twice = more.keys() & (config or {}).keys()
        if twice:
            raise TypeError(f"the setting {min(twice)} is given twice")
        topic = NewTopic(
            name,
            -1 if partitions is None else partitions,
            replication_factor,
            None,
            {key: _text(key, value) for key, value in (config or {}).items()} | more,
        )
        self._call(self._create_topic(topic), START_SECONDS)

    async def _create_topic(self, topic: NewTopic) -> None:
        name = topic.name
        parts = self.server.parts
        broker = self.server.config
        if name not in parts.metadata.snapshot.topics:
            given = {key: text for key, text in (topic.configs or {}).items() if text is not None}
            validate_topic_config(
                given,
                broker.topic_defaults(),
                has_remote_storage=broker.remote_log_storage_system_enable,
            )
        partitions = broker.num_partitions if topic.num_partitions == -1 else topic.num_partitions
        if parts.controller.is_active:
            (row,) = await parts.controller.create_topics([topic])
            code, message = row.error
        else:
            code = (await parts.controller_channel.create_topics([topic]))[name]
            message = None
        if code:
            raise KafkaError(code, message or f"topic {name} was not created")

        def is_led(snapshot: MetadataSnapshot) -> bool:
            known = snapshot.topics.get(name)
            return (
                known is not None
                and len(known.partitions) == partitions
                and all(each.leader >= 0 for each in known.partitions.values())
            )

        if not await parts.metadata.wait_until(is_led, int(START_SECONDS * 1000)):
            raise KafkaError(ErrorCode.LEADER_NOT_AVAILABLE, f"topic {name} has no leader")

    def delete_topic(self, name: str) -> None:
        """Delete a topic and wait until the broker has removed it.

        Raises KafkaError, whose `name` is "UNKNOWN_TOPIC_OR_PARTITION" for a topic that does not
        exist, and "NOT_CONTROLLER" for a broker of a cluster that another one controls."""
        __tracebackhide__ = True
        if not isinstance(name, str):
            raise TypeError(f"name={name!r}: expected a str")
        self._call(self._delete_topic(name), START_SECONDS)

    async def _delete_topic(self, name: str) -> None:
        parts = self.server.parts
        if not parts.controller.is_active:
            raise KafkaError(
                ErrorCode.NOT_CONTROLLER, "another broker decides: call cluster.delete_topic"
            )
        code, message = (await parts.controller.delete_topics([name]))[name]
        if code:
            raise KafkaError(code, message or f"topic {name} was not deleted")
        if not await parts.metadata.wait_until(
            lambda snapshot: name not in snapshot.topics, int(START_SECONDS * 1000)
        ):
            raise KafkaError(ErrorCode.REQUEST_TIMED_OUT, f"topic {name} is still there")

    def wait_for_metadata(
        self, accepted: Callable[[MetadataSnapshot], bool], seconds: float = START_SECONDS
    ) -> bool:
        """Wait until the broker's metadata are `accepted`; False when the time is up first.
        Private, as `server` is."""
        waiting = self.server.parts.metadata.wait_until(accepted, int(seconds * 1000))
        return self._call(waiting, seconds + 1)

    @refuses(PARTITION, form="write end_offset('orders')")
    def end_offset(self, topic: str, partition: int = 0) -> int:
        """The log end offset of a partition: in a new topic, how many records were written.

        Raises KafkaError for a partition that does not exist, and TypeError for an argument of
        another type."""
        __tracebackhide__ = True
        if not isinstance(topic, str):
            raise TypeError(f"topic={topic!r}: expected a str")
        if type(partition) is not int:
            raise TypeError(f"partition={partition!r}: expected an int")
        return self._call(self._end_offset(topic, partition), START_SECONDS)

    async def _end_offset(self, topic: str, partition: int) -> int:
        hosted = self.server.parts.replica_manager.partitions
        found = hosted.get((topic, partition))
        if found is None or found.log is None:
            raise _unknown(topic, partition, self.server.parts.metadata.snapshot)
        return found.log.log_end_offset

    def leader_id(self, topic: str, partition: int) -> int:
        """The id of the leader in the broker's metadata, -1 without one. Raises KafkaError for a
        partition that does not exist. Private, as `server` is."""
        snapshot = self.server.parts.metadata.snapshot
        known = snapshot.topics.get(topic)
        if known is None or partition not in known.partitions:
            raise _unknown(topic, partition, snapshot)
        return known.partitions[partition].leader

    async def _add_acls(self, server: BrokerServer) -> None:
        store = server.parts.access_control.store
        assert store is not None
        for resource, acl in self._security.acls:
            await store.update(resource, frozenset((acl,)).union)

    def _why_not_running(self) -> str:
        if self._is_inherited:
            return _IN_THE_PARENT
        if self.owner:
            return f"the broker is not running, a test has {self._ended} it: {self.owner}"
        if self._ended:
            return f"the broker is not running, it was {self._ended}: call start()"
        return NOT_RUNNING

    def leave_to_parent(self) -> None:
        """Forget the broker in a forked child. Its copies of the sockets are closed: they would
        keep the port and the connections of a broker open that its parent has stopped."""
        server, self._server = self._server, None
        self._is_inherited = True
        self._faults = self._loop = self._thread = None
        if server is not None:
            server.parts.network_server.leave_to_parent()

    def _end(self, ended: str, *, crash: bool) -> None:
        _running.discard(self)
        server, self._server = self._server, None
        self._ended = ended
        self._has_crashed = crash
        faults, self._faults = self._faults, None
        if server is not None:
            try:
                if faults is not None:
                    faults.clear()
                self._call(server.stop(crash=crash), STOP_SECONDS)
            finally:
                self._end_thread()

    def _call(self, coroutine: Coroutine[Any, Any, Result], seconds: float) -> Result:
        __tracebackhide__ = True
        if self._loop is None:
            coroutine.close()
            raise RuntimeError(self._why_not_running())
        try:
            return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result(seconds)
        except KafkaError as error:
            # It is the caller's: the frames of the broker's thread say nothing about it.
            raise error.with_traceback(None) from None

    def _end_thread(self) -> None:
        loop, thread = self._loop, self._thread
        self._loop = self._thread = self._server = None
        assert loop is not None
        assert thread is not None
        loop.call_soon_threadsafe(loop.stop)
        thread.join()


def _leave_all_to_parent() -> None:
    """In a child after a fork, which has neither the threads nor the right to end the brokers."""
    for broker in list(_running):
        # Its thread may have been in the middle of a change of what is read here.
        with suppress(Exception):
            broker.leave_to_parent()
    _running.clear()


os.register_at_fork(after_in_child=_leave_all_to_parent)


def _checked_directory(directory: object) -> Path | None:
    if isinstance(directory, Mapping):
        refuse({"settings": directory}, BROKER)
    if directory is not None and not isinstance(directory, str | os.PathLike):
        raise TypeError(f"directory={directory!r}: expected a path; a port is Broker(port=29092)")
    if isinstance(directory, str) and (not directory or _ADDRESS.fullmatch(directory)):
        raise ValueError(
            f"directory={directory!r} is not a path: the address is in `bootstrap`, and "
            "Broker(port=29092) chooses the port"
        )
    return None if directory is None else Path(directory)


def _checked_port(port: object) -> int:
    if type(port) is not int:
        raise TypeError(f"port={port!r}: expected an int, such as Broker(port=29092)")
    if not 0 <= port <= _PORT_MAX:
        raise ValueError(f"port={port}: expected 1 to {_PORT_MAX}, or 0 for a free one")
    return port


def _check_settings(settings: Mapping[str, str], *, tls: bool) -> None:
    """Raise ValueError for settings whose meaning an argument or `Cluster` has."""
    for name in ("log.dir", "log.dirs"):
        if name in settings and "," not in settings[name]:  # several are a case of their own
            raise ValueError(
                f"{name}: the directory is the first argument, Broker({settings[name]!r})"
            )
    if settings.get("ssl.client.auth", "none") != "none" and not (tls or "listeners" in settings):
        raise ValueError("ssl_client_auth needs tls=True; client_config has the certificate then")
    replicas = settings.get("default.replication.factor", "1")
    if replicas not in ("1", "-1") and "zookeeper.connect" not in settings:
        raise ValueError(
            f"default_replication_factor={replicas}: one broker has one replica of a topic; "
            f"Cluster(brokers={replicas}) has several brokers"
        )


def _unknown(topic: str, partition: int, snapshot: MetadataSnapshot) -> KafkaError:
    text = f"this broker has no partition {partition} of the topic {topic!r}"
    if topic not in snapshot.topics:
        near = difflib.get_close_matches(topic, snapshot.topics, n=1)
        text = f"there is no topic {topic!r}"
        text += f": did you mean {near[0]}?" if near else ""
    return KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, text)


def _topics_text(server: BrokerServer) -> str:
    """The topics of a running broker, read from another thread than its own."""
    ends: dict[str, list[int]] = {}
    for (topic, _), partition in list(server.parts.replica_manager.partitions.items()):
        if topic and partition.log is not None and not topic.startswith("__"):
            ends.setdefault(topic, []).append(partition.log.log_end_offset)
    texts = [
        f"{topic} (partitions: {len(ends[topic])}, end offsets: {sum(ends[topic])})"
        for topic in list(ends)[: -_TOPICS_SHOWN - 1 : -1]  # the newest, which the test has made
    ]
    if len(ends) > _TOPICS_SHOWN:
        texts.append(f"{len(ends) - _TOPICS_SHOWN} more topics")
    return ", ".join(texts) or "no topics"


def _remove(directory: Path, pid: int) -> None:
    if os.getpid() != pid:
        return  # a forked child ends: the directory is its parent's
    # A broker that was never stopped may still write while its process ends.
    for _ in range(5):
        shutil.rmtree(directory, ignore_errors=True)
        if not directory.exists():
            return


def _text(name: str, value: object) -> str:
    """A value as in a properties file; a list or tuple of texts has commas. Raises TypeError for
    a duration, and for another collection."""
    __tracebackhide__ = True
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, list | tuple) and all(
        isinstance(each, str | os.PathLike) for each in value
    ):
        return ",".join(map(str, value))
    if isinstance(value, timedelta):
        milliseconds = value // timedelta(milliseconds=1)
        raise TypeError(
            f"{name}={value!r}: expected an int, in the unit that the setting has: "
            f"{milliseconds} for milliseconds"
        )
    if isinstance(value, list | tuple | set | frozenset):
        raise TypeError(f"{name}={value!r}: expected a text with commas, or a list of texts")
    return str(value)


def _run_loop(loop: asyncio.AbstractEventLoop) -> None:
    asyncio.set_event_loop(loop)
    try:
        loop.run_forever()
        left = asyncio.all_tasks(loop)
        for task in left:
            task.cancel()
        loop.run_until_complete(asyncio.gather(*left, return_exceptions=True))
        loop.run_until_complete(loop.shutdown_asyncgens())
        loop.run_until_complete(loop.shutdown_default_executor())
    finally:
        asyncio.set_event_loop(None)
        loop.close()
