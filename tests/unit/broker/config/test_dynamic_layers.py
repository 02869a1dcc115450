"""What the znode of a broker holds: secrets are encrypted there."""

from __future__ import annotations

import asyncio
from typing import cast

import pytest

from ottla.broker.config.broker_config import BrokerConfig
from ottla.broker.config.dynamic_config import load_broker_settings
from ottla.broker.config.dynamic_layers import is_secret
from ottla.broker.runtime.tasks import spawn
from ottla.controller.tree.entity_configs import read_config, write_config
from ottla.controller.tree.store import ZnodeStore
from tests.doubles.interrupted_store import AFTER, BEFORE, CANCEL, InterruptedStore
from tests.doubles.znode_entities import Entities

KEY = "listener.name.plaintext.ssl.key.password"
PATH = "listener.name.plaintext.ssl.keystore.location"


def with_secret(**more: str) -> BrokerConfig:
    given = {"password.encoder.secret": "new", **more}
    return BrokerConfig({**given, "password.encoder.iterations": "1024"})


def test_which_settings_are_secrets() -> None:
    assert is_secret(KEY)
    assert is_secret("listener.name.external.scram-sha-256.sasl.jaas.config")
    assert not is_secret(PATH)
    assert not is_secret("listener.name.plaintext.no.such.setting")
    assert not is_secret("some.setting.password")  # of a plug-in, which Kafka stores as it is


def test_a_secret_is_stored_encrypted_and_used_as_it_was_set() -> None:
    config = with_secret()
    stored = config.secrets.encode_all({KEY: "s3cret", PATH: "/keys"})
    assert stored[PATH] == "/keys"
    assert "s3cret" not in stored[KEY]
    assert sorted(config.update_dynamic({}, stored)) == sorted((KEY, PATH))
    assert config.effective_text(KEY) == "s3cret"
    assert config.secrets.decode_all(stored) == {KEY: "s3cret", PATH: "/keys"}


def test_a_secret_that_cannot_be_read_is_ignored_with_a_warning() -> None:
    stored = with_secret().secrets.encode_all({KEY: "s3cret", PATH: "/keys"})
    for config, words in (
        (BrokerConfig(), "set password.encoder.secret"),
        (with_secret(**{"password.encoder.secret": "another"}), "cannot be decoded"),
    ):
        assert config.update_dynamic({}, stored) == [PATH]
        assert any(words in each for each in config.warnings), config.warnings


def test_listeners_that_are_none_are_ignored() -> None:
    config = BrokerConfig()
    wrong = {"listeners": "PLAINTEXT", PATH: "/keys"}
    assert config.update_dynamic({}, wrong) == [PATH]
    assert any("Ignoring the dynamic listeners" in each for each in config.warnings)
    assert [each.listener_name for each in config.listener_endpoints()] == ["PLAINTEXT"]


def test_limits_of_all_brokers_for_a_listener_of_one() -> None:
    limit = "listener.name.outer.max.connections"
    config = BrokerConfig({"listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,OUTER:PLAINTEXT"})
    listeners = {"listeners": "PLAINTEXT://127.0.0.1:9092,OUTER://127.0.0.1:0"}
    assert sorted(config.update_dynamic({limit: "3"}, listeners)) == [limit, "listeners"]


async def test_secrets_of_the_old_secret_are_encrypted_again_at_the_start() -> None:
    entities = await Entities().start()
    old = with_secret(**{"password.encoder.secret": "old"}).secrets
    await write_config(entities.store, "brokers/1", old.encode_all({KEY: "s3cret", PATH: "/keys"}))
    config = with_secret(**{"password.encoder.old.secret": "old"})
    assert sorted(await load_broker_settings(entities.store, config, 1)) == sorted((KEY, PATH))
    assert config.effective_text(KEY) == "s3cret"
    stored = await read_config(entities.store, "brokers/1")
    assert with_secret().secrets.decode_all(stored) == {KEY: "s3cret", PATH: "/keys"}
    # A later start changes nothing.
    await load_broker_settings(entities.store, config, 1)
    assert await read_config(entities.store, "brokers/1") == stored
    await entities.stop()


@pytest.mark.parametrize("how", [BEFORE, AFTER, CANCEL])
async def test_a_start_that_is_interrupted_anywhere_loses_no_secret(how: str) -> None:
    """With the next start they are encrypted with the new secret, and the old one is not needed."""
    at = 1
    while True:
        entities = await Entities().start()
        old = with_secret(**{"password.encoder.secret": "old"}).secrets
        values = {KEY: "s3cret", PATH: "/keys"}
        await write_config(entities.store, "brokers/1", old.encode_all(values))
        store = InterruptedStore(entities.store)
        store.interrupt(at, how)
        config = with_secret(**{"password.encoder.old.secret": "old"})
        start = load_broker_settings(cast("ZnodeStore", store), config, 1)
        await asyncio.gather(spawn(start, name="start"), return_exceptions=True)
        was_interrupted = store.is_past
        config = with_secret(**{"password.encoder.old.secret": "old"})
        await load_broker_settings(entities.store, config, 1)
        assert config.effective_text(KEY) == "s3cret", f"interrupted at call {at}"
        stored = await read_config(entities.store, "brokers/1")
        assert with_secret().secrets.decode_all(stored) == values
        await entities.stop()
        if not was_interrupted:
            break
        at += 1
    assert at > 2, "the settings are read and written"
