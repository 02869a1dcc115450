"""An ordered request queue from the controller to each broker.

Mirrors Kafka's `ControllerChannelManager`. A broker gets LeaderAndIsr, UpdateMetadata and
StopReplica requests one at a time, in the order they were sent; a failed request is retried over a
new connection until it succeeds or the broker is removed, because a broker that misses a request
keeps a stale state.

The local broker is called through a `LocalChannel`; connections to others are opened by a
`Connector` (the broker passes its `InterBrokerClient`).
"""

import logging
from collections import deque
from collections.abc import Awaitable, Callable, Iterable
from typing import TYPE_CHECKING, NamedTuple, Protocol

from ottla.controller.model import BrokerInfo
from ottla.controller.runtime import Cancellable, Runtime

if TYPE_CHECKING:
    import asyncio

    from ottla.protocol.message import Message

logger = logging.getLogger("ottla.controller")

RETRY_BACKOFF_MS = 100
"""Between attempts, as in Kafka's `RequestSendThread`."""
MAX_QUEUED_REQUESTS = 10_000
"""The bound of a queue, for a registered broker that does not respond. Above it the queue is
cleared and `on_overflow` makes the controller send the full state, which is smaller than ten
thousand changes."""

Callback = Callable[["Message | None"], None]
"""Called with the response, or with None if the request was dropped: the broker was removed, or its
queue overflowed."""


Encoded = Callable[[], Awaitable["Message"]]


class BrokerChannels(Protocol):
    """The channels as the controller uses them; no call blocks or awaits."""

    def add_broker(self, broker: BrokerInfo) -> None: ...

    def update_broker(self, broker: BrokerInfo) -> None:
        """The next connection uses the changed endpoints; the queue stays."""

    def remove_broker(self, broker_id: int) -> None:
        """Drop the queued requests and the one in flight; their callbacks get None."""

    def send(
        self,
        broker_id: int,
        request: "Message",
        version: int,
        callback: Callback,
        encoded: "Encoded | None" = None,
    ) -> None:
        """`encoded` returns the request as it is sent to a broker in another process, where it is
        encoded once for several brokers."""


class LocalChannel(Protocol):
    """The handlers of control requests of the local broker."""

    def handle(self, request: "Message", version: int) -> "Message | Awaitable[Message]": ...


class Connection(Protocol):
    """An open connection to a broker; one request at a time."""

    async def request(self, request: "Message", version: int, timeout_ms: int) -> "Message":
        """Raise on any failure; the connection is then closed by the caller."""

    async def close(self) -> None: ...


Connector = Callable[[BrokerInfo, int], Awaitable[Connection]]
"""Connect to a broker (with TLS and SASL if configured) within a timeout in ms, or raise."""


class _Item(NamedTuple):
    request: "Message"
    version: int
    callback: Callback
    encoded: "Encoded | None" = None


