"""Delegation tokens: short-lived logins that an authenticated client makes for others (KIP-48).

A token is an id and a secret, the id's HMAC under `delegation.token.secret.key`, which all brokers
share; what stands in the znode tree holds no secret. Clients log in with it by SCRAM. Mirrors
Kafka's `DelegationTokenManagerZk`: same znodes, same times, same codes.
"""

from __future__ import annotations

import asyncio
import base64
import hmac
import logging
from collections.abc import Callable, Iterable
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING

from ottla.broker.security.sasl.scram_credentials import ScramCredential, TokenLogin, from_password
from ottla.controller.tree.change_notifications import Announced, ChangeNotifications
from ottla.controller.tree.store import (
    CreateOp,
    DeleteOp,
    NodeExists,
    NoNode,
    NotPermitted,
    SetOp,
    StoreError,
    ZnodeStore,
    children_or_empty,
    get_permitted,
    make_paths,
)
from ottla.controller.tree.znode_json import MalformedZnode
from ottla.controller.tree.znodes_security import (
    DELEGATION_TOKEN_PATHS,
    DELEGATION_TOKENS,
    TOKEN_CHANGE_PREFIX,
    TOKEN_CHANGES,
    TokenInformation,
    decode_token,
    decode_token_change,
    encode_token,
    encode_token_change,
    token_path,
)
from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.protocol.uuids import random_uuid, uuid_to_string

if TYPE_CHECKING:
    from ottla.broker.config.broker_config import BrokerConfig
    from ottla.broker.config.unusable_znodes import UnusableZnodes
    from ottla.controller.runtime import Cancellable, Runtime

logger = logging.getLogger("ottla.security")


