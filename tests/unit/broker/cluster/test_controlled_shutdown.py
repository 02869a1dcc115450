from __future__ import annotations

import asyncio
from typing import cast

from ottla.broker.cluster.controlled_shutdown import hand_over
from ottla.broker.cluster.controller_channel import ControllerChannel
from ottla.broker.config.broker_config import BrokerConfig


class Channel:
    """Returns these in turn: partitions that are left, or an exception."""

    def __init__(self, *responses: int | Exception | None) -> None:
        self.responses = list(responses)

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
    return asyncio.run(hand_over(BrokerConfig(given), cast(ControllerChannel, channel)))


def test_it_asks_once_when_everything_moves() -> None:
    assert outcome(Channel(0))


def test_it_retries_when_something_is_left_or_no_controller_responds() -> None:
    channel = Channel(2, ConnectionError("away"), 0)
    assert outcome(channel)
    assert channel.responses == []


def test_a_controller_that_says_nothing_is_not_waited_for() -> None:
    assert outcome(Channel(None, 0))


def test_it_gives_up_after_so_many_times() -> None:
    channel = Channel(1, 1, 1, 1)
    assert not outcome(channel, controlled_shutdown_max_retries="2")
    assert len(channel.responses) == 2
