"""Before a broker of a cluster stops: its partitions get other leaders (controlled shutdown)."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ottla.broker.cluster.controller_channel import ControllerChannel
    from ottla.broker.config.broker_config import BrokerConfig

logger = logging.getLogger("ottla.broker")


async def hand_over(config: BrokerConfig, channel: ControllerChannel) -> bool:
    """Asks the controller up to `controlled.shutdown.max.retries` times; whether all moved.

    A partition whose other replicas are not in sync stays, and has no leader while this broker is
    away: stopping continues all the same, as in Kafka.
    """
    for attempt in range(config.controlled_shutdown_max_retries):
        if attempt:
            await asyncio.sleep(config.controlled_shutdown_retry_backoff_ms / 1000)
        try:
            async with asyncio.timeout(config.controller_socket_timeout_ms / 1000):
                left = await channel.controlled_shutdown()
        except Exception as error:
            logger.warning(
                "Failed to send ControlledShutdown to the controller, attempt %d of %d: %s",
                attempt + 1,
                config.controlled_shutdown_max_retries,
                str(error) or type(error).__name__,
            )
            continue
        if not left:
            logger.info("Controlled shutdown succeeded: this broker leads no partition")
            return True
        logger.warning("Controlled shutdown: %d partitions have no other in-sync replica", left)
    logger.warning(
        "Proceeding to shut down although controlled shutdown failed: partitions without another "
        "in-sync replica have no leader until this broker is back"
    )
    return False
