"""A broker inside your own process, for tests and small tools.

    from ottla.broker.testing.embedded import Broker

    with Broker(num_partitions=3) as broker:
        producer = Producer({"bootstrap.servers": broker.bootstrap})

It runs on a thread with an event loop of its own, on a free port of this machine, with its data in
a temporary directory that goes when it ends. Settings are Kafka's names with `_` for `.`. Several
brokers may run at once; each is a cluster of its own. `ottla.broker.testing.faults` lets it fail
on request, and `crash` ends it as a kill would. docs/testing.md shows all of it, and the pytest
plugin.

A broker that nobody stops ends with the process, and its directory goes then.
"""

from __future__ import annotations

import asyncio
import shutil
import tempfile
import threading
import weakref
from collections.abc import Coroutine, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, TypeVar

from ottla.broker.cluster.metadata_cache import MetadataSnapshot
from ottla.broker.config.broker_config import BrokerConfig
from ottla.broker.server.broker_server import BrokerServer
from ottla.broker.testing.faults import Faults, TopicsOfRequests
from ottla.controller.admin.topic_admin import NewTopic
from ottla.protocol.errors import ErrorCode, KafkaError

# A start takes a fraction of a second; longer means that something hangs.
START_SECONDS = 30.0
STOP_SECONDS = 30.0

_LISTENER = "PLAINTEXT"

# What differs from a broker that is started as a process. The internal topics have one partition
# each: groups spread over fifty help nobody here, and fifty logs take most of the time.
_DEFAULTS = {
    "offsets.topic.num.partitions": "1",
    "transaction.state.log.num.partitions": "1",
}

Result = TypeVar("Result")

# What runs is kept, also when nobody else does: its directory must not go before it.
_running: set[Broker] = set()