class _RequestSender:
    """The queue of a broker and the task that sends it; mirrors Kafka's `RequestSendThread`."""

    def __init__(self, channels: "QueuedBrokerChannels", broker: BrokerInfo) -> None:
        self.channels = channels
        self.broker = broker
        self.items: deque[_Item] = deque()
        self.in_flight: _Item | None = None
        self.stopped = False
        self.waiter: asyncio.Future[None] | None = None
        self.connection: Connection | None = None
        self.failure = ""  # the last failure that was logged
        self.task: Cancellable | None = None

    def put(self, item: _Item) -> None:
        if len(self.items) >= MAX_QUEUED_REQUESTS:
            logger.error(
                "Broker %d has %d queued requests of the controller; dropping them and sending the "
                "full state",
                self.broker.broker_id,
                len(self.items),
            )
            # The one in flight gets a response of its own.
            self._drop([each for each in self.items if each is not self.in_flight])
            self.items.clear()
            item.callback(None)
            self.channels.on_overflow(self.broker.broker_id)
            return
        self.items.append(item)
        self.notify()
        if self.task is None:
            self.task = self.channels.runtime.spawn(
                self.run(), name=f"controller-to-broker-{self.broker.broker_id}"
            )

    def notify(self) -> None:
        if self.waiter is not None and not self.waiter.done():
            self.waiter.set_result(None)

    def stop(self) -> None:
        self.stopped = True
        dropped, self.items = self.items, deque()
        if self.in_flight is not None and not any(each is self.in_flight for each in dropped):
            dropped.appendleft(self.in_flight)  # the queue has overflowed since it was sent
        self._drop(dropped)
        if self.task is not None:
            self.task.cancel()

    def _drop(self, items: Iterable[_Item]) -> None:
        for item in items:
            item.callback(None)

    async def run(self) -> None:
        """Send until `stop`."""
        import asyncio

        try:
            while not self.stopped:
                if not self.items:
                    self.waiter = asyncio.get_running_loop().create_future()
                    await self.waiter
                    continue
                item = self.in_flight = self.items[0]
                response = await self._send(item)
                self.in_flight = None
                # `put` may have cleared the queue meanwhile.
                if self.items and self.items[0] is item:
                    self.items.popleft()
                if not self.stopped:
                    self._respond(item, response)
                del item  # it may be large, and the next one may be far away
        finally:
            await self._disconnect()

    def _respond(self, item: _Item, response: "Message") -> None:
        try:
            item.callback(response)
        except Exception:
            # A defect, or a response that is not what it should be: the next requests are sent.
            logger.exception(
                "Unexpected error with the response of broker %d to %s",
                self.broker.broker_id,
                item.request.NAME,
            )

    async def _send(self, item: _Item) -> "Message":
        """The response; retries until there is one, also for the broker in this process."""
        while True:
            try:
                response = await self._send_once(item)
            except Exception as error:
                self._log_failure(item.request.NAME, str(error) or type(error).__name__)
            else:
                self._log_recovery()
                return response
            await self._disconnect()
            await self._pause()

    async def _send_once(self, item: _Item) -> "Message":
        local = self.channels.local
        if self.broker.broker_id == self.channels.local_broker_id and local is not None:
            handled = local.handle(item.request, item.version)
            return await handled if isinstance(handled, Awaitable) else handled
        if self.connection is None:
            self.connection = await self.channels.connect(self.broker, self.channels.timeout_ms)
        request = item.request if item.encoded is None else await item.encoded()
        return await self.connection.request(request, item.version, self.channels.timeout_ms)

    def _log_failure(self, what: str, failure: str) -> None:
        """Log a failure once, not for each attempt."""
        if failure != self.failure:
            self.failure = failure
            logger.warning(
                "Failed to send %s to broker %d (%s); retrying until it responds",
                what,
                self.broker.broker_id,
                failure,
                extra={"broker": self.broker.broker_id},
            )

    def _log_recovery(self) -> None:
        if self.failure:
            self.failure = ""
            broker_id = self.broker.broker_id
            logger.info("Broker %d responds again", broker_id, extra={"broker": broker_id})

    async def _pause(self) -> None:
        import asyncio

        waiter = asyncio.get_running_loop().create_future()

        def notify() -> None:
            if not waiter.done():
                waiter.set_result(None)

        timer = self.channels.runtime.call_later(RETRY_BACKOFF_MS, notify)
        try:
            await waiter
        finally:
            timer.cancel()

    async def _disconnect(self) -> None:
        connection, self.connection = self.connection, None
        if connection is not None:
            try:
                await connection.close()
            except Exception as error:
                logger.debug("Closing the connection to a broker failed: %s", error)


async def _no_connector(broker: BrokerInfo, timeout_ms: int) -> Connection:
    raise ConnectionError("this controller has no connector to other brokers")


class QueuedBrokerChannels:
    """`BrokerChannels` with a queue and a task for each broker."""

    def __init__(
        self,
        local_broker_id: int,
        local: LocalChannel | None,
        runtime: Runtime,
        *,
        connect: Connector = _no_connector,
        timeout_ms: int = 30_000,
        on_overflow: Callable[[int], None] = lambda _broker_id: None,
    ) -> None:
        self.local_broker_id = local_broker_id
        self.local = local
        self.runtime = runtime
        self.connect = connect
        self.timeout_ms = timeout_ms
        self.on_overflow = on_overflow
        self._senders: dict[int, _RequestSender] = {}

    def add_broker(self, broker: BrokerInfo) -> None:
        if broker.broker_id not in self._senders:
            self._senders[broker.broker_id] = _RequestSender(self, broker)

    def update_broker(self, broker: BrokerInfo) -> None:
        sender = self._senders.get(broker.broker_id)
        if sender is not None:
            sender.broker = broker

    def remove_broker(self, broker_id: int) -> None:
        sender = self._senders.pop(broker_id, None)
        if sender is not None:
            sender.stop()

    def send(
        self,
        broker_id: int,
        request: "Message",
        version: int,
        callback: Callback,
        encoded: Encoded | None = None,
    ) -> None:
        sender = self._senders.get(broker_id)
        if sender is None:
            logger.warning("Not sending %s to broker %d: it is offline", request.NAME, broker_id)
            callback(None)
            return
        sender.put(_Item(request, version, callback, encoded))

    def queued(self, broker_id: int) -> int:
        """Return the number of requests that are queued or in flight."""
        sender = self._senders.get(broker_id)
        return 0 if sender is None else len(sender.items)
