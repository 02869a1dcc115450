"""One broker for all workers of pytest-xdist: it runs in the process that controls the workers.

The workers reach its methods over a Unix socket with `multiprocessing.managers`; clients connect to
the broker itself. The broker is started when the first worker asks for it. A fault on it has to
name its topic or its client, since the tests of the other workers use the same broker.
"""

from __future__ import annotations

import secrets
import threading
from collections.abc import Callable, Mapping
from multiprocessing.managers import BaseManager
from typing import Any

from ottla.broker.testing.embedded import Broker
from ottla.broker.testing.faults import Fault, check_wait
from ottla.broker.testing.hints import (
    BROKER_ATTRIBUTES,
    FAULT_ATTRIBUTES,
    FAULT_KINDS,
    ONE_FAULT_ATTRIBUTES,
    PARTITION,
    REMOVE,
    WAIT,
    missing,
    refuse,
    refuses,
)

#: The kinds of faults that a worker may add.
KINDS = ("error", "delay", "drop", "disconnect")

_LEFT_OUT = (
    "the broker is shared by the workers of pytest-xdist (kafka_broker_shared): a test that stops "
    "or restarts a broker uses kafka_broker_factory"
)


class _Desk:
    """What the workers call, in the process that controls them."""

    def __init__(self, settings: Mapping[str, Any]) -> None:
        self._settings = settings
        self._lock = threading.Lock()
        self._broker: Broker | None = None
        self._faults: dict[int, Fault] = {}

    def broker(self) -> Broker:
        with self._lock:
            if self._broker is None:
                broker = Broker(**self._settings)
                broker.start()
                self._broker = broker
            return self._broker

    def stop(self) -> None:
        with self._lock:
            if self._broker is not None:
                self._broker.stop()

    def address(self) -> str:
        return self.broker().bootstrap

    def call(self, method: str, *arguments: Any, **named: Any) -> Any:
        """`create_topic`, `delete_topic`, `end_offset`, `client_config` or `__repr__`."""
        return getattr(self.broker(), method)(*arguments, **named)

    def add_fault(self, kind: str, *arguments: Any, **named: Any) -> int:
        """The number of a new fault."""
        fault = getattr(self.broker().faults, kind)(*arguments, **named)
        with self._lock:
            number = len(self._faults)
            self._faults[number] = fault
        return number

    def fault_hits(self, number: int) -> int:
        return self._faults[number].hits

    def wait_for_fault(self, number: int, hits: int, seconds: float) -> bool:
        return self._faults[number].wait(hits, seconds)

    def fault_text(self, number: int) -> str:
        return repr(self._faults[number])

    def remove_fault(self, number: int) -> None:
        self._faults[number].remove()


class _Manager(BaseManager):
    """Its one object is the desk."""


class SharedBrokerServer:
    """In the controlling process: serves the workers until `stop`."""

    def __init__(self, settings: Mapping[str, Any]) -> None:
        self._desk = _Desk(settings)
        self.key = secrets.token_hex(16)
        _Manager.register("desk", callable=lambda: self._desk, exposed=_EXPOSED)
        # Without an address: a Unix socket in a directory of multiprocessing, which removes it.
        server = _Manager(None, self.key.encode()).get_server()
        self.address = str(server.address)
        # A daemon: it ends with the process, after the last worker.
        threading.Thread(target=server.serve_forever, name="ottla-shared", daemon=True).start()

    def stop(self) -> None:
        """Stop the broker, if a worker asked for it."""
        self._desk.stop()


class SharedFault:
    """A `Fault` of the shared broker."""

    def __init__(self, desk: Any, number: int) -> None:
        self._desk = desk
        self._number = number

    def __repr__(self) -> str:
        return str(self._desk.fault_text(self._number))

    def __getattr__(self, name: str) -> Any:
        raise missing(self, name, ONE_FAULT_ATTRIBUTES)

    def __enter__(self) -> SharedFault:
        return self

    def __exit__(self, *_: object) -> None:
        self.remove()

    @property
    def hits(self) -> int:
        """How many requests it was applied to."""
        return int(self._desk.fault_hits(self._number))

    @refuses(WAIT)
    def wait(self, hits: int = 1, seconds: float = 30.0) -> bool:
        """As `Fault.wait`."""
        check_wait(hits, seconds)
        return bool(self._desk.wait_for_fault(self._number, hits, seconds))

    def remove(self) -> None:
        """End the fault."""
        self._desk.remove_fault(self._number)


class SharedFaults:
    """The faults that this worker added."""

    def __init__(self, desk: Any) -> None:
        self._desk = desk
        self._added: list[SharedFault] = []

    def __repr__(self) -> str:
        """Those that this worker added, for a test that failed."""
        return f"<Faults of this worker {self._added}>"

    def __getattr__(self, kind: str) -> Callable[..., SharedFault]:
        if kind not in KINDS:
            raise missing(self, kind, FAULT_ATTRIBUTES)

        def add(*arguments: Any, **named: Any) -> SharedFault:
            refuse(named, FAULT_KINDS[kind])
            if named.get("topic") is None and named.get("client_id") is None:
                raise ValueError(
                    "name the topic= or the client_id= of the fault: the broker is shared by the "
                    "workers (kafka_broker_shared), and other tests use it now"
                )
            fault = SharedFault(self._desk, self._desk.add_fault(kind, *arguments, **named))
            self._added.append(fault)
            return fault

        return add

    def remove(self, fault: SharedFault) -> None:
        """As `Faults.remove`."""
        __tracebackhide__ = True
        if not isinstance(fault, SharedFault):
            raise TypeError(f"remove({fault!r}): {REMOVE}")
        fault.remove()

    def clear(self) -> None:
        """Remove the faults of this worker."""
        for fault in self._added:
            fault.remove()
        self._added.clear()


class SharedBroker:
    """In a worker: what tests use of a `Broker`."""

    def __init__(self, address: str, key: str) -> None:
        _Manager.register("desk", exposed=_EXPOSED)
        manager = _Manager(address, key.encode())
        manager.connect()
        desk: Any = manager
        self._desk = desk.desk()
        #: The address for clients, "127.0.0.1:port".
        self.bootstrap: str = self._desk.address()
        self.faults = SharedFaults(self._desk)
        self.is_running = True

    def __repr__(self) -> str:
        return str(self._desk.call("__repr__"))

    def client_config(self, *arguments: Any, **named: Any) -> dict[str, Any]:
        """As `Broker.client_config`."""
        __tracebackhide__ = True
        found: dict[str, Any] = self._desk.call("client_config", *arguments, **named)
        return found

    def create_topic(self, *arguments: Any, **named: Any) -> None:
        """As `Broker.create_topic`."""
        self._desk.call("create_topic", *arguments, **named)

    def delete_topic(self, name: str) -> None:
        """As `Broker.delete_topic`."""
        self._desk.call("delete_topic", name)

    @refuses(PARTITION, form="write end_offset('orders')")
    def end_offset(self, topic: str, partition: int = 0) -> int:
        """As `Broker.end_offset`."""
        return int(self._desk.call("end_offset", topic, partition))

    def __getattr__(self, name: str) -> Any:
        if name in ("start", "stop", "pause", "crash", "restart", "server", "directory"):
            raise RuntimeError(_LEFT_OUT)
        raise missing(self, name, BROKER_ATTRIBUTES)


_EXPOSED = (
    *("address", "call", "add_fault", "fault_hits", "wait_for_fault", "fault_text"),
    "remove_fault",
)
