"""SaslHandshake (17), versions 0 and 1, and SaslAuthenticate (36), versions 0 to 2, of clients that
are let in already.

Before that, `ottla.broker.security.sasl.session` takes all that comes on listeners with SASL. Here
it is the beginning of an authentication again (KIP-368), or ILLEGAL_SASL_STATE.
"""

from __future__ import annotations

from ottla.broker.requests.request_channel import RequestContext
from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.protocol.message import Message
from ottla.protocol.messages.sasl_authenticate import (
    SaslAuthenticateRequest,
    SaslAuthenticateResponse,
)
from ottla.protocol.messages.sasl_handshake import SaslHandshakeRequest, SaslHandshakeResponse


def handshake(context: RequestContext, request: SaslHandshakeRequest) -> Message | None:
    session = context.connection.sasl
    if session is not None:
        try:
            return session.renew(context, request)
        except KafkaError:
            pass
    return SaslHandshakeResponse(error_code=ErrorCode.ILLEGAL_SASL_STATE)


def authenticate(
    context: RequestContext, request: SaslAuthenticateRequest
) -> SaslAuthenticateResponse:
    return SaslAuthenticateResponse(
        error_code=ErrorCode.ILLEGAL_SASL_STATE,
        error_message="SaslAuthenticate request received after successful authentication",
    )
