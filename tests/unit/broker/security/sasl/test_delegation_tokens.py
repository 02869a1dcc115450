"""Delegation tokens in the tree: made, renewed, ended, followed by every broker."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import hmac
from collections.abc import Awaitable, Callable

import pytest

from ottla.broker.config.broker_config import BrokerConfig
from ottla.broker.config.unusable_znodes import UnusableZnodes
from ottla.broker.runtime.tasks import spawn
from ottla.broker.security.sasl import scram_credentials
from ottla.broker.security.sasl.delegation_tokens import DelegationTokens
from ottla.controller.runtime import LoopRuntime
from ottla.controller.tree.embedded_store import EmbeddedStore
from ottla.controller.tree.znodes_security import TOKEN_CHANGE_PREFIX, token_path
from ottla.protocol.errors import ErrorCode, KafkaError
from tests.doubles.eventually import eventually_async
from tests.doubles.znode_entities import delete_unread

DAY_MS = 24 * 3_600_000
ANNA, BOB, CARL = "User:anna", "User:bob", "User:carl"


class Runtime(LoopRuntime):
    """A clock that tests turn."""

    def __init__(self) -> None:
        super().__init__(spawn)
        self.time_ms = 1_000_000

    def now_ms(self) -> int:
        return self.time_ms


async def opened(
    store: EmbeddedStore,
    runtime: Runtime | None = None,
    *,
    is_controller: Callable[[], bool] = lambda: False,
    **settings: str,
) -> DelegationTokens:
    given = {"delegation.token.secret.key": "secret"}
    given |= {name.replace("_", "."): text for name, text in settings.items()}
    tokens = DelegationTokens(
        BrokerConfig(given), store, runtime or Runtime(), is_controller, UnusableZnodes()
    )
    await tokens.start()
    return tokens


async def refused(awaitable: Awaitable[object]) -> int:
    with pytest.raises(KafkaError) as raised:
        await awaitable
    return raised.value.code


async def connected() -> EmbeddedStore:
    store = EmbeddedStore(None)
    await store.connect()
    return store


async def test_all_tokens_are_read_again_when_changes_were_missed() -> None:
    store = await connected()
    tokens = await opened(store)
    token = await tokens.create(ANNA, BOB, [CARL], 0)
    await store.delete(token_path(token.token_id))
    await delete_unread(store, TOKEN_CHANGE_PREFIX)
    await eventually_async(lambda: tokens.all() == [])
    assert tokens.login("SCRAM-SHA-256", token.token_id) is None
    tokens.stop()
    await store.close()


async def test_a_token_is_known_to_every_broker_and_serves_as_a_login() -> None:
    store = await connected()
    one, other = await opened(store), await opened(store)
    token = await one.create(ANNA, BOB, [CARL], 0)
    assert (token.issued_ms, token.expires_ms) == (1_000_000, 1_000_000 + DAY_MS)
    assert token.max_lifetime_ends_ms == 1_000_000 + 7 * DAY_MS
    secret = one.hmac(token.token_id)
    assert secret == hmac.digest(b"secret", token.token_id.encode(), "sha512")
    await eventually_async(lambda: other.all() == [token])
    login = other.login("SCRAM-SHA-256", token.token_id)
    assert login is not None
    assert (login.owner, login.expires_at_ms) == ("anna", token.expires_ms)
    password = base64.b64encode(secret).decode()
    again = scram_credentials.from_password("SCRAM-SHA-256", password, salt=login.credential.salt)
    assert login.credential == again
    assert other.login("SCRAM-SHA-256", token.token_id) == login
    assert hashlib.sha512().digest_size == len(secret)
    third = await opened(store)
    assert third.all() == [token]
    data, _ = await store.get(token_path(token.token_id))
    assert password.encode() not in data
    assert await one.expire(CARL, secret, -1) == 1_000_000
    await eventually_async(lambda: not other.all() and not third.all())
    assert other.login("SCRAM-SHA-256", token.token_id) is None
    for each in (one, other, third):
        each.stop()


async def test_who_may_change_it_and_until_when() -> None:
    runtime = Runtime()
    tokens = await opened(await connected(), runtime)
    token = await tokens.create(ANNA, BOB, [CARL], 5_000)
    assert (token.expires_ms, token.max_lifetime_ends_ms) == (1_005_000, 1_005_000)
    secret = tokens.hmac(token.token_id)
    assert await refused(tokens.renew(BOB, secret, 1)) == ErrorCode.DELEGATION_TOKEN_OWNER_MISMATCH
    assert await refused(tokens.expire(BOB, secret, 1)) == ErrorCode.DELEGATION_TOKEN_OWNER_MISMATCH
    assert await refused(tokens.renew(ANNA, b"x", 1)) == ErrorCode.DELEGATION_TOKEN_NOT_FOUND
    assert await refused(tokens.expire(ANNA, b"x", 1)) == ErrorCode.DELEGATION_TOKEN_NOT_FOUND
    assert await tokens.renew(ANNA, secret, 1_000) == 1_001_000
    assert await tokens.renew(CARL, secret, -1) == 1_005_000
    assert await tokens.expire(ANNA, secret, 50_000) == 1_005_000
    assert await tokens.expire(ANNA, secret, 0) == 1_000_000
    runtime.time_ms += 1
    assert await refused(tokens.renew(ANNA, secret, 1)) == ErrorCode.DELEGATION_TOKEN_EXPIRED
    assert await refused(tokens.expire(ANNA, secret, 1)) == ErrorCode.DELEGATION_TOKEN_EXPIRED
    assert await tokens.expire(ANNA, secret, -1) == runtime.time_ms
    assert tokens.all() == []
    tokens.stop()


@pytest.mark.parametrize("change", ["renew", "expire"])
async def test_a_token_that_another_broker_has_removed_does_not_come_back(change: str) -> None:
    """This broker has not heard of it yet."""
    store = await connected()
    one, other = await opened(store), await opened(store)
    token = await one.create(ANNA, BOB, [CARL], 0)
    secret = one.hmac(token.token_id)
    await eventually_async(lambda: other.all() == [token])
    other.stop()
    await one.expire(ANNA, secret, -1)
    late = other.renew if change == "renew" else other.expire
    assert await refused(late(CARL, secret, 5_000)) == ErrorCode.DELEGATION_TOKEN_NOT_FOUND
    assert other.all() == []
    assert await store.exists(token_path(token.token_id)) is None
    one.stop()
    await store.close()


async def test_the_controller_removes_what_has_expired() -> None:
    store, runtime = await connected(), Runtime()
    elected = asyncio.Event()
    tokens = await opened(
        store,
        runtime,
        is_controller=elected.is_set,
        delegation_token_expiry_check_interval_ms="1",
    )
    kept = await tokens.create(ANNA, ANNA, [], 0)
    await tokens.create(ANNA, ANNA, [], 5)
    runtime.time_ms += 6
    assert len(tokens.all()) == 2
    elected.set()
    await eventually_async(lambda: tokens.all() == [kept])
    tokens.stop()
    assert await store.children("/delegation_token/tokens") == [kept.token_id]


async def test_a_token_that_another_broker_has_just_renewed_is_not_removed() -> None:
    """Its announcement has not come: the controller had no connection, or the watch is late."""
    store = await connected()
    other = EmbeddedStore(tree=store.tree)
    await other.connect()
    runtime = Runtime()
    controller, broker = await opened(store, runtime), await opened(other, runtime)
    token = await controller.create(ANNA, ANNA, [], 0)
    await eventually_async(lambda: bool(broker.all()))
    controller.stop()  # hears of no change any more
    secret = broker.hmac(token.token_id)
    runtime.time_ms = token.expires_ms
    until = await broker.renew(ANNA, secret, 2 * DAY_MS)
    runtime.time_ms = token.expires_ms + 1
    await controller.remove_expired()
    assert await store.exists(token_path(token.token_id)) is not None
    assert [each.expires_ms for each in controller.all()] == [until]
    runtime.time_ms = until + 1
    await controller.remove_expired()
    assert await store.exists(token_path(token.token_id)) is None
    broker.stop()
    await other.close()
    await store.close()


async def test_without_a_secret_there_are_none() -> None:
    store = await connected()
    tokens = await opened(store, delegation_token_secret_key="")
    for call in (
        tokens.create(ANNA, ANNA, [], 0),
        tokens.renew(ANNA, b"", 0),
        tokens.expire(ANNA, b"", 0),
    ):
        assert await refused(call) == ErrorCode.DELEGATION_TOKEN_AUTH_DISABLED
    assert await store.exists("/delegation_token") is None
    tokens.stop()
    older = await opened(
        store, delegation_token_secret_key="", delegation_token_master_key="secret"
    )
    assert older.is_enabled
    older.stop()


@pytest.mark.parametrize("data", [b"hunter", b"", b'{"version":9}'])
async def test_a_broken_node_harms_no_other_and_is_no_login(data: bytes) -> None:
    store = await connected()
    tokens = await opened(store)
    token = await tokens.create(ANNA, ANNA, [], 0)
    broken = await tokens.create(ANNA, ANNA, [], 0)
    path = token_path(broken.token_id)
    good, _ = await store.get(path)
    await store.set(path, data)
    unusable = tokens._unusable
    await tokens._load([broken.token_id])
    assert tokens.all() == [token]
    assert tokens.login("SCRAM-SHA-256", broken.token_id) is None
    assert path in unusable.found[path].problem
    await store.set(path, good)
    await unusable.look()
    assert tokens.all() == [token, broken]
    tokens.stop()
