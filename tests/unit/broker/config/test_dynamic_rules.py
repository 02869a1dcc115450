"""What may change while a broker runs; the settings probe shows the effect on the wire."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path
from typing import cast

import pytest

from ottla.broker.config.broker_config import BrokerConfig, ConfigError
from ottla.broker.config.definitions import (
    PER_BROKER,
    broker_settings,
    dynamic_only_settings,
)
from ottla.broker.config.dynamic_config import load_broker_settings
from ottla.broker.config.dynamic_rules import (
    THREADS,
    check_change,
    check_dynamic_setting,
    is_secret,
)
from ottla.broker.config.listeners import LISTENERS, find_listener_setting
from ottla.broker.config.rules import validate
from ottla.broker.runtime.tasks import spawn
from ottla.controller.tree.entity_configs import read_config, write_config
from ottla.controller.tree.store import ZnodeStore
from tests.doubles.interrupted_store import AFTER, BEFORE, CANCEL, InterruptedStore
from tests.doubles.znode_entities import Entities


def check(name: str, text: str, *, per_broker: bool = True) -> None:
    check_change(BrokerConfig(), {}, {name: text}, per_broker=per_broker)


@pytest.mark.parametrize(
    ("name", "text", "words"),
    [
        ("log.retention.hour", "3", r"unknown setting .*\. Did you mean log\.retention\.hours"),
        ("broker.id", "3", "Cannot update these configs dynamically: broker.id"),
        ("ssl.keystore.location", "/x", "only per-listener using the listener prefix"),
        ("listener.name.ssl.ssl.clinet.auth", "none", "Did you mean ssl.client.auth"),
        ("listener.name.ssl.ssl.key.password", "secret", "is a secret, which every client"),
        ("listener.name.ssl.ssl.key.password", "${file:/x:y}", "names the provider file"),
        ("listener.name.ssl.max.connections", "many", "Invalid value many"),
        ("background.threads", "${file:/x:y}", "is no secret: write the value itself"),
        ("metric.reporters", "a,${file:/x:y}", "is no secret: write the value itself"),
        ("listener.name.ssl.ssl.keystore.location", "${file:/x:y}", "is no secret: write"),
        ("principal.builder.class", "com.acme.Own", "Java classes"),
        ("ssl.client.auth", "sometimes", "String must be one of"),
        ("metric.reporters", "com.acme.Reporter", "Java classes cannot be loaded"),
        ("max.connections", "0", "max.connections=0 would refuse every connection"),
        ("max.connection.creation.rate", "0", "would refuse every connection"),
        ("listener.name.plaintext.max.connections", "0", "would refuse every connection"),
        ("max.connections.per.ip", "0", "can be set to zero only if"),
        ("max.connections.per.ip.overrides", "127.0.0.1", "is not address:number"),
        ("num.replica.fetchers", "0", "Value must be at least 1"),
        ("num.replica.fetchers", "3", "not be greater than double the current value 1"),
        ("num.io.threads", "2147483647", "not be greater than double the current value 8"),
        ("num.io.threads", "3", "should be at least half the current value 8"),
        ("listener.name.plaintext.num.network.threads", "70", "not be greater than double"),
        ("log.cleaner.threads", "0", "value should be at least 1"),
        ("log.local.retention.ms", "-1", "must not be -1 as log.retention.ms"),
        ("log.local.retention.ms", "604800001", "must not be more than log.retention.ms"),
    ],
)
def test_what_is_rejected(name: str, text: str, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        check(name, text)


def test_what_is_accepted() -> None:
    check("listener.name.ssl.ssl.keystore.location", "/x")  # of a listener that is added later
    check("listener.name.ssl.max.connections", "3")
    check("listener.name.ssl.max.connections", "3", per_broker=False)
    check("log.segment.bytes", "5000", per_broker=False)
    check("metric.reporters", "org.apache.kafka.common.metrics.JmxReporter", per_broker=False)
    check_change(
        BrokerConfig({"max.connections.per.ip.overrides": "10.0.0.1:5"}),
        {},
        {"max.connections.per.ip": "0"},
        per_broker=True,
    )


@pytest.mark.parametrize("per_broker", [True, False])
@pytest.mark.parametrize(
    "name",
    [
        *("leader.replication.throttled.rate", "follower.replication.throttled.rate"),
        "replica.alter.log.dirs.io.max.bytes.per.second",
    ],
)
def test_throttles_of_one_broker_and_of_all(name: str, per_broker: bool) -> None:
    check(name, "100000", per_broker=per_broker)
    with pytest.raises(ConfigError, match="at least 0"):
        check(name, "-1", per_broker=per_broker)


CHANGED_AT_RUN_TIME = [
    name
    for name, setting in broker_settings().items()
    if setting.mode == PER_BROKER and not name.startswith(("ssl.keystore", "ssl.truststore"))
]


@pytest.mark.parametrize("name", CHANGED_AT_RUN_TIME)
def test_what_is_described_as_dynamic_can_be_altered(name: str) -> None:
    """With its default, or a usual value where that is none; also for a listener."""
    setting = broker_settings()[name]
    if setting.sensitive or name in LISTENERS:
        return
    usual = {
        "ssl.enabled.protocols": "TLSv1.3",
        "ssl.engine.factory.class": "org.apache.kafka.common.security.ssl.DefaultSslEngineFactory",
    }
    text = setting.default or usual.get(name, "")
    check(name, text)
    with pytest.raises(ConfigError, match="broker id must be specified"):
        check(name, text, per_broker=False)
    if find_listener_setting(f"listener.name.plaintext.{name}") is not None:
        check(f"listener.name.plaintext.{name}", text)


def test_threads_change_to_half_or_double_of_their_value() -> None:
    config = BrokerConfig(dict.fromkeys(THREADS, "7"))
    for name in THREADS:
        for value, is_accepted in (("3", True), ("14", True), ("2", False), ("15", False)):
            try:
                check_change(config, {}, {name: value}, per_broker=False)
            except ConfigError:
                assert not is_accepted, (name, value)
            else:
                assert is_accepted, (name, value)
    config.update_dynamic({}, {"num.io.threads": "14"})
    check_change(config, {}, {"num.io.threads": "100"}, per_broker=False)  # has no effect here
    config.update_dynamic({}, {"num.io.threads": "28"})
    with pytest.raises(ConfigError, match="at least half the current value 28"):
        check_change(config, {"num.io.threads": "28"}, {}, per_broker=True)


def test_what_was_wrong_before_stops_no_other_change() -> None:
    """And it can be removed."""
    config = BrokerConfig()
    wrong = {"max.connections.per.ip.overrides": "127.0.0.1", "num.partitions": "7", "no.such": "1"}
    config.update_dynamic({}, wrong)
    names = [each.name for each in config.ignored]
    assert names == ["num.partitions", "max.connections.per.ip.overrides"]
    after = check_change(config, wrong, {**wrong, "message.max.bytes": "2000"}, per_broker=True)
    assert after.message_max_bytes == 2000
    check_change(config, wrong, {}, per_broker=True)


def test_unknown_settings_of_ignored_prefixes(tmp_path: Path) -> None:
    path = tmp_path / "server.properties"
    path.write_text("")
    config = BrokerConfig.load(str(path), ignored_prefixes=["confluent.*", "num.", ""])
    check_dynamic_setting("confluent.balancer.enable", "true", config, per_broker=False)
    for name, words in (
        ("confluence.x", "unknown setting confluence.x"),
        ("num.partitions", "Cannot update these configs dynamically: num.partitions"),
    ):
        with pytest.raises(ConfigError, match=words):
            check_dynamic_setting(name, "1", config, per_broker=True)


@pytest.mark.parametrize("per_broker", [True, False])
@pytest.mark.parametrize(
    ("wanted", "words"),
    [
        ({"log.retention.ms": "0"}, "log.retention.ms must be -1"),
        ({"log.roll.ms": "0"}, "log.roll.ms must be at least 1"),
        ({"log.cleaner.dedupe.buffer.size": "1000"}, "log.cleaner.dedupe.buffer.size"),
    ],
)
def test_numbers_that_do_not_fit_together(
    wanted: dict[str, str], words: str, per_broker: bool
) -> None:
    config = BrokerConfig()
    with pytest.raises(ConfigError, match=words):
        check_change(config, {}, wanted, per_broker=per_broker)
    assert config.effective_text("log.retention.ms") is None
    check_change(config, {}, {}, per_broker=per_broker)


def test_numbers_of_the_other_layer_count_too() -> None:
    config = BrokerConfig()
    config.update_dynamic({}, {"log.retention.ms": "5"})
    check_change(config, {}, {"log.retention.ms": "0"}, per_broker=False)
    config.update_dynamic({"log.roll.ms": "0"}, {"log.roll.ms": "5"})
    with pytest.raises(ConfigError, match=r"log\.roll\.ms"):
        check_change(config, {"log.roll.ms": "5"}, {}, per_broker=True)


@pytest.mark.parametrize("name", ["listeners", "listener.name.ssl.ssl.keystore.location"])
def test_what_is_not_the_same_for_all_brokers(name: str) -> None:
    with pytest.raises(ConfigError, match="at default cluster level, broker id must be specified"):
        check(name, "PLAINTEXT://:1", per_broker=False)


PLAIN = 'org.apache.kafka.common.security.plain.PlainLoginModule required user_a="b";'


@pytest.mark.parametrize(
    ("listener", "name", "is_accepted"),
    [
        ("login", "sasl.enabled.mechanisms", True),
        ("login", "plain.sasl.jaas.config", True),
        ("login", "plain.connections.max.reauth.ms", True),
        ("login", "ssl.client.auth", True),
        ("inner", "sasl.enabled.mechanisms", False),
        ("inner", "plain.sasl.jaas.config", False),
        ("inner", "plain.connections.max.reauth.ms", True),
    ],
)
def test_what_an_open_listener_may_lose(listener: str, name: str, is_accepted: bool) -> None:
    """SASL settings, which it keeps: tools delete them before they remove the listener. That of
    brokers cannot be removed."""
    config = BrokerConfig(
        {
            "listeners": "LOGIN://:1,INNER://:2",
            "listener.security.protocol.map": "LOGIN:SASL_PLAINTEXT,INNER:SASL_PLAINTEXT",
            "inter.broker.listener.name": "INNER",
            "sasl.mechanism.inter.broker.protocol": "PLAIN",
            "listener.name.login.sasl.enabled.mechanisms": "PLAIN",
            "listener.name.login.plain.sasl.jaas.config": PLAIN,
            "listener.name.inner.sasl.enabled.mechanisms": "PLAIN",
            "listener.name.inner.plain.sasl.jaas.config": PLAIN.replace(
                "user_a", 'username="a" password="b" user_a'
            ),
            "password.encoder.secret": "secret",
        }
    )
    deleted = f"listener.name.{listener}.{name}"
    for key in [key for key in config.given if "listener.name." in key]:
        config.broker_dynamic[key] = config.given.pop(key)
    config.broker_dynamic.setdefault(deleted, "none" if "ssl" in name else "60000")
    stored = dict(config.broker_dynamic)
    wanted = {key: text for key, text in stored.items() if key != deleted}
    if is_accepted:
        check_change(config, stored, wanted, per_broker=True)
        return
    with pytest.raises(ConfigError, match=r"(?i)inner"):
        check_change(config, stored, wanted, per_broker=True)


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
    if not words:
        check_change(config, {}, changes, per_broker=True)
        return
    with pytest.raises(ConfigError, match=re.escape(words)):
        check_change(config, {}, changes, per_broker=True)


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
            check_dynamic_setting(name, text, config, per_broker=True)
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


@pytest.mark.parametrize("is_running", [True, False])
@pytest.mark.parametrize(
    ("cluster", "broker", "ignored"),
    [
        ({}, {"listeners": "PLAINTEXT"}, {"listeners"}),
        ({}, {"listener.security.protocol.map": "x"}, {"listener.security.protocol.map"}),
        ({"num.io.threads": "x"}, {}, {"num.io.threads"}),
        ({"log.dirs": "/x", "num.partitions": "7"}, {}, {"log.dirs", "num.partitions"}),
        ({"listeners": "PLAINTEXT://:1"}, {}, {"listeners"}),
        ({"ssl.client.auth": "none"}, {}, {"ssl.client.auth"}),
        ({}, {"ssl.keystore.location": "/x"}, {"ssl.keystore.location"}),
        (
            {"max.connections.per.ip.overrides": "127.0.0.1"},
            {},
            {"max.connections.per.ip.overrides"},
        ),
        ({"max.connections": "0"}, {"max.connections": "0"}, {"max.connections"}),
        ({"num.replica.fetchers": "0"}, {}, {"num.replica.fetchers"}),
        ({"log.retention.ms": "0"}, {"log.roll.ms": "0"}, {"log.retention.ms", "log.roll.ms"}),
        ({}, {"principal.builder.class": "com.acme.Own"}, {"principal.builder.class"}),
        ({"background.threads": "10"}, {"no.such.setting": "1"}, set()),
    ],
)
def test_what_cannot_be_used_is_ignored_and_named(
    cluster: dict[str, str], broker: dict[str, str], ignored: set[str], is_running: bool
) -> None:
    config = BrokerConfig()
    cluster = {**cluster, "message.max.bytes": "2000"}
    changed = config.update_dynamic(cluster, {**broker, PATH: "/keys"}, is_running=is_running)
    assert {each.name for each in config.ignored} == ignored
    assert {"message.max.bytes", PATH} <= set(changed)
    assert not ignored & set(changed)
    assert all(any(name in each for each in config.warnings) for name in ignored)
    validate(config)


def test_a_dynamic_listener_without_its_settings_stops_no_start() -> None:
    """Its settings may be deleted before it is removed; while it is open it stays."""
    given = {"listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,LOGIN:SASL_PLAINTEXT"}
    listeners = {"listeners": "PLAINTEXT://127.0.0.1:9092,LOGIN://127.0.0.1:0"}
    config = BrokerConfig(given)
    config.update_dynamic({}, {**listeners, "background.threads": "9"})
    assert [each.name for each in config.ignored] == ["listeners"]
    assert "LOGIN has GSSAPI" in config.ignored[0].problem
    assert config.value("background.threads") == 9
    running = BrokerConfig(given)
    running.update_dynamic({}, listeners, is_running=True)
    assert not running.ignored
    assert [each.listener_name for each in running.listener_endpoints()] == ["PLAINTEXT", "LOGIN"]


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