class DelegationTokens:
    """The tokens of the cluster. Loop only."""

    def __init__(
        self,
        config: BrokerConfig,
        store: ZnodeStore,
        runtime: Runtime,
        is_controller: Callable[[], bool],
        unusable: UnusableZnodes,
    ) -> None:
        """`is_controller`: whether this broker removes the tokens that have expired. `unusable`
        gets the znodes of tokens that cannot be read: nobody logs in with them."""
        self._unusable = unusable
        secret = config.delegation_token_secret_key or config.delegation_token_master_key
        self._secret = (secret or "").encode()
        self._config = config
        self._store = store
        self._runtime = runtime
        self._tokens: dict[str, TokenInformation] = {}
        self._ids: dict[bytes, str] = {}  # by secret
        self._credentials: dict[tuple[str, str], ScramCredential] = {}
        # Changes read a token, then write it: one at a time.
        self._changing = asyncio.Lock()
        self._notifications = ChangeNotifications(
            store, runtime, [TOKEN_CHANGES], self._reload, self._load_all, name="token-changes"
        )
        self._sweep: Cancellable | None = None
        self._is_controller = is_controller

    @property
    def is_enabled(self) -> bool:
        """Whether there is a secret to make tokens with."""
        return bool(self._secret)

    async def start(self) -> None:
        """Reads the tokens; changes are followed when it returns."""
        if not self.is_enabled:
            return
        await make_paths(self._store, DELEGATION_TOKEN_PATHS)
        await self._notifications.start()
        await self._load_all()
        self._schedule_sweep()

    def stop(self) -> None:
        self._notifications.stop()
        if self._sweep is not None:
            self._sweep.cancel()
            self._sweep = None

    # -- reading --------------------------------------------------------------------------------

    def all(self) -> list[TokenInformation]:
        return list(self._tokens.values())

    def hmac(self, token_id: str) -> bytes:
        """The secret of a token."""
        return hmac.digest(self._secret, token_id.encode(), "sha512")

    def id_of(self, secret: bytes) -> str | None:
        """The id of the token with this secret."""
        return self._ids.get(secret)

    def login(self, mechanism: str, token_id: str) -> TokenLogin | None:
        """What a client that logs in with a token is checked against."""
        token = self._tokens.get(token_id)
        if token is None:
            return None
        credential = self._credentials.get((mechanism, token_id))
        if credential is None:
            # Takes milliseconds, so only when a token is first used.
            password = base64.b64encode(self.hmac(token_id)).decode()
            credential = from_password(mechanism, password)
            self._credentials[mechanism, token_id] = credential
        return TokenLogin(credential, token.owner.partition(":")[2], token.expires_ms)

    # -- changing -------------------------------------------------------------------------------

    async def create(
        self, owner: str, requester: str, renewers: Iterable[str], lifetime_ms: int
    ) -> TokenInformation:
        """A new token, known to all brokers in a moment. Principals as "User:alice"; a lifetime
        that is not positive is the longest there is. Raises KafkaError."""
        self._require_enabled()
        config, now_ms = self._config, self._runtime.now_ms()
        longest_ms = config.delegation_token_max_lifetime_ms
        lifetime_ms = min(lifetime_ms, longest_ms) if lifetime_ms > 0 else longest_ms
        ends_ms = now_ms + lifetime_ms
        token = TokenInformation(
            token_id=uuid_to_string(random_uuid()),
            owner=owner,
            requester=requester,
            renewers=tuple(renewers),
            issued_ms=now_ms,
            expires_ms=min(ends_ms, now_ms + config.delegation_token_expiry_time_ms),
            max_lifetime_ends_ms=ends_ms,
        )
        path, data = token_path(token.token_id), encode_token(token)
        async with self._changing:
            await self._store.multi([CreateOp(path, data), _announcement(token.token_id)])
            self._keep(token)
        logger.info("Created delegation token %s for %s", token.token_id, owner)
        return token

    async def renew(self, principal: str, secret: bytes, period_ms: int) -> int:
        """Lets a token be valid for longer; returns until when. Raises KafkaError."""
        self._require_enabled()
        if period_ms < 0:
            period_ms = self._config.delegation_token_expiry_time_ms
        async with self._changing:
            token = self._changeable(principal, secret)
            return await self._set_end(self._unexpired(token), period_ms)

    async def expire(self, principal: str, secret: bytes, period_ms: int) -> int:
        """Sets the end of a token, a negative period for now; returns it. Raises KafkaError."""
        self._require_enabled()
        async with self._changing:
            token = self._changeable(principal, secret)
            if period_ms >= 0:
                return await self._set_end(self._unexpired(token), period_ms)
            await self._remove(token.token_id)
            logger.info("Expired delegation token %s of %s on request", token.token_id, token.owner)
            return self._runtime.now_ms()

    async def remove_expired(self) -> None:
        """Takes out of the tree what is not valid any more.

        The tree decides: another broker may have renewed a token, and the news be late. (In Kafka
        such a token is lost.)
        """
        async with self._changing:
            expired = [token.token_id for token in self.all() if self._has_expired(token)]
            for token_id in expired:
                await self._load([token_id])
                token = self._tokens.get(token_id)
                if token is not None and self._has_expired(token):
                    logger.info("delegation token %s of %s expired", token.token_id, token.owner)
                    await self._remove(token.token_id)

    def _require_enabled(self) -> None:
        if not self.is_enabled:
            raise KafkaError(ErrorCode.DELEGATION_TOKEN_AUTH_DISABLED)

    def _changeable(self, principal: str, secret: bytes) -> TokenInformation:
        """The token with this secret, if the principal may change it."""
        token_id = self._ids.get(bytes(secret))
        if token_id is None:
            raise KafkaError(ErrorCode.DELEGATION_TOKEN_NOT_FOUND)
        token = self._tokens[token_id]
        if principal != token.owner and principal not in token.renewers:
            raise KafkaError(ErrorCode.DELEGATION_TOKEN_OWNER_MISMATCH)
        return token

    def _unexpired(self, token: TokenInformation) -> TokenInformation:
        if self._has_expired(token):
            raise KafkaError(ErrorCode.DELEGATION_TOKEN_EXPIRED)
        return token

    def _has_expired(self, token: TokenInformation) -> bool:
        return min(token.max_lifetime_ends_ms, token.expires_ms) < self._runtime.now_ms()

    async def _set_end(self, token: TokenInformation, period_ms: int) -> int:
        end_ms = min(token.max_lifetime_ends_ms, self._runtime.now_ms() + period_ms)
        changed, path = token._replace(expires_ms=end_ms), token_path(token.token_id)
        try:
            await self._store.multi(
                [SetOp(path, encode_token(changed)), _announcement(token.token_id)]
            )
        except NoNode:  # Another broker has removed it: it must not come back.
            self._forget(token.token_id)
            raise KafkaError(ErrorCode.DELEGATION_TOKEN_NOT_FOUND) from None
        self._keep(changed)
        logger.info(
            "Renewed delegation token %s of %s until %d", token.token_id, token.owner, end_ms
        )
        return end_ms

    # -- the tree -------------------------------------------------------------------------------

    async def _remove(self, token_id: str) -> None:
        with suppress(NoNode):  # Another broker removed and announced it first.
            await self._store.multi([DeleteOp(token_path(token_id)), _announcement(token_id)])
        self._forget(token_id)

    def _keep(self, token: TokenInformation) -> None:
        self._tokens[token.token_id] = token
        self._ids[self.hmac(token.token_id)] = token.token_id

    def _forget(self, token_id: str) -> None:
        self._tokens.pop(token_id, None)
        self._ids.pop(self.hmac(token_id), None)
        for key in [key for key in self._credentials if key[1] == token_id]:
            del self._credentials[key]

    async def _load(self, token_ids: Iterable[str]) -> None:
        wanted = list(dict.fromkeys(token_ids))
        paths = [token_path(token_id) for token_id in wanted]
        nodes = await get_permitted(self._store, paths)
        for token_id, path, node in zip(wanted, paths, nodes, strict=True):
            try:
                if isinstance(node, NotPermitted):
                    raise node
                if node is None:
                    self._forget(token_id)
                else:
                    self._keep(decode_token(path, node[0])._replace(token_id=token_id))
            except (MalformedZnode, NotPermitted) as error:
                self._forget(token_id)
                effect = f"no client logs in with the delegation token {token_id}"
                self._unusable.report(path, str(error), effect, partial(self._load, [token_id]))
            else:
                self._unusable.repaired(path)

    async def _load_all(self) -> None:
        """Also those that were deleted since the last time."""
        await self._load([*await children_or_empty(self._store, DELEGATION_TOKENS), *self._tokens])

    async def _reload(self, announced: Announced) -> None:
        await self._load(decode_token_change(data) for _, data in announced)

    # -- the end of tokens ----------------------------------------------------------------------

    def _schedule_sweep(self) -> None:
        interval_ms = self._config.delegation_token_expiry_check_interval_ms
        self._sweep = self._runtime.call_later(interval_ms, self._begin_sweep)

    def _begin_sweep(self) -> None:
        try:
            if self._is_controller():
                self._runtime.spawn(self._sweep_once(), name="token-expiry")
        finally:
            self._schedule_sweep()

    async def _sweep_once(self) -> None:
        try:
            await self.remove_expired()
        except (StoreError, NodeExists) as error:
            logger.warning("Failed to remove expired delegation tokens, retrying: %s", error)


def _announcement(token_id: str) -> CreateOp:
    return CreateOp(TOKEN_CHANGE_PREFIX, encode_token_change(token_id), sequential=True)
