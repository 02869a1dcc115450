from __future__ import annotations

import asyncio
from itertools import pairwise

import pytest

from ottla.broker.config.dynamic_config import load_broker_settings
from ottla.broker.config.errors import ConfigError
from ottla.controller.tree import znodes
from ottla.controller.tree.entity_configs import write_config
from ottla.controller.tree.store import set_or_create
from ottla.controller.tree.znodes_admin import encode_config
from tests.doubles.eventually import eventually_async
from tests.doubles.pace import steps_per_turn
from tests.doubles.znode_entities import Entities, delete_unread


@pytest.mark.parametrize("removed", [False, True])
async def test_everything_is_read_again_when_changes_were_missed(removed: bool) -> None:
    """Also what was removed meanwhile, such as a quota."""
    entities = await Entities().start()
    before = {
        "topics/t": {"retention.ms": "1"},
        "groups/g": {"consumer.session.timeout.ms": "50000"},
        "users/u/clients/c": {"producer_byte_rate": "1"},
        "brokers/1": {"log.retention.ms": "1"},
    }
    for entity, properties in before.items():
        await entities.write(entity, properties)
    after = {} if removed else {name: "70000" for row in before.values() for name in row}
    for entity, properties in before.items():
        found = {name: after[name] for name in properties if after}
        if removed and entity.startswith("users"):
            await entities.store.delete(f"/config/{entity}")
        else:
            await set_or_create(entities.store, f"/config/{entity}", encode_config(found))
    await delete_unread(entities.store)
    value = {} if removed else {"producer_byte_rate": "70000"}
    await eventually_async(lambda: entities.changes.quotas["users/u/clients/c"] == value)
    dynamic = entities.dynamic
    assert dynamic.topic_overrides("t") == ({} if removed else {"retention.ms": "70000"})
    group = {} if removed else {"consumer.session.timeout.ms": "70000"}
    assert dynamic.group_configs("g") == group
    assert entities.changes.settings == ["log.retention.ms"] * 2
    await entities.stop()


async def test_a_new_topic_does_not_get_the_settings_of_an_earlier_one_of_its_name() -> None:
    """The deletion of a topic is not announced, nor its creation without settings."""
    entities = await Entities().start()
    await entities.write("topics/t", {"retention.ms": "1"})
    assert entities.dynamic.log_config("t").retention_ms == 1
    await entities.store.delete("/config/topics/t")
    await entities.dynamic.load_topics(["t"])
    assert entities.dynamic.log_config("t").retention_ms == 7 * 24 * 3_600_000
    await entities.stop()


async def test_a_change_counts_that_comes_while_the_settings_of_many_topics_are_read() -> None:
    entities = await Entities().start()
    await entities.write("topics/t0", {"retention.ms": "1"})
    names = [f"t{number}" for number in range(4)]
    with steps_per_turn(1):
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(entities.dynamic.load_topics(names))
            await asyncio.sleep(0)  # the first of them are read
            await entities.write("topics/t0", {"retention.ms": "2"})
    assert entities.dynamic.log_config("t0").retention_ms == 2
    await entities.stop()


async def test_others_have_turns_while_the_settings_of_many_topics_are_taken() -> None:
    """Each change looks for the logs of its topic among all logs."""
    entities = await Entities().start()
    names = [f"t{number}" for number in range(10)]
    for name in names:
        path = f"/config/topics/{name}"
        await set_or_create(entities.store, path, encode_config({"retention.ms": "1"}))
    seen = [0]

    async def count() -> None:
        while seen[-1] < len(names):
            await asyncio.sleep(0)
            seen.append(len(entities.changes.topics))

    with steps_per_turn(1):
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(count())
            tasks.create_task(entities.dynamic.load_topics(names))
    assert max(after - before for before, after in pairwise(seen)) == 1
    await entities.stop()


async def test_a_setting_that_cannot_be_applied_does_not_stop_the_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    entities = await Entities().start()

    def fail(topic: str) -> None:
        raise ValueError("a value that is not expected")

    monkeypatch.setattr(entities.changes, "topic_changed", fail)
    for entity in ("topics/t", "users/u"):
        path = f"/config/{entity}"
        await set_or_create(entities.store, path, encode_config({"retention.ms": "1"}))
    await delete_unread(entities.store)
    await eventually_async(lambda: "users/u" in entities.changes.quotas)
    await entities.stop()


