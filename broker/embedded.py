"""A broker inside your own process, for tests and small tools.

    from broker.embedded import Broker

    with Broker(num_partitions=3) as broker:
        producer = Producer({"bootstrap.servers": broker.bootstrap})

It runs on a thread with an event loop of its own, on a free port of this machine, with its data in
a temporary directory that goes when it ends. Settings are Kafka's names with `_` for `.`. Several
brokers may run at once; each is a cluster of its own.
"""

from __future__ import annotations

import asyncio
import shutil
import tempfile
import threading
from collections.abc import Coroutine
from pathlib import Path
from types import TracebackType
from typing import Any, TypeVar

from broker.config import BrokerConfig
from broker.server import BrokerServer

# A start takes a fraction of a second; longer means that something hangs.
START_SECONDS = 30.0
STOP_SECONDS = 30.0

_LISTENER = "PLAINTEXT"

Result = TypeVar("Result")


class Broker:
    """One broker on a thread. `start` and `stop`, or use it as a context manager."""

    def __init__(self, directory: str | Path | None = None, **settings: object) -> None:
        """Data is kept in `directory`, else in a temporary one that `stop` removes."""
        self._temporary = directory is None
        self._directory = Path(
            tempfile.mkdtemp(prefix="ottla-") if directory is None else directory
        )
        self._settings = {name.replace("_", "."): _text(each) for name, each in settings.items()}
        self._port = 0
        self._server: BrokerServer | None = None
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
    def directory(self) -> Path:
        """Where the data is."""
        return self._directory

    @property
    def server(self) -> BrokerServer:
        """The running broker, for those who look inside. Its loop is another thread's."""
        assert self._server is not None, "the broker is not running"
        return self._server

    def start(self) -> None:
        """Starts it; returns when it serves clients. Raises what the start raises."""
        assert self._thread is None, "the broker is running"
        config = BrokerConfig(
            {
                "log.dirs": str(self._directory),
                "listeners": f"{_LISTENER}://127.0.0.1:{self._port}",
                **self._settings,
            }
        )
        loop = self._loop = _new_loop()
        self._thread = threading.Thread(target=_run_loop, args=(loop,), name="ottla-broker")
        self._thread.start()
        self._server = BrokerServer(config)
        try:
            ports = self._call(self._server.start(), START_SECONDS)
        except BaseException:
            self._end_thread()
            raise
        self._port = next(iter(ports.values()))

    def stop(self) -> None:
        """Stops it cleanly and removes a temporary directory."""
        self.pause()
        if self._temporary:
            shutil.rmtree(self._directory, ignore_errors=True)

    def pause(self) -> None:
        """Stops it cleanly and keeps the data for a `start` on the same port."""
        server, self._server = self._server, None
        if server is not None:
            try:
                self._call(server.stop(), STOP_SECONDS)
            finally:
                self._end_thread()

    def restart(self) -> None:
        """Stops it and starts it again with the same data and port."""
        self.pause()
        self.start()

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
        loop.run_until_complete(loop.shutdown_asyncgens())
        loop.run_until_complete(loop.shutdown_default_executor())
    finally:
        asyncio.set_event_loop(None)
        loop.close()
