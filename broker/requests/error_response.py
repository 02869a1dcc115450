"""The response to a request whose handler raised an exception.

Most responses have one error code at the top level. The others have it in each row, and some have
changed from one to the other between versions.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

from ottla.broker.requests.error_map import error_code, error_message
from ottla.broker.requests.error_rows import BUILDERS
from ottla.broker.requests.request_channel import RequestContext
from ottla.protocol.message import Message
from ottla.protocol.registry import API

if TYPE_CHECKING:
    from ottla.protocol.messages.leader_and_isr import LeaderAndIsrRequest

_PRODUCE, _LEADER_AND_ISR, _FIND_COORDINATOR, _JOIN_GROUP, _ELECT_LEADERS = 0, 4, 10, 11, 43


def error_response(context: RequestContext, error: Exception) -> Message | None:
    """The response with the code of `error` in the layout of the request's API; None when there is
    none to send."""
    request = context.request
    if request is None:
        return None
    key, version = context.header.api_key, context.header.api_version
    if key == _PRODUCE and getattr(request, "acks", 1) == 0:
        context.close("a produce request with acks=0 failed")
        return None
    code = error_code(error)
    message = error_message(error)
    if key == _LEADER_AND_ISR:  # its rows are at another place in later versions
        from ottla.broker.requests.refused_requests import leader_and_isr_refused

        return leader_and_isr_refused(cast("LeaderAndIsrRequest", request), version, code)
    reply: Any = API[key].response()  # each API has fields of its own
    builder = BUILDERS.get(key)
    if builder is not None:
        builder(request, reply, code, message)
    if hasattr(reply, "error_code") and _has_top_level_code(key, version):
        reply.error_code = code
        if hasattr(reply, "error_message"):
            reply.error_message = message
        if key == _FIND_COORDINATOR:
            reply.node_id = reply.port = -1
        elif key == _JOIN_GROUP and version >= 7:
            reply.protocol_name = None  # before it is an empty name
    elif builder is None:
        raise error
    return cast(Message, reply)


def _has_top_level_code(key: int, version: int) -> bool:
    """Whether a version has a top-level error code. The encoder leaves it out of the others."""
    if key == _FIND_COORDINATOR:
        return version < 4
    return key != _ELECT_LEADERS or version >= 1