async def test_neither_a_start_nor_new_logs_fail_over_a_setting_that_cannot_be_applied(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    entities = Entities()

    def fail(*_: object) -> None:
        raise ValueError("could not convert string to float: 'abc'")

    monkeypatch.setattr(entities.changes, "quota_changed", fail)
    monkeypatch.setattr(entities.changes, "topic_changed", fail)
    await entities.store.connect()
    await set_or_create(
        entities.store, "/config/users/u", encode_config({"producer_byte_rate": "abc"})
    )
    await entities.start()
    for topic in ("t", "v"):
        data = encode_config({"retention.ms": "1"})
        await set_or_create(entities.store, f"/config/topics/{topic}", data)
    await entities.dynamic.load_topics(["t", "v"])
    assert entities.dynamic.log_config("v").retention_ms == 1
    await entities.stop()


async def test_values_that_no_broker_accepts_are_left_out(caplog: pytest.LogCaptureFixture) -> None:
    """Another tool wrote them: neither a start nor the other values wait for their repair."""
    entities = await Entities().start()
    wrong = {
        "retention.ms": "garbage",
        "cleanup.policy": "nonsense",
        "segment.bytes": "-1",
        "unclean.leader.election.enable": "perhaps",
        "leader.replication.throttled.replicas": "x:y",
    }
    data = encode_config({**wrong, "max.message.bytes": "77"})
    await set_or_create(entities.store, "/config/topics/t", data)
    await entities.dynamic.load_topics(["t"])
    config = entities.dynamic.log_config("t")
    assert config.max_message_bytes == 77
    assert keeps_all_records(entities)
    named = [name for name in wrong if any(name in each for each in caplog.messages)]
    assert named == list(wrong)
    await entities.stop()


async def test_the_topics_of_coordinators_keep_the_current_format_and_so_their_epochs() -> None:
    old = {"log_message_format_version": "0.10.2", "inter_broker_protocol_version": "2.8"}
    entities = await Entities(**old).start()
    await entities.write("topics/__consumer_offsets", {"cleanup.policy": "compact"})
    topics = ("t", "__consumer_offsets", "__transaction_state")
    magics = [entities.dynamic.log_config(topic).record_magic for topic in topics]
    assert magics == [1, 2, 2]
    assert entities.dynamic.log_config("__consumer_offsets").compact
    await entities.stop()


def keeps_all_records(entities: Entities) -> bool:
    config = entities.dynamic.log_config("t")
    return (config.compact, config.retention_ms, config.retention_bytes) == (False, -1, -1)


@pytest.mark.parametrize(
    "setting",
    [
        "retention.ms",
        "retention.bytes",
        "cleanup.policy",
        "delete.retention.ms",
        "min.compaction.lag.ms",
    ],
)
async def test_a_wrong_value_that_says_which_records_go_removes_none(setting: str) -> None:
    """The broker's default may be to compact, or to keep them for an hour."""
    entities = await Entities(log_cleanup_policy="compact", log_retention_ms="3600000").start()
    path = "/config/topics/t"
    good = {"cleanup.policy": "compact,delete", "retention.ms": "5"}
    await set_or_create(entities.store, path, encode_config({**good, setting: "minus one"}))
    await entities.dynamic.load_topics(["t"])
    assert keeps_all_records(entities)
    assert setting in entities.unusable.found[path].problem
    await set_or_create(entities.store, path, encode_config(good))
    await entities.unusable.look()
    assert entities.dynamic.log_config("t").retention_ms == 5
    assert entities.unusable.count == 0
    await entities.stop()


async def test_other_wrong_values_have_the_defaults(caplog: pytest.LogCaptureFixture) -> None:
    entities = await Entities().start()
    wrong = encode_config({"segment.bytes": "-1", "retention.ms": "5"})
    await set_or_create(entities.store, "/config/topics/t", wrong)
    await entities.dynamic.load_topics(["t"])
    await entities.unusable.look()
    config = entities.dynamic.log_config("t")
    assert (config.retention_ms, config.segment_bytes) == (5, 1 << 30)
    [line] = [each for each in caplog.messages if "segment.bytes" in each]
    assert "the defaults apply until it is repaired" in line
    await entities.stop()


@pytest.mark.parametrize("how", ["garbage", "a newer version", "no right"])
async def test_a_topic_whose_settings_cannot_be_read_keeps_its_records(how: str) -> None:
    entities = await Entities(log_retention_ms="3600000").start()
    path = await damaged(entities, "topics/t", how)
    await entities.dynamic.load_topics(["t"])
    assert keeps_all_records(entities)
    assert "keeps all its records" in entities.unusable.found[path].effect
    entities.store.forbidden.clear()
    await set_or_create(entities.store, path, encode_config({"retention.ms": "5"}))
    await entities.unusable.look()
    assert entities.dynamic.log_config("t").retention_ms == 5
    # Now they are known.
    await damaged(entities, "topics/t", how)
    await entities.dynamic.load_topics(["t"])
    assert entities.dynamic.log_config("t").retention_ms == 5
    assert "stay as they were" in entities.unusable.found[path].effect
    entities.store.forbidden.clear()
    await entities.store.delete(path)
    await entities.unusable.look()
    assert entities.dynamic.log_config("t").retention_ms == 3_600_000
    assert entities.unusable.count == 0
    await entities.stop()


DAMAGE = {"garbage": b"{", "empty": b"", "a newer version": b'{"version":2,"config":{}}'}
DAMAGE |= {"no settings": b'{"version":1}', "no right": b"forbidden"}


async def damaged(entities: Entities, entity: str, how: str) -> str:
    path = znodes.config_path(entity)
    await set_or_create(entities.store, path, DAMAGE[how])
    if how == "no right":
        entities.store.forbidden.add(path)
    return path


@pytest.mark.parametrize("entity", ["users/a", "clients/<default>", "ips/10.0.0.1", "brokers/1"])
@pytest.mark.parametrize("how", DAMAGE)
async def test_an_entity_that_cannot_be_read_is_reported_and_read_again(
    entity: str, how: str
) -> None:
    """What was known stays; a repair is found, announced or not."""
    entities = await Entities().start()
    good = {"producer_byte_rate": "1"} if entity != "brokers/1" else {"message.max.bytes": "2000"}
    await entities.write(entity, good)
    path = await damaged(entities, entity, how)
    await entities.dynamic._take_missed()
    if entity == "brokers/1":
        assert entities.config.message_max_bytes == 2000
        assert path in entities.unusable.found[path].problem
    else:
        assert entities.changes.unreadable == {entity: True}
        assert entities.changes.quotas[entity] == good
    entities.store.forbidden.clear()
    await set_or_create(entities.store, path, encode_config({**good, "min.insync.replicas": "1"}))
    if entity == "brokers/1":
        await entities.unusable.look()
        assert not entities.unusable.found
        assert "min.insync.replicas" in entities.config.broker_dynamic
    else:
        await entities.dynamic.read_again(entity)
        assert "min.insync.replicas" in entities.changes.quotas[entity]
    await entities.stop()


@pytest.mark.parametrize("how", DAMAGE)
async def test_what_was_never_read_is_not_known(how: str) -> None:
    entities = Entities()
    await entities.store.connect()
    await damaged(entities, "users/a", how)
    await entities.start()
    assert entities.changes.unreadable == {"users/a": False}
    await entities.stop()


async def test_a_user_of_whom_only_clients_have_settings_is_known() -> None:
    entities = Entities()
    await entities.store.connect()
    await write_config(entities.store, "users/a/clients/c", {"producer_byte_rate": "1"})
    await entities.start()
    assert entities.changes.unreadable == {}
    assert entities.changes.quotas["users/a/clients/c"] == {"producer_byte_rate": "1"}
    await entities.stop()


@pytest.mark.parametrize("name", ["1", "<default>"])
@pytest.mark.parametrize("how", DAMAGE)
async def test_settings_of_the_broker_that_cannot_be_read_stop_the_start(
    name: str, how: str
) -> None:
    """They may restrict clients, such as `ssl.client.auth` of a listener."""
    entities = Entities()
    await entities.store.connect()
    path = await damaged(entities, f"brokers/{name}", how)
    where = "cluster" if name == "<default>" else "broker 1"
    with pytest.raises(ConfigError, match=f"ottla configs unset {where} --all --offline") as caught:
        await load_broker_settings(entities.store, entities.config, 1)
    assert path in str(caught.value)
    await entities.store.close()
