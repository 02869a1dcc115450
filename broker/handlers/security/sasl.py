"""SaslHandshake (17), versions 0 and 1, SaslAuthenticate (36), versions 0 to 2, once authenticated.

Before authentication, `ottla.broker.security.sasl.session` handles all requests on SASL listeners.
Here SaslHandshake starts a re-authentication (KIP-368), or the response is ILLEGAL_SASL_STATE.
"""

from __future__ import annotations

from ottla.broker.requests.api_routes import ApiRoute
from ottla.broker.requests.request_channel import RequestContext
from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.protocol.message import Message
from ottla.protocol.messages.sasl_authenticate import (
    SaslAuthenticateRequest,
    SaslAuthenticateResponse,
)
from ottla.protocol.messages.sasl_handshake import SaslHandshakeRequest, SaslHandshakeResponse
from ottla.protocol.registry import ApiKey


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


ROUTES = (
    ApiRoute(ApiKey.SASL_HANDSHAKE, handshake, before_authentication=True),
    ApiRoute(ApiKey.SASL_AUTHENTICATE, authenticate, before_authentication=True),
)
