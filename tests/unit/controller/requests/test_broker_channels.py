"""One ordered request queue for each broker."""

from __future__ import annotations

import weakref
from collections.abc import AsyncIterator

import pytest

from ottla.controller.model import BrokerInfo
from ottla.controller.requests import broker_channels
from ottla.controller.requests.broker_channels import RETRY_BACKOFF_MS, QueuedBrokerChannels
from ottla.controller.tree.store import ConnectionLost
from ottla.protocol.message import Message
from ottla.protocol.messages.update_metadata import UpdateMetadataRequest, UpdateMetadataResponse
from tests.doubles.controller_cluster import broker_info, settle
from tests.doubles.controller_runtime import ManualRuntime


class LocalBroker:
    def __init__(self) -> None:
        self.handled: list[tuple[Message, int]] = []
        self.failures: list[Exception] = []

    def handle(self, request: Message, version: int) -> Message:
        if self.failures:
            raise self.failures.pop(0)
        self.handled.append((request, version))
        return UpdateMetadataResponse(error_code=len(self.handled))


class RemoteConnection:
    def __init__(self, remote: RemoteBroker) -> None:
        self.remote = remote
        self.closed = False

    async def request(self, request: Message, version: int, timeout_ms: int) -> Message:
        assert not self.closed
        assert timeout_ms == 30_000
        if self.remote.failures:
            raise self.remote.failures.pop(0)
        self.remote.received.append(request)
        return UpdateMetadataResponse(error_code=len(self.remote.received))

    async def close(self) -> None:
        self.closed = True
        raise OSError("closing fails as well")


class RemoteBroker:
    """Fails a given number of times, then works."""

    def __init__(self) -> None:
        self.received: list[Message] = []
        self.refusals: list[Exception] = []
        self.failures: list[Exception] = []
        self.connections: list[RemoteConnection] = []
        self.addresses: list[str] = []

    async def connect(self, broker: BrokerInfo, timeout_ms: int) -> RemoteConnection:
        assert broker.broker_id == 2
        self.addresses.append(broker.endpoints[0].host)
        if self.refusals:
            raise self.refusals.pop(0)
        self.connections.append(RemoteConnection(self))
        return self.connections[-1]


def request(number: int) -> UpdateMetadataRequest:
    return UpdateMetadataRequest(controller_epoch=number)


class Setup:
    def __init__(self) -> None:
        self.runtime = ManualRuntime()
        self.local = LocalBroker()
        self.remote = RemoteBroker()
        self.overflows: list[int] = []
        self.responses: list[int | None] = []
        self.channels = QueuedBrokerChannels(
            1,
            self.local,
            self.runtime,
            connect=self.remote.connect,
            on_overflow=self.overflows.append,
        )

    def responded(self, response: Message | None) -> None:
        assert response is None or isinstance(response, UpdateMetadataResponse)
        self.responses.append(None if response is None else response.error_code)

    def send(self, broker_id: int, number: int) -> None:
        self.channels.send(broker_id, request(number), 8, self.responded)


@pytest.fixture
async def setup() -> AsyncIterator[Setup]:
    made = Setup()
    made.channels.add_broker(broker_info(1))
    made.channels.add_broker(broker_info(2))
    yield made
    await made.runtime.close()
    assert made.runtime.failures == []


async def test_a_request_is_let_go_with_its_response(setup: Setup) -> None:
    """It may have the metadata of all partitions, and the next one may be far away."""

    class Watched(UpdateMetadataRequest):  # without slots, so that it may have a weak reference
        pass

    for broker_id in (1, 2):
        sent = Watched()
        reference = weakref.ref(sent)
        setup.channels.send(broker_id, sent, 8, setup.responded)
        del sent
        await settle()
        setup.local.handled.clear()
        setup.remote.received.clear()
        assert setup.responses.pop() is not None
        assert reference() is None


async def test_our_own_broker_is_called_directly(setup: Setup) -> None:
    setup.send(1, 1)
    setup.send(1, 2)
    assert setup.local.handled == []  # not from within the controller's own step
    await settle()
    assert setup.local.handled == [(request(1), 8), (request(2), 8)]
    assert setup.responses == [1, 2]
    assert setup.remote.connections == []


async def test_a_request_that_fails_in_our_own_broker_is_sent_again(setup: Setup) -> None:
    setup.local.failures = [ConnectionLost("", "ZooKeeper is away"), ConnectionLost("", "still")]
    setup.send(1, 1)
    setup.send(1, 2)
    for _ in range(2):
        await settle()
        assert setup.responses == []
        assert setup.runtime.next_due_in_ms() == RETRY_BACKOFF_MS
        setup.runtime.advance(RETRY_BACKOFF_MS)
    await settle()
    assert setup.local.handled == [(request(1), 8), (request(2), 8)]
    assert setup.responses == [1, 2]
    setup.send(1, 3)
    await settle()
    assert setup.responses == [1, 2, 3]


async def test_our_own_broker_is_removed_while_a_request_is_retried(setup: Setup) -> None:
    setup.local.failures = [ConnectionLost("", "ZooKeeper is away")]
    setup.send(1, 1)
    await settle()
    setup.channels.remove_broker(1)
    setup.runtime.advance(RETRY_BACKOFF_MS)
    await settle()
    assert setup.responses == [None]
    assert setup.local.handled == []


