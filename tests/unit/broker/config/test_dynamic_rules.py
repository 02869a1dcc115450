"""What may change while a broker runs; the settings probe shows the effect on the wire."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path
from typing import cast

import pytest

from ottla.broker.config.broker_config import BrokerConfig, ConfigError
from ottla.broker.config.definitions import broker_settings, dynamic_only_settings
from ottla.broker.config.dynamic_config import load_broker_settings
from ottla.broker.config.dynamic_rules import (
    check_changed_numbers,
    check_deletion,
    check_dynamic_setting,
    check_new_listeners,
    check_open_listener,
    is_read_at_start,
    is_secret,
)
from ottla.broker.runtime.tasks import spawn
from ottla.controller.tree.entity_configs import read_config, write_config
from ottla.controller.tree.store import ZnodeStore
from tests.doubles.interrupted_store import AFTER, BEFORE, CANCEL, InterruptedStore
from tests.doubles.znode_entities import Entities

LISTENERS = ["SSL"]


def check(name: str, text: str, *, per_broker: bool = True) -> None:
    check_dynamic_setting(name, text, BrokerConfig(), LISTENERS, per_broker)
    check_open_listener(name, LISTENERS)


@pytest.mark.parametrize(
    ("name", "text", "words"),
    [
        ("log.retention.hour", "3", r"unknown setting .*\. Did you mean log\.retention\.hours"),
        ("broker.id", "3", "Cannot update these configs dynamically: broker.id"),
        ("ssl.keystore.location", "/x", "only per-listener using the listener prefix"),
        ("ssl.client.auth", "none", "is read when the broker starts"),
        ("listener.name.ssl.ssl.client.auth", "none", r"existing listener ListenerName\(SSL\)"),
        ("listener.name.ssl.sasl.enabled.mechanisms", "PLAIN", "for existing listener"),
        ("listener.name.ssl.ssl.clinet.auth", "none", "Did you mean ssl.client.auth"),
        ("listener.name.ssx.ssl.keystore.location", "/x", "there is no listener SSX"),
        ("listener.name.ssl.ssl.key.password", "secret", "is a secret, which every client"),
        ("listener.name.ssl.ssl.key.password", "${file:/x:y}", "names the provider file"),
        ("listener.name.ssl.max.connections", "many", "Invalid value many"),
        ("background.threads", "${file:/x:y}", "is no secret: write the value itself"),
        ("metric.reporters", "a,${file:/x:y}", "is no secret: write the value itself"),
        ("listener.name.ssl.ssl.keystore.location", "${file:/x:y}", "is no secret: write"),
        ("principal.builder.class", "com.acme.Own", "Cannot update|is read when|Java classes"),
    ],
)
def test_what_is_rejected(name: str, text: str, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        check(name, text)


def test_what_is_accepted() -> None:
    check("listener.name.ssl.ssl.keystore.location", "/x")
    check("listener.name.ssl.max.connections", "3")
    check("listener.name.ssl.max.connections", "3", per_broker=False)
    check("log.segment.bytes", "5000", per_broker=False)


def test_unknown_settings_of_ignored_prefixes(tmp_path: Path) -> None:
    path = tmp_path / "server.properties"
    path.write_text("")
    config = BrokerConfig.load(str(path), ignored_prefixes=["confluent.*", "num.", ""])
    check_dynamic_setting("confluent.balancer.enable", "true", config, LISTENERS, per_broker=False)
    for name, words in (
        ("confluence.x", "unknown setting confluence.x"),
        ("num.partitions", "Cannot update these configs dynamically: num.partitions"),
    ):
        with pytest.raises(ConfigError, match=words):
            check_dynamic_setting(name, "1", config, LISTENERS, per_broker=True)


@pytest.mark.parametrize("per_broker", [True, False])
@pytest.mark.parametrize(
    ("wanted", "words"),
    [
        ({"log.retention.ms": "0"}, "log.retention.ms must be -1"),
        ({"log.roll.ms": "0"}, "log.roll.ms must be at least 1"),
        ({"log.cleaner.threads": "1000"}, "log.cleaner.dedupe.buffer.size"),
    ],
)
def test_numbers_that_do_not_fit_together(
    wanted: dict[str, str], words: str, per_broker: bool
) -> None:
    config = BrokerConfig()
    with pytest.raises(ConfigError, match=words):
        check_changed_numbers(config, wanted, per_broker=per_broker)
    assert config.effective_text("log.retention.ms") is None
    check_changed_numbers(config, {}, per_broker=per_broker)


def test_numbers_of_the_other_layer_count_too() -> None:
    config = BrokerConfig()
    config.update_dynamic({}, {"log.retention.ms": "5"})
    check_changed_numbers(config, {"log.retention.ms": "0"}, per_broker=False)
    config.update_dynamic({"log.retention.ms": "0"}, {"log.retention.ms": "5"})
    with pytest.raises(ConfigError, match=r"log\.retention\.ms"):
        check_changed_numbers(config, {}, per_broker=True)


@pytest.mark.parametrize("name", ["listeners", "listener.name.ssl.ssl.keystore.location"])
def test_what_is_not_the_same_for_all_brokers(name: str) -> None:
    with pytest.raises(ConfigError, match="at default cluster level, broker id must be specified"):
        check(name, "PLAINTEXT://:1", per_broker=False)


@pytest.mark.parametrize(
    ("name", "is_accepted"),
    [
        ("listener.name.login.sasl.enabled.mechanisms", True),
        ("listener.name.login.plain.sasl.jaas.config", True),
        ("listener.name.login.plain.connections.max.reauth.ms", True),
        ("listener.name.login.ssl.keystore.location", True),
        ("listener.name.login.ssl.client.auth", False),  # new keys would be used without it
        ("listener.name.inner.sasl.enabled.mechanisms", False),
        ("listener.name.inner.plain.sasl.jaas.config", False),
        ("listener.name.closed.ssl.client.auth", True),
        ("log.segment.bytes", True),
    ],
)
def test_what_an_open_listener_may_lose(name: str, is_accepted: bool) -> None:
    """SASL settings, which were read when it was opened, but not those of the listener of brokers:
    it cannot be removed."""
    if is_accepted:
        check_deletion(name, ["LOGIN", "INNER"], "INNER")
        return
    with pytest.raises(ConfigError, match="restart broker or create a new listener"):
        check_deletion(name, ["LOGIN", "INNER"], "INNER")


def test_what_needs_a_restart() -> None:
    assert is_read_at_start("listener.name.ssl.ssl.client.auth", LISTENERS)
    assert not is_read_at_start("listener.name.ssl.ssl.client.auth", ["PLAINTEXT"])
    assert is_read_at_start("sasl.enabled.mechanisms", LISTENERS)
    assert not is_read_at_start("listener.name.ssl.ssl.keystore.location", LISTENERS)
    assert not is_read_at_start("log.segment.bytes", LISTENERS)
    assert not is_read_at_start("listeners", LISTENERS)


_MAP = "PLAINTEXT:PLAINTEXT, OUTER: plaintext, INNER:SSL, LOGIN:SASL_PLAINTEXT"


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"listeners": "PLAINTEXT://:9092,OUTER://:0"}, ""),
        ({"listeners": "PLAINTEXT://:9092,INNER://:0"}, ""),  # its keys are validated elsewhere
        ({"advertised.listeners": "PLAINTEXT://example.com:9092"}, ""),
        ({"listeners": "OUTER://:9092"}, "inter.broker.listener.name: PLAINTEXT is none of"),
        ({"listeners": "PLAINTEXT://:9093"}, "is used from the next start on only"),
        ({"listeners": "PLAINTEXT://:9092,NEW://:0"}, "NEW has no security protocol"),
        ({"listeners": "PLAINTEXT://:9092,LOGIN://:0"}, "Listener LOGIN has GSSAPI"),
        ({"advertised.listeners": "OUTER://example.com:1"}, "OUTER is none of the listeners"),
        (
            {"listener.security.protocol.map": "PLAINTEXT:SSL"},
            "Security protocol cannot be updated for existing listener PLAINTEXT",
        ),
    ],
)
def test_which_listeners_may_follow(changes: dict[str, str], words: str) -> None:
    config = BrokerConfig(
        {"listeners": "PLAINTEXT://:9092", "listener.security.protocol.map": _MAP}
    )
    after = config.with_dynamic(broker=changes)
    if not words:
        check_new_listeners(config, after)
        return
    with pytest.raises(ConfigError, match=re.escape(words)):
        check_new_listeners(config, after)


def test_no_error_has_a_value_of_a_config_provider(tmp_path: Path) -> None:
    """A user that may change settings could read every secret of the broker otherwise."""
    (tmp_path / "secrets").write_text("password=hunter2\n")
    text = f"${{file:{tmp_path / 'secrets'}:password}}"
    config = BrokerConfig(
        {
            "config.providers": "file",
            "config.providers.file.class": "org.apache.kafka.common.config.provider."
            "FileConfigProvider",
        }
    )
    for name, setting in {**broker_settings(), **dynamic_only_settings()}.items():
        words = ""
        try:
            check_dynamic_setting(name, text, config, LISTENERS, per_broker=True)
        except ConfigError as error:
            words = str(error)
        assert words or setting.sensitive, name
        assert "hunter2" not in words


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
