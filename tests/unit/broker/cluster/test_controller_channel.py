from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any, cast

import pytest

from ottla.broker.cluster.broker_epoch import BrokerEpoch
from ottla.broker.cluster.controller_channel import NO_CONTROLLER, ControllerChannel, hand_over
from ottla.broker.cluster.inter_broker_client import InterBrokerClient
from ottla.broker.cluster.metadata_cache import MetadataCache
from ottla.broker.config.broker_config import BrokerConfig
from ottla.protocol.client.errors import UnsupportedApiError
from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.protocol.messages.alter_partition import AlterPartitionRequest, AlterPartitionResponse
from ottla.protocol.messages.update_metadata import (
    UpdateMetadataBroker,
    UpdateMetadataEndpoint,
    UpdateMetadataRequest,
)
from tests.doubles.published_metadata import publish


class Controller:
    """The one in this process; notes the broker epochs of the requests."""

    def __init__(self, *, is_active: bool) -> None:
        self.is_active = is_active
        self.epochs: list[int] = []

    async def alter_partition(
        self, request: AlterPartitionRequest, version: int
    ) -> AlterPartitionResponse:
        self.epochs.append(request.broker_epoch)
        return AlterPartitionResponse()


def channel(epoch: BrokerEpoch) -> ControllerChannel:
    return ControllerChannel(1, epoch, MetadataCache(), cast(Any, None))


async def test_it_is_connected_before_use() -> None:
    unconnected = channel(BrokerEpoch())
    with pytest.raises(RuntimeError, match="connect was not called"):
        await unconnected.alter_partition(3, lambda version: AlterPartitionRequest())


async def test_the_active_controller_of_this_process_is_called_with_the_current_epoch() -> None:
    epoch = BrokerEpoch()
    connected, controller = channel(epoch), Controller(is_active=True)
    connected.connect(cast(Any, controller))
    epoch.registered(5)
    await connected.alter_partition(3, lambda version: AlterPartitionRequest())
    epoch.registered(8)
    await connected.alter_partition(3, lambda version: AlterPartitionRequest())
    assert controller.epochs == [5, 8]


async def test_without_a_known_controller_the_error_is_not_controller() -> None:
    connected = channel(BrokerEpoch())
    connected.connect(cast(Any, Controller(is_active=False)))
    with pytest.raises(KafkaError) as raised:
        await connected.alter_partition(3, lambda version: AlterPartitionRequest())
    assert raised.value.code == ErrorCode.NOT_CONTROLLER


class Connection:
    """To a controller elsewhere, with the versions it offers."""

    def __init__(self, versions: dict[int, tuple[int, int]]) -> None:
        self.versions = versions
        self.is_usable = True
        self.sent: list[tuple[int, AlterPartitionRequest]] = []

    async def request(
        self, request: AlterPartitionRequest, timeout_ms: int, *, version: int
    ) -> AlterPartitionResponse:
        self.sent.append((version, request))
        return AlterPartitionResponse()

    def close(self) -> None:
        self.is_usable = False


def to_remote(
    monkeypatch: pytest.MonkeyPatch, versions: dict[int, tuple[int, int]]
) -> tuple[ControllerChannel, Connection]:
    metadata = MetadataCache()
    publish(
        metadata,
        UpdateMetadataRequest(
            controller_id=2,
            live_brokers=[
                UpdateMetadataBroker(
                    id=2, endpoints=[UpdateMetadataEndpoint(9092, "host", "PLAINTEXT")]
                )
            ],
        ),
    )
    client = InterBrokerClient(metadata, "PLAINTEXT", "broker-1", 1_000)
    connection = Connection(versions)

    async def open_one(host: str, port: int, timeout_ms: int) -> Connection:
        return connection

    monkeypatch.setattr(client, "_open", open_one)
    remote = ControllerChannel(1, BrokerEpoch(5), metadata, client)
    remote.connect(cast(Any, Controller(is_active=False)))
    return remote, connection


@pytest.mark.parametrize(("offered", "used"), [(0, 0), (1, 1), (2, 2), (3, 3), (4, 3)])
async def test_the_version_is_the_newest_that_both_have(
    monkeypatch: pytest.MonkeyPatch, offered: int, used: int
) -> None:
    remote, connection = to_remote(monkeypatch, {56: (0, offered)})
    built: list[int] = []

    def build(version: int) -> AlterPartitionRequest:
        built.append(version)
        return AlterPartitionRequest()

    await remote.alter_partition(3, build)
    ((version, request),) = connection.sent
    assert built == [version] == [used]
    assert (request.broker_id, request.broker_epoch) == (1, 5)


@pytest.mark.parametrize("versions", [{}, {56: (2, 3)}])
async def test_without_a_common_version_nothing_is_sent(
    monkeypatch: pytest.MonkeyPatch, versions: dict[int, tuple[int, int]]
) -> None:
    """The connection is shared: closing it would fail transaction markers on their way."""
    remote, connection = to_remote(monkeypatch, versions)
    with pytest.raises(UnsupportedApiError):
        await remote.alter_partition(1, lambda version: AlterPartitionRequest())
    assert connection.sent == []
    assert connection.is_usable


