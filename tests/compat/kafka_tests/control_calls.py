"""Calls between brokers that tests make: the controller's connections, requests to it.

`parts` are all parts of a broker.
"""

from __future__ import annotations

from typing import Any

from ottla.protocol.messages.metadata import MetadataRequest


async def disconnect_controller(parts: Any, broker_id: int) -> bool:
    """Closes the connection of the active controller to a broker; whether there was one."""
    channels = parts.controller._lifecycle.channels
    sender = channels._senders[broker_id]
    connection = sender.connection
    if connection is not None:
        await connection.close()
    return connection is not None


async def ask_controller(parts: Any) -> str:
    """Sends a request to the active controller; the error, or an empty text."""
    controller_id = parts.metadata.snapshot.controller_id
    try:
        await parts.inter_broker_client.request(controller_id, MetadataRequest([]))
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return ""
