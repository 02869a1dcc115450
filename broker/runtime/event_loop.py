"""The event loop of a broker: uvloop where it is installed, asyncio's own where it is not.

uvloop is compiled, and not every platform has a wheel of it. Nothing but speed depends on it.
"""

from __future__ import annotations

import asyncio
import logging

logger = logging.getLogger("ottla.broker")


def new_event_loop() -> asyncio.AbstractEventLoop:
    """A loop of uvloop. Logs a line and returns one of asyncio if uvloop cannot be imported."""
    try:
        import uvloop
    except ImportError as error:
        logger.info(
            "uvloop is not available (%s): using the event loop of asyncio, which is slower", error
        )
        return asyncio.new_event_loop()
    return uvloop.new_event_loop()