class Channel:
    """Returns these in turn: partitions that are left, or an exception."""

    def __init__(self, *responses: int | Exception | None) -> None:
        self.responses = list(responses)
        self.alone = False
        self.known_controller = 2
        self.waits: list[tuple[int, int]] = []

    async def is_alone(self, timeout_ms: int) -> bool:
        return self.alone

    async def wait_for_other_controller(self, controller_id: int, timeout_ms: int) -> None:
        self.waits.append((controller_id, timeout_ms))

    async def controlled_shutdown(self) -> int:
        response = self.responses.pop(0)
        if response is None:
            await asyncio.sleep(3600)
        if isinstance(response, Exception):
            raise response
        return cast(int, response)


def outcome(channel: Channel, **settings: str) -> bool:
    given = {
        "controlled.shutdown.retry.backoff.ms": "1",
        "controller.socket.timeout.ms": "20",
        **{name.replace("_", "."): text for name, text in settings.items()},
    }
    work = hand_over(BrokerConfig(given), cast(ControllerChannel, channel), lambda: "")
    return asyncio.run(work)


def test_it_asks_once_when_everything_moves() -> None:
    assert outcome(Channel(0))


def test_it_retries_when_something_is_left_or_no_controller_responds() -> None:
    channel = Channel(2, ConnectionError("away"), 0)
    assert outcome(channel)
    assert channel.responses == []


def test_a_controller_that_says_nothing_is_not_waited_for() -> None:
    assert outcome(Channel(None, 0))


def test_the_last_broker_does_not_wait_for_others() -> None:
    channel = Channel(1, 1, 1)
    channel.alone = True
    assert not outcome(channel, controlled_shutdown_retry_backoff_ms="3600000")
    assert len(channel.responses) == 2


def test_a_broker_that_has_left_service_asks_nobody(caplog: pytest.LogCaptureFixture) -> None:
    """Its controller is of KRaft, or another broker has its id: retries would take 10 s."""
    channel = Channel()
    done = hand_over(BrokerConfig(), cast(ControllerChannel, channel), lambda: "KRaft took over")
    assert not asyncio.run(done)
    assert channel.waits == []
    assert "without controlled shutdown: KRaft took over. This broker has left" in caplog.text


def test_a_broker_that_no_controller_has_reached_asks_nobody(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Its advertised address leads nowhere: there is nothing to move, and retries take 10 s."""
    channel = Channel()
    channel.known_controller = NO_CONTROLLER
    assert not outcome(channel, controlled_shutdown_retry_backoff_ms="3600000")
    assert channel.waits == []
    assert "no controller has reached this broker, which leads no partition" in caplog.text


def test_it_stops_asking_when_it_has_left_service() -> None:
    channel = Channel(ConnectionError("away"))
    reasons = ["", "KRaft took over"]
    done = hand_over(
        BrokerConfig({"controlled.shutdown.retry.backoff.ms": "1"}),
        cast(ControllerChannel, channel),
        lambda: reasons.pop(0),
    )
    assert not asyncio.run(done)
    assert channel.responses == reasons == []


def test_after_a_failure_it_waits_for_another_controller_than_that_one() -> None:
    channel = Channel(ConnectionError("away"), ConnectionError("away"), 0)
    assert outcome(channel)
    assert channel.waits == [(2, 1), (2, 1)]


async def test_the_next_controller_is_known_by_its_metadata() -> None:
    metadata = MetadataCache()
    waiting = ControllerChannel(1, BrokerEpoch(5), metadata, cast(Any, None))
    publish(metadata, UpdateMetadataRequest(controller_id=2))
    assert waiting.known_controller == 2
    await waiting.wait_for_other_controller(2, 1)  # a timeout is no error
    next_one = asyncio.gather(waiting.wait_for_other_controller(2, 3_600_000))
    await asyncio.sleep(0)
    publish(metadata, UpdateMetadataRequest(controller_id=2, controller_epoch=1))
    await asyncio.sleep(0)
    assert not next_one.done()
    publish(metadata, UpdateMetadataRequest(controller_id=3, controller_epoch=2))
    await next_one


async def test_alone_is_a_broker_that_knows_no_other() -> None:
    metadata = MetadataCache()
    alone = ControllerChannel(1, BrokerEpoch(5), metadata, cast(Any, None))
    for brokers, is_alone in (((), False), ((1, 2), False), ((1,), True)):
        live = [UpdateMetadataBroker(id=each) for each in brokers]
        publish(metadata, UpdateMetadataRequest(controller_id=1, live_brokers=live))
        assert await alone.is_alone(1) == is_alone


async def test_alone_is_a_controller_beside_brokers_that_stop_too() -> None:
    """Each would wait for the other to go, as long as the retries take."""
    metadata = MetadataCache()
    live = [UpdateMetadataBroker(id=each) for each in (1, 2)]
    publish(metadata, UpdateMetadataRequest(controller_id=1, live_brokers=live))
    stopping = ControllerChannel(1, BrokerEpoch(5), metadata, cast(Any, None))
    controller = SimpleNamespace(is_everybody_stopping=False)
    stopping.connect(cast(Any, controller))
    assert not await stopping.is_alone(1)
    async with asyncio.timeout(5):
        waits = asyncio.gather(stopping.is_alone(3_600_000))
        await asyncio.sleep(0)
        controller.is_everybody_stopping = True
        assert await waits == [True]


def test_it_gives_up_after_so_many_times() -> None:
    channel = Channel(1, 1, 1, 1)
    assert not outcome(channel, controlled_shutdown_max_retries="2")
    assert len(channel.responses) == 2
