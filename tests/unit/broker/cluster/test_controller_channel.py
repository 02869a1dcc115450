from __future__ import annotations

from typing import Any, cast

import pytest

from ottla.broker.cluster.broker_epoch import BrokerEpoch
from ottla.broker.cluster.controller_channel import ControllerChannel
from ottla.broker.cluster.metadata_cache import MetadataCache
from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.protocol.messages.alter_partition import AlterPartitionRequest, AlterPartitionResponse


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
        unconnected.check_connected()
    with pytest.raises(RuntimeError, match="connect was not called"):
        await unconnected.alter_partition(AlterPartitionRequest(), 3)


async def test_the_active_controller_of_this_process_is_called_with_the_current_epoch() -> None:
    epoch = BrokerEpoch()
    connected, controller = channel(epoch), Controller(is_active=True)
    connected.connect(cast(Any, controller))
    connected.check_connected()
    epoch.registered(5)
    await connected.alter_partition(AlterPartitionRequest(), 3)
    epoch.registered(8)
    await connected.alter_partition(AlterPartitionRequest(), 3)
    assert controller.epochs == [5, 8]


async def test_without_a_known_controller_the_error_is_not_controller() -> None:
    connected = channel(BrokerEpoch())
    connected.connect(cast(Any, Controller(is_active=False)))
    with pytest.raises(KafkaError) as raised:
        await connected.alter_partition(AlterPartitionRequest(), 3)
    assert raised.value.code == ErrorCode.NOT_CONTROLLER
