"""DescribeDelegationToken of a cluster with very many tokens."""

from __future__ import annotations

import asyncio
from collections import Counter
from types import SimpleNamespace
from typing import Any, cast

from ottla.broker.handlers.security.delegation_tokens import DelegationTokenHandlers
from ottla.broker.requests.request_channel import RequestChannel
from ottla.broker.requests.request_context import (
    HandlerEntry,
    Principal,
    RequestContext,
    Route,
)
from ottla.controller.tree.znodes_security import TokenInformation
from ottla.protocol.headers import RequestHeader, decode_response
from ottla.protocol.messages.describe_delegation_token import (
    DescribeDelegationTokenRequest,
    DescribeDelegationTokenResponse,
)
from tests.doubles.pace import steps_per_turn

KEY, VERSION = 41, 3
TOKENS = 2_000


class Tokens:
    is_enabled = True

    def all(self) -> list[TokenInformation]:
        return [
            TokenInformation(f"token-{i}", f"User:u{i % 4}", "User:u0", (), 1, 2, 3)
            for i in range(TOKENS)
        ]

    def hmac(self, token_id: str) -> bytes:
        return token_id.encode()


class Peer:
    """A connection of u1, who may describe no token of others."""

    principal = Principal("User", "u1")
    client_host = "127.0.0.1"
    closed = False
    sasl = None
    listener = SimpleNamespace(security_protocol="SASL_PLAINTEXT")

    def __init__(self) -> None:
        self.sent: list[Any] = []

    def send_response(self, context: RequestContext, parts: list[Any]) -> None:
        self.sent.append(parts)


async def test_others_run_while_very_many_tokens_are_described() -> None:
    peer, turn = Peer(), 0
    decisions: Counter[int] = Counter()

    def allows(*_: Any) -> bool:
        decisions[turn] += 1
        return False

    handlers = DelegationTokenHandlers(cast("Any", Tokens()), allows)
    route = Route(HandlerEntry(KEY, "DescribeDelegationToken", 0, VERSION, handlers.describe))
    header = RequestHeader(KEY, VERSION, 1, "client")
    request = DescribeDelegationTokenRequest(owners=None)
    context = RequestContext(header, request, cast("Any", peer), route)
    with steps_per_turn(TOKENS // 4):
        RequestChannel([], lambda _, error: None).handle(context)
        while not peer.sent:
            turn += 1
            await asyncio.sleep(0)
    assert sum(decisions.values()) >= TOKENS
    assert max(decisions.values()) <= TOKENS // 2
    _, response = decode_response(b"".join(peer.sent[0])[4:], KEY, VERSION)
    assert isinstance(response, DescribeDelegationTokenResponse)
    names = {token.principal_name for token in response.tokens}
    assert (len(response.tokens), names) == (TOKENS // 4, {"u1"})