async def test_requests_keep_their_order_over_one_connection(setup: Setup) -> None:
    for number in range(5):
        setup.send(2, number)
    assert setup.channels.queued(2) == 5
    await settle()
    assert setup.remote.received == [request(number) for number in range(5)]
    assert setup.responses == [1, 2, 3, 4, 5]
    assert len(setup.remote.connections) == 1
    assert setup.channels.queued(2) == 0


async def test_failed_request_is_sent_again_over_a_new_connection(setup: Setup) -> None:
    setup.remote.refusals = [ConnectionRefusedError("no")]
    setup.remote.failures = [TimeoutError(), ConnectionResetError("gone")]
    setup.send(2, 1)
    setup.send(2, 2)
    for connections in (0, 1, 2):
        await settle()
        assert setup.responses == []
        assert len(setup.remote.connections) == connections
        assert setup.runtime.next_due_in_ms() == RETRY_BACKOFF_MS
        setup.runtime.advance(RETRY_BACKOFF_MS)
    await settle()
    assert setup.remote.received == [request(1), request(2)]
    assert setup.responses == [1, 2]
    assert [connection.closed for connection in setup.remote.connections] == [True, True, False]


async def test_a_response_that_cannot_be_used_does_not_end_the_line(
    setup: Setup, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(response: Message | None) -> None:
        raise KeyError("a row that is not expected")

    setup.channels.send(2, request(1), 8, fail)
    setup.send(2, 2)
    await settle()
    assert setup.remote.received == [request(1), request(2)]
    assert setup.responses == [2]
    assert "Unexpected error with the response of broker 2 to UpdateMetadata" in caplog.text


async def test_removed_broker_gets_nothing_more(setup: Setup) -> None:
    setup.remote.failures = [TimeoutError()]
    setup.send(2, 1)
    setup.send(2, 2)
    await settle()
    setup.channels.remove_broker(2)
    await settle()
    assert setup.responses == [None, None]
    setup.runtime.advance(RETRY_BACKOFF_MS)
    await settle()
    assert setup.remote.received == []
    setup.send(2, 3)
    assert setup.responses == [None, None, None]
    setup.channels.remove_broker(2)  # twice does no harm


async def test_broker_that_comes_back_starts_with_a_fresh_line(setup: Setup) -> None:
    setup.send(2, 1)
    await settle()
    setup.channels.remove_broker(2)
    setup.channels.add_broker(broker_info(2))
    setup.send(2, 2)
    await settle()
    assert setup.remote.received == [request(1), request(2)]
    assert len(setup.remote.connections) == 2


async def test_queue_that_grows_too_long_is_dropped_and_logged(
    setup: Setup, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(broker_channels, "MAX_QUEUED_REQUESTS", 3)
    setup.remote.failures = [TimeoutError()]
    for number in range(4):
        setup.send(2, number)
        await settle()
    assert setup.overflows == [2]
    assert setup.channels.queued(2) == 0
    # All that was dropped is known to be, but for the one in flight.
    assert setup.responses == [None] * 3
    setup.send(2, 9)
    setup.runtime.advance(RETRY_BACKOFF_MS)
    await settle()
    # The request in flight is completed; then comes what was sent after the overflow.
    assert setup.remote.received == [request(0), request(9)]
    assert setup.responses == [None, None, None, 1, 2]


async def test_a_broker_is_removed_after_its_line_overflowed(
    setup: Setup, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(broker_channels, "MAX_QUEUED_REQUESTS", 1)
    setup.remote.failures = [TimeoutError()]
    setup.send(2, 1)
    await settle()
    setup.send(2, 2)
    assert setup.responses == [None]
    setup.channels.remove_broker(2)
    assert setup.responses == [None, None]
    setup.runtime.advance(RETRY_BACKOFF_MS)
    await settle()
    assert setup.responses == [None, None]


async def test_controller_without_connector_reaches_no_other() -> None:
    runtime = ManualRuntime()
    channels = QueuedBrokerChannels(1, LocalBroker(), runtime)
    channels.add_broker(broker_info(2))
    responses: list[Message | None] = []
    channels.send(2, request(1), 8, responses.append)
    await settle()
    assert responses == []
    assert runtime.next_due_in_ms() == RETRY_BACKOFF_MS
    await runtime.close()


async def test_a_broker_with_another_address_gets_all_requests(setup: Setup) -> None:
    """It changes its listeners while requests to it wait, as for an election."""
    setup.remote.refusals = [OSError("refused")]
    setup.send(2, 1)
    setup.send(2, 2)
    await settle()
    moved = broker_info(2)
    moved = moved._replace(endpoints=(moved.endpoints[0]._replace(host="elsewhere"),))
    setup.channels.update_broker(moved)
    setup.channels.update_broker(broker_info(7))  # not registered any more
    setup.send(2, 3)
    setup.runtime.advance(RETRY_BACKOFF_MS)
    await settle()
    assert setup.remote.received == [request(1), request(2), request(3)]
    assert setup.responses == [1, 2, 3]
    assert setup.remote.addresses == ["host", "elsewhere"]
