"""Envelope (58), version 0: a forwarded request to a KRaft controller (KIP-590).

A broker in ZooKeeper mode lists the API and closes the connection of a client that sends it, as
Kafka does.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from ottla.broker.requests.api_routes import ApiRoute
from ottla.broker.requests.request_channel import DEFERRED, Deferred, RequestContext
from ottla.protocol.registry import ApiKey

if TYPE_CHECKING:
    from ottla.protocol.message import Message

logger = logging.getLogger("ottla.requests")


def handle_envelope(context: RequestContext, request: Message) -> Deferred:
    logger.info(
        "Closing connection of %s:%d: forwarded (Envelope) requests are not supported in "
        "ZooKeeper mode",
        context.client_host,
        context.client_port,
        extra={"peer": context.client_host},
    )
    context.close("an Envelope request is not supported in ZooKeeper mode")
    return DEFERRED


ROUTES = (ApiRoute(ApiKey.ENVELOPE, handle_envelope, check="unchecked"),)
