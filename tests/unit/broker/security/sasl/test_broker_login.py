"""How a broker logs in to others, and that it changes at run time."""

from __future__ import annotations

import asyncio
from typing import Any, cast

import pytest

from ottla.broker.config.broker_config import BrokerConfig
from ottla.broker.config.errors import ConfigError
from ottla.broker.runtime.tasks import spawn
from ottla.broker.security.sasl.broker_login import BrokerLogin, build_broker_login
from ottla.protocol.client.security import Security

SETTING = "listener.name.sasl_plaintext.plain.sasl.jaas.config"


def login(password: str) -> BrokerLogin:
    config = BrokerConfig(
        {
            "listeners": "SASL_PLAINTEXT://127.0.0.1:0",
            "security.inter.broker.protocol": "SASL_PLAINTEXT",
            "sasl.enabled.mechanisms": "PLAIN",
            "sasl.mechanism.inter.broker.protocol": "PLAIN",
            SETTING: "org.apache.kafka.common.security.plain.PlainLoginModule required "
            f'username="b" password="{password}" user_b="{password}";',
        }
    )
    made = build_broker_login(config, cast(Any, None), lambda: 0, cast(Any, None))
    assert made is not None
    return made


async def test_connections_that_are_opened_later_use_the_changed_login() -> None:
    held = login("one")
    security = held.security  # as the clients of other brokers have it
    await held.renew(login("two"))
    assert (security.mechanism, security.password) == ("PLAIN", "two")


async def test_a_login_that_fails_changes_nothing() -> None:
    class Fails(BrokerLogin):
        async def start(self) -> None:
            raise ConfigError("no token")

    held = login("one")
    with pytest.raises(ConfigError, match="no token"):
        await held.renew(Fails(Security()))
    assert held.security.password == "one"


async def test_a_slow_change_does_not_replace_a_later_one() -> None:
    class Slow(BrokerLogin):
        is_stopped = False

        async def start(self) -> None:
            await later.wait()

        def stop(self) -> None:
            self.is_stopped = True

    later = asyncio.Event()
    held, slow = login("one"), Slow(login("two").security)
    renewal = spawn(held.renew(slow), name="slow")
    await asyncio.sleep(0)
    await held.renew(login("three"))
    later.set()
    await renewal
    assert held.security.password == "three"
    assert slow.is_stopped
