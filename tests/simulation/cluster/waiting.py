"""What troubles wait for: a condition, or what a client does."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any, TypeVar

from ottla.protocol.client.errors import ClientError
from ottla.protocol.errors import KafkaError

if TYPE_CHECKING:
    from tests.simulation.cluster.world import World

POLL_SECONDS = 0.05
# Far more than a client needs to hear of what the troubles of that time have done.
CLIENT_SECONDS = 300

T = TypeVar("T")


async def until(condition: Callable[[], bool], seconds: float) -> bool:
    """Waits for a condition; whether it holds at last."""
    for _ in range(int(seconds / POLL_SECONDS)):
        if condition():
            return True
        await asyncio.sleep(POLL_SECONDS)
    return condition()


async def of_client(world: World, work: Coroutine[Any, Any, T]) -> T | None:
    """What a client does, in its process; None when it has failed. It has to end."""
    task = world.loop.create_task(work, context=world.clients.context)
    try:
        async with asyncio.timeout(CLIENT_SECONDS):
            return await task
    except (ClientError, KafkaError):
        pass
    except TimeoutError:
        world.complain(f"{work.__qualname__} does not end within {CLIENT_SECONDS} s")
    return None