class Broker:
    """One broker on a thread. `start` and `stop`, or use it as a context manager."""

    def __init__(self, directory: str | Path | None = None, **settings: object) -> None:
        """Data is kept in `directory`, else in a temporary one that `stop` removes."""
        self._temporary = directory is None
        self._directory = Path(
            tempfile.mkdtemp(prefix="ottla-") if directory is None else directory
        )
        if self._temporary:
            # Also when nobody calls `stop`: at the end of the process.
            self._remove_directory = weakref.finalize(self, _remove, self._directory)
        self._settings = {name.replace("_", "."): _text(each) for name, each in settings.items()}
        self._port = 0
        self._server: BrokerServer | None = None
        self._faults: Faults | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None

    def __enter__(self) -> Broker:
        self.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()

    @property
    def bootstrap(self) -> str:
        """host:port for clients."""
        return f"127.0.0.1:{self._port}"

    @property
    def is_running(self) -> bool:
        """Started and neither stopped nor crashed since."""
        return self._server is not None

    @property
    def directory(self) -> Path:
        """Where the data is."""
        return self._directory

    @property
    def server(self) -> BrokerServer:
        """The running broker, for those who look inside. Its loop is another thread's."""
        assert self._server is not None, "the broker is not running"
        return self._server

    @property
    def faults(self) -> Faults:
        """What the broker is to do wrong from now on. All faults end when it does."""
        assert self._faults is not None, "the broker is not running"
        return self._faults

    def start(self) -> None:
        """Starts it; returns when it serves clients. Raises what the start raises."""
        assert self._thread is None, "the broker is running"
        config = BrokerConfig(
            {
                "log.dirs": str(self._directory),
                "listeners": f"{_LISTENER}://127.0.0.1:{self._port}",
                **_DEFAULTS,
                **self._settings,
            }
        )
        loop = self._loop = _new_loop()
        # A daemon, so that a test that forgot it, or died, does not hang at its end.
        self._thread = threading.Thread(
            target=_run_loop, args=(loop,), name="ottla-broker", daemon=True
        )
        self._thread.start()
        # Of a test process whatever the test does would be logged as a stall.
        self._server = BrokerServer(config, lambda: None, watches_stalls=False)
        try:
            ports = self._call(self._server.start(), START_SECONDS)
        except BaseException:
            self._end_thread()
            raise
        _running.add(self)
        self._port = next(iter(ports.values()))
        parts = self._server.parts
        topics = TopicsOfRequests(parts.base.metadata, parts.network.sessions.cache)
        self._faults = Faults(loop, parts.network.request_channel, topics)

    def stop(self) -> None:
        """Stops it. Data in a directory of yours is closed cleanly, a temporary one is removed."""
        self._end(crash=self._temporary)
        if self._temporary:
            self._remove_directory()

    def pause(self) -> None:
        """Stops it cleanly and keeps the data for a `start` on the same port."""
        self._end(crash=False)

    def crash(self) -> None:
        """Ends it as a kill of its process would: connections break, nobody is told, nothing is
        flushed, and the next `start` recovers the data. Records it had taken are still there, as
        they are after a kill; those of a power failure would not be."""
        self._end(crash=True)

    def restart(self, *, crash: bool = False) -> None:
        """Stops it, or lets it crash, and starts it again with the same data and port."""
        self._end(crash=crash)
        self.start()

    def create_topic(
        self, name: str, partitions: int = 1, config: Mapping[str, object] | None = None
    ) -> None:
        """Creates a topic, with settings if given, and waits until all its partitions are led.

        Raises KafkaError, as when it is there already."""
        self._call(self._create_topic(name, partitions, config or {}), START_SECONDS)

    async def _create_topic(self, name: str, partitions: int, config: Mapping[str, object]) -> None:
        parts = self.server.parts
        texts = {key: _text(value) for key, value in config.items()}
        created = await parts.cluster.channel.create_topics(
            [NewTopic(name, partitions, 1, None, texts)]
        )
        if created[name]:
            raise KafkaError(created[name], f"topic {name} was not created")

        def is_led(snapshot: MetadataSnapshot) -> bool:
            known = snapshot.topics.get(name)
            return (
                known is not None
                and len(known.partitions) == partitions
                and all(each.leader >= 0 for each in known.partitions.values())
            )

        if not await parts.base.metadata.wait_until(is_led, int(START_SECONDS * 1000)):
            raise KafkaError(ErrorCode.LEADER_NOT_AVAILABLE, f"topic {name} got no leader")

    def end_offset(self, topic: str, partition: int = 0) -> int:
        """Where the next record of a partition goes: how many there have been in a new one."""
        return self._call(self._end_offset(topic, partition), START_SECONDS)

    async def _end_offset(self, topic: str, partition: int) -> int:
        hosted = self.server.parts.replicas.manager.partitions
        found = hosted.get((topic, partition))
        if found is None or found.log is None:
            raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"{topic}-{partition}")
        return found.log.log_end_offset

    def _end(self, *, crash: bool) -> None:
        _running.discard(self)
        server, self._server = self._server, None
        faults, self._faults = self._faults, None
        if server is not None:
            try:
                if faults is not None:
                    faults.clear()
                self._call(server.stop(crash=crash), STOP_SECONDS)
            finally:
                self._end_thread()

    def _call(self, coroutine: Coroutine[Any, Any, Result], seconds: float) -> Result:
        assert self._loop is not None
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result(seconds)

    def _end_thread(self) -> None:
        loop, thread = self._loop, self._thread
        self._loop = self._thread = self._server = None
        assert loop is not None
        assert thread is not None
        loop.call_soon_threadsafe(loop.stop)
        thread.join()


def _remove(directory: Path) -> None:
    # A broker that nobody stopped may still write while its process ends.
    for _ in range(5):
        shutil.rmtree(directory, ignore_errors=True)
        if not directory.exists():
            return


def _text(value: object) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    return str(value)


def _new_loop() -> asyncio.AbstractEventLoop:
    try:
        import uvloop
    except ImportError:
        return asyncio.new_event_loop()
    return uvloop.new_event_loop()


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
