"""Configuration in the tree and the news of its changes, on every store."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import suppress
from itertools import pairwise, product
from typing import cast

import pytest

from ottla.controller.tree import znodes
from ottla.controller.tree.change_notifications import CHANGE_EXPIRATION_MS, RETRY_MS
from ottla.controller.tree.embedded_store import EmbeddedStore
from ottla.controller.tree.entity_configs import (
    ENTITIES_PER_READ,
    ConfigChangeWatcher,
    Unreadable,
    UnreadableConfig,
    change_config,
    entities_of,
    entity_path,
    read_config,
    read_configs,
    read_entities,
    write_config,
)
from ottla.controller.tree.store import (
    ConnectionLost,
    CreateOp,
    StoreError,
    ZnodeStore,
    make_paths,
    set_or_create,
)
from ottla.controller.tree.znodes_admin import (
    decode_config_change,
    encode_config,
    encode_config_change,
)
from tests.doubles.controller_cluster import settle
from tests.doubles.controller_runtime import ManualRuntime
from tests.doubles.eventually import eventually_async
from tests.doubles.interrupted_store import AFTER, BEFORE, InterruptedStore
from tests.doubles.pace import endless_turns
from tests.doubles.znode_ensembles import EmbeddedEnsemble, Ensemble
from tests.doubles.znode_entities import delete_unread


@pytest.fixture
async def store(ensemble: Ensemble) -> ZnodeStore:
    made = await ensemble.open()
    await make_paths(made, [znodes.CONFIG_CHANGES])
    return made


def test_entity_paths() -> None:
    assert entity_path("topics", "t") == "topics/t"
    assert entity_path("brokers", "<default>") == "brokers/<default>"
    assert entity_path("users", "a b") == "users/a%20b"
    assert entity_path("users", "<default>", client="c/d") == "users/<default>/clients/c%2Fd"
    assert entity_path("ips", "10.0.0.1") == "ips/10.0.0.1"


async def test_write_and_read(store: ZnodeStore) -> None:
    assert await read_config(store, "topics/t") == {}
    await write_config(store, "topics/t", {"a": "1", "b": "x,y"})
    await write_config(store, "topics/t", {"a": "2"})
    assert await read_config(store, "topics/t") == {"a": "2"}
    changes = await store.children(znodes.CONFIG_CHANGES)
    assert len(changes) == 2
    data, _ = await store.get(f"{znodes.CONFIG_CHANGES}/{changes[0]}")
    assert decode_config_change("", data) == "topics/t"


async def test_a_tree_without_the_parent_of_notifications_gets_it(ensemble: Ensemble) -> None:
    """As a tree that was copied in part."""
    store = await ensemble.open()
    await set_or_create(store, "/config/topics/t", encode_config({"retention.ms": "1"}))

    async def change(properties: dict[str, str]) -> dict[str, str]:
        return properties | {"retention.bytes": "2"}

    expected = {"retention.ms": "1", "retention.bytes": "2"}
    assert await change_config(store, "topics/t", change) == expected
    await write_config(store, "topics/t", {})
    assert await read_config(store, "topics/t") == {}
    assert len(await store.children(znodes.CONFIG_CHANGES)) == 2


async def test_malformed_configuration_reads_as_empty(store: ZnodeStore) -> None:
    await set_or_create(store, "/config/topics/broken", b"{")
    await write_config(store, "topics/t", {"a": "1"})
    found = await read_configs(store, ["topics/broken", "topics/t", "topics/none"])
    assert found == {"topics/broken": {}, "topics/t": {"a": "1"}, "topics/none": {}}


async def test_topic_left_without_properties_keeps_its_node(store: ZnodeStore) -> None:
    await write_config(store, "topics/t", {"a": "1"})
    await write_config(store, "topics/t", {})
    assert await store.exists("/config/topics/t") is not None
    assert await read_config(store, "topics/t") == {}


async def test_quotas_left_without_properties_go_with_their_parents(store: ZnodeStore) -> None:
    both = entity_path("users", "u", client="c")
    await write_config(store, both, {"producer_byte_rate": "1"})
    await write_config(store, "users/u", {"producer_byte_rate": "2"})
    assert await entities_of(store, "users") == ["users/u", "users/u/clients/c"]
    await write_config(store, "users/u", {})
    assert await store.exists("/config/users/u") is not None  # a client is below
    assert await read_config(store, both) == {"producer_byte_rate": "1"}
    await write_config(store, both, {})
    assert await store.exists("/config/users/u") is None
    assert await store.exists("/config/users") is not None
    await write_config(store, "clients/none", {})  # nothing to delete
    assert await entities_of(store, "users") == []


async def test_parent_with_properties_stays(store: ZnodeStore) -> None:
    both = entity_path("users", "u", client="c")
    await write_config(store, "users/u", {"a": "1"})
    await write_config(store, both, {"b": "2"})
    await write_config(store, both, {})
    assert await read_config(store, "users/u") == {"a": "1"}
    assert await store.exists("/config/users/u/clients") is None


@pytest.mark.parametrize("entity", ["topics/t", "users/u"])
@pytest.mark.parametrize("before", [{}, {"a": "0", "b": "0"}])
@pytest.mark.parametrize("removes", [False, True])
async def test_of_two_changes_at_the_same_time_none_is_lost(
    store: ZnodeStore, entity: str, before: dict[str, str], removes: bool
) -> None:
    if before:
        await write_config(store, entity, before)
    attempts = []

    async def other(properties: dict[str, str]) -> dict[str, str]:
        return {} if removes else {**properties, "b": "2"}

    async def change(properties: dict[str, str]) -> dict[str, str]:
        attempts.append(properties)
        if len(attempts) == 1:
            await change_config(store, entity, other)
        return {**properties, "a": "1"}

    wanted = {"a": "1"} if removes else {**before, "a": "1", "b": "2"}
    assert await change_config(store, entity, change) == wanted
    assert await read_config(store, entity) == wanted
    if before or not removes or entity == "topics/t":
        assert len(attempts) == 2


async def test_change_that_is_overtaken_by_a_removal_repeats_its_own(store: ZnodeStore) -> None:
    await write_config(store, "users/u", {"a": "0", "b": "0"})
    seen = []

    async def drop(properties: dict[str, str]) -> dict[str, str]:
        seen.append(properties)
        if len(seen) == 1:
            await write_config(store, "users/u", {"b": "1"})
        return {name: value for name, value in properties.items() if name != "a" and value == "0"}

    assert await change_config(store, "users/u", drop) == {}
    assert seen == [{"a": "0", "b": "0"}, {"b": "1"}]
    assert await store.exists("/config/users/u") is None


async def test_change_that_is_overtaken_again_and_again_ends(store: ZnodeStore) -> None:
    async def change(properties: dict[str, str]) -> dict[str, str]:
        await write_config(store, "topics/t", {"a": "0"})
        return {"a": "1"}

    with pytest.raises(StoreError, match="keeps being changed"):
        await change_config(store, "topics/t", change)
    assert await read_config(store, "topics/t") == {"a": "0"}


GARBAGE = [
    *(b"{", b"[]", b'{"version":2,"config":{"a":"1"}}', b'{"version":1,"config":"a=1"}'),
    b'{"version":null,"config":{"a":"1"}}',
]
NOT_WRITTEN_BY_A_BROKER = [b'{"config":{"a":"1"}}', b'{"version":1}', b"{}"]


@pytest.mark.parametrize(
    ("entity", "data"),
    [
        *product(["topics/t", "brokers/<default>", "users/u", "groups/g"], GARBAGE),
        *product(["brokers/1", "users/u", "clients/c", "ips/127.0.0.1"], NOT_WRITTEN_BY_A_BROKER),
    ],
)
async def test_what_cannot_be_read_is_not_replaced(
    store: ZnodeStore, entity: str, data: bytes
) -> None:
    path = znodes.config_path(entity)
    await set_or_create(store, path, data)

    async def change(properties: dict[str, str]) -> dict[str, str]:
        return {**properties, "a": "2"}

    with pytest.raises(UnreadableConfig, match=path):
        await change_config(store, entity, change)
    with pytest.raises(UnreadableConfig, match="correct the znode, or empty it"):
        await read_config(store, entity)
    assert (await store.get(path))[0] == data
    await set_or_create(store, path, b'{"version":1,"config":{}}')
    assert await change_config(store, entity, change) == {"a": "2"}


@pytest.mark.parametrize("entity", ["topics/t", "groups/g"])
@pytest.mark.parametrize("data", NOT_WRITTEN_BY_A_BROKER)
async def test_settings_without_a_version_are_of_version_1(
    store: ZnodeStore, entity: str, data: bytes
) -> None:
    """As in Kafka: they protect nothing, are in effect, and a change keeps the others."""
    await set_or_create(store, znodes.config_path(entity), data)
    before = (await read_configs(store, [entity]))[entity]

    async def change(properties: dict[str, str]) -> dict[str, str]:
        return {**properties, "b": "2"}

    assert await change_config(store, entity, change) == {**before, "b": "2"}
    assert (await store.get(znodes.config_path(entity)))[0] == encode_config({**before, "b": "2"})


async def test_the_missing_version_is_named_where_the_settings_protect(store: ZnodeStore) -> None:
    await set_or_create(store, "/config/brokers/1", b'{"config":{"a":"1"}}')
    with pytest.raises(UnreadableConfig, match='without "version":1, which it needs'):
        await read_config(store, "brokers/1")


async def test_empty_znodes_that_can_be_changed(store: ZnodeStore) -> None:
    """That of a topic without settings, and of a user of whom only clients have settings."""

    async def change(properties: dict[str, str]) -> dict[str, str]:
        return {**properties, "a": "2"}

    await set_or_create(store, "/config/topics/t", b"")
    assert await change_config(store, "topics/t", change) == {"a": "2"}
    await write_config(store, "users/u/clients/c", {"b": "1"})
    await set_or_create(store, "/config/users/u", b"")
    assert await change_config(store, "users/u", change) == {"a": "2"}
    await set_or_create(store, "/config/users/v", b"")  # its credentials are lost
    with pytest.raises(UnreadableConfig):
        await change_config(store, "users/v", change)


class Listener:
    def __init__(self, store: ZnodeStore) -> None:
        self.runtime = ManualRuntime()
        self.heard: list[tuple[str, str, dict[str, str]]] = []
        self.fail = False
        self.read_all = 0
        self.watcher = ConfigChangeWatcher(store, self.runtime, self.called, self.missed)

    async def missed(self) -> None:
        self.read_all += 1

    async def called(self, entity_type: str, name: str, properties: dict[str, str]) -> None:
        self.heard.append((entity_type, name, properties))
        await asyncio.sleep(0)
        if self.fail:
            raise RuntimeError("a listener that fails")


async def test_watcher_hears_of_every_change(ensemble: Ensemble) -> None:
    store, writer = await ensemble.open(), await ensemble.open()
    await make_paths(store, [znodes.CONFIG_CHANGES])
    await write_config(writer, "topics/before", {"a": "1"})
    listener = Listener(store)
    await listener.watcher.start()
    await write_config(writer, "topics/t", {"a": "1"})
    await write_config(writer, "users/u/clients/c", {"b": "2"})
    await eventually_async(lambda: len(listener.heard) == 2)
    assert listener.heard == [
        ("topics", "t", {"a": "1"}),
        ("users", "u/clients/c", {"b": "2"}),
    ]
    assert listener.read_all == 0
    listener.watcher.stop()
    await write_config(writer, "topics/t", {"a": "2"})
    await listener.runtime.close()
    assert len(listener.heard) == 2


async def test_watcher_reads_everything_when_changes_were_deleted_unread(
    ensemble: Ensemble,
) -> None:
    """It was disconnected for longer than they are kept, or another broker's clock is fast."""
    store, writer = await ensemble.open(), await ensemble.open()
    await make_paths(store, [znodes.CONFIG_CHANGES])
    await write_config(writer, "topics/before", {"a": "1"})
    listener = Listener(store)
    await listener.watcher.start()
    await delete_unread(writer)
    await eventually_async(lambda: listener.read_all == 1)
    assert listener.heard == []
    await write_config(writer, "topics/t", {"a": "1"})
    await eventually_async(lambda: len(listener.heard) == 1)
    assert listener.read_all == 1
    listener.watcher.stop()
    await listener.runtime.close()


async def test_watcher_reads_everything_when_the_numbers_start_again() -> None:
    store, listener = await embedded()
    await write_config(store, "topics/t", {"a": "1"})
    await write_config(store, "topics/t", {"a": "2"})
    await settle()
    for name in await store.children(znodes.CONFIG_CHANGES):
        await store.delete(f"{znodes.CONFIG_CHANGES}/{name}")
    await store.delete(znodes.CONFIG_CHANGES)
    await settle()
    await write_config(store, "topics/u", {"a": "1"})
    await settle()
    assert [name for _, name, _ in listener.heard] == ["t", "u"]
    assert listener.read_all == 1


async def embedded() -> tuple[ZnodeStore, Listener]:
    ensemble = EmbeddedEnsemble()
    store = await ensemble.open()
    await make_paths(store, [znodes.CONFIG_CHANGES])
    listener = Listener(store)
    await listener.watcher.start()
    return store, listener


async def test_listener_that_fails_hears_the_next_change() -> None:
    store, listener = await embedded()
    listener.fail = True
    await write_config(store, "topics/t", {"a": "1"})
    await settle()
    await write_config(store, "topics/u", {"a": "1"})
    await settle()
    assert [name for _, name, _ in listener.heard] == ["t", "u"]


async def test_changes_that_pile_up_are_notified_with_their_last_state() -> None:
    store, listener = await embedded()
    for value in ("1", "2", "3"):
        await write_config(store, "topics/t", {"a": value})
    await settle()
    assert listener.heard == [("topics", "t", {"a": "3"})]


async def test_other_tasks_run_while_many_changes_are_notified() -> None:
    store = await EmbeddedEnsemble().open()
    await make_paths(store, [znodes.CONFIG_CHANGES])
    taken: list[str] = []

    async def take_all() -> None:
        pytest.fail("nothing was missed")

    watcher = ConfigChangeWatcher(
        store, ManualRuntime(), lambda _kind, name, _properties: taken.append(name), take_all
    )
    await watcher.start()
    changes = [encode_config_change(f"topics/t{number}") for number in range(50)]
    await store.multi(
        [CreateOp(znodes.CONFIG_CHANGE_PREFIX, each, sequential=True) for each in changes]
    )
    seen = [0]
    while len(taken) < 50:
        await asyncio.sleep(0)
        seen.append(len(taken))
    assert max(after - before for before, after in pairwise(seen)) <= ENTITIES_PER_READ
    assert taken == [f"t{number}" for number in range(50)]
    watcher.stop()


@pytest.mark.parametrize("how", [BEFORE, AFTER])
async def test_change_that_could_not_be_read_is_read_again(how: str) -> None:
    """The watch has fired, and does not fire again: nothing else changes."""
    at = 1
    while True:
        inner = EmbeddedStore()
        await inner.connect()
        await make_paths(inner, [znodes.CONFIG_CHANGES])
        store = InterruptedStore(inner)
        listener = Listener(cast("ZnodeStore", store))
        await listener.watcher.start()
        store.interrupt(at, how)
        await write_config(inner, "topics/t", {"a": "1"})
        await settle()
        was_interrupted = store.is_past
        listener.runtime.advance(RETRY_MS)
        await settle()
        assert listener.heard[-1:] == [("topics", "t", {"a": "1"})], f"interrupted at call {at}"
        listener.watcher.stop()
        listener.runtime.advance(RETRY_MS)
        await listener.runtime.close()
        await inner.close()
        if not was_interrupted:
            break
        at += 1
    assert at > 3, "the changes, their nodes and the configuration are read"


@pytest.fixture
def no_clock() -> Iterator[None]:
    with endless_turns():
        yield


@pytest.mark.usefixtures("no_clock")  # the test counts turns of the loop
async def test_nothing_is_heard_after_a_stop_wherever_the_reading_is() -> None:
    heard_before: set[int] = set()
    for turns in range(40):
        store, listener = await embedded()
        for number in range(ENTITIES_PER_READ + 1):  # two readings
            await write_config(store, f"topics/t{number}", {"a": "1"})
        for _ in range(turns):
            await asyncio.sleep(0)
        listener.watcher.stop()
        heard = list(listener.heard)
        heard_before.add(len(heard))
        await settle()
        await write_config(store, "topics/t", {"a": "1"})
        await settle()
        assert listener.heard == heard, f"stopped after {turns} turns"
        assert not listener.runtime.failures
    assert heard_before == set(range(ENTITIES_PER_READ + 2)), "stopped before, between and after"


async def test_malformed_change_is_skipped() -> None:
    store, listener = await embedded()
    await store.create(znodes.CONFIG_CHANGE_PREFIX, b"{", sequential=True)
    old = b'{"version":1,"entity_type":"clients","entity_name":"c"}'
    await store.create(znodes.CONFIG_CHANGE_PREFIX, old, sequential=True)
    await settle()
    assert listener.heard == [("clients", "c", {})]


@pytest.mark.parametrize(
    "entity",
    [
        *("", "/", "topics", "topics/", "users/%FF", "users/a%zz", "clients/%C3", "None/None"),
        *("users/a/clients", "users/a/clients/", "users/a/clients/b/c", "users/a/x/b", "nothing/x"),
        *("clients/" + "a" * 40_000, "users/a/clients/" + "%C3%BC" * 20_000),
        *("clients/a/clients/b", "topics/a/b", "users/%FF/clients/a", "changes"),
    ],
)
async def test_a_change_of_nothing_is_named_and_skipped(
    entity: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Nobody has such a name; the listener would take it for another one, or fail."""
    store, listener = await embedded()
    for each in (entity, "clients/c"):
        await store.create(znodes.CONFIG_CHANGE_PREFIX, encode_config_change(each), sequential=True)
    await settle()
    assert listener.heard == [("clients", "c", {})]
    assert "Ignoring /config/changes/config_change_0000000000: it names no entity" in caplog.text


async def test_names_that_are_nobodys_are_left_out(
    store: ZnodeStore, caplog: pytest.LogCaptureFixture
) -> None:
    for path in ("/config/users/%FF", "/config/users/a/clients/%zz", "/config/users/%C3%BC"):
        await make_paths(store, [path])
    assert sorted(await entities_of(store, "users")) == ["users/%C3%BC", "users/a"]
    assert "Ignoring /config/users/%FF" in caplog.text
    assert "Ignoring /config/users/a/clients/%zz" in caplog.text


async def test_old_changes_are_removed() -> None:
    store, listener = await embedded()
    await write_config(store, "topics/t", {"a": "1"})
    await settle()
    (stat,) = [
        await store.exists(f"{znodes.CONFIG_CHANGES}/{name}")
        for name in await store.children(znodes.CONFIG_CHANGES)
    ]
    assert stat is not None
    listener.runtime.time_ms = stat.ctime_ms + CHANGE_EXPIRATION_MS + 1
    change = encode_config_change("topics/t")
    await store.create(znodes.CONFIG_CHANGE_PREFIX, change, sequential=True)
    await settle()
    names = await store.children(znodes.CONFIG_CHANGES)
    assert "config_change_0000000000" not in names


@pytest.mark.parametrize("how", [BEFORE, AFTER])
async def test_change_whose_response_is_lost_has_the_effect_of_one(how: str) -> None:
    """Wherever the connection is lost; the second loss is the caller's."""
    at = 1
    while True:
        inner = EmbeddedStore()
        await inner.connect()
        await make_paths(inner, [znodes.CONFIG_CHANGES, "/config/topics/t"])
        await inner.set("/config/topics/t", encode_config({"list": "a"}))
        store = cast("ZnodeStore", InterruptedStore(inner))
        store.interrupt(at, how)  # type: ignore[attr-defined]

        async def append(before: dict[str, str]) -> dict[str, str]:
            return {"list": ",".join([*before["list"].split(","), "b"][:2])}

        try:
            await change_config(store, "topics/t", append)
        except ConnectionLost:
            assert at == 1, "a read of the real store is repeated there"
        else:
            assert await read_config(inner, "topics/t") == {"list": "a,b"}
            # What is applied is written again: only a response says that it is durable.
            assert 1 <= len(await inner.children(znodes.CONFIG_CHANGES)) <= 2
        was_interrupted = store.is_past  # type: ignore[attr-defined]
        await inner.close()
        if not was_interrupted:
            break
        at += 1
    assert at > 2, "it is read and written"


@pytest.mark.parametrize("how", [BEFORE, AFTER])
async def test_a_user_without_settings_is_never_taken_for_a_damaged_one(how: str) -> None:
    """Wherever the connection is lost while the last settings below the user are removed."""
    at, was_interrupted = 1, True
    while was_interrupted:
        inner = EmbeddedStore()
        await inner.connect()
        await make_paths(inner, [znodes.CONFIG_CHANGES])
        await write_config(inner, "users/u/clients/c", {"producer_byte_rate": "1"})
        store = cast("ZnodeStore", InterruptedStore(inner))
        store.interrupt(at, how)  # type: ignore[attr-defined]
        with suppress(ConnectionLost):
            await write_config(store, "users/u/clients/c", {})
        assert await read_entities(inner, ["users/u"]) == {"users/u": {}}
        was_interrupted = store.is_past  # type: ignore[attr-defined]
        if not was_interrupted:
            assert await inner.children("/config/users") == []
        await inner.close()
        at += 1
    assert at > 4, "it is read and written several times"


@pytest.mark.parametrize(
    "data",
    [
        b'{"version":1,"config":{"SCRAM-SHA-256":"stored_key=SECRET,server_key=SECRET"',
        b'{"version":2,"config":{"SCRAM-SHA-256":"stored_key=SECRET,server_key=SECRET"}}',
        b'["SECRET"]',
        b'"SECRET"',
    ],
)
async def test_no_error_quotes_the_credentials_of_a_damaged_znode(
    data: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    """The health page shows it, and clients get it that may not read credentials."""
    store = EmbeddedStore()
    await store.connect()
    await make_paths(store, [znodes.CONFIG_CHANGES, "/config/users"])
    await store.create("/config/users/u", data)
    with pytest.raises(UnreadableConfig, match=r"/config/users/u .*correct the znode") as refused:
        await read_config(store, "users/u")
    assert "SECRET" not in str(refused.value)
    found = (await read_entities(store, ["users/u"]))["users/u"]
    assert isinstance(found, Unreadable)
    assert "SECRET" not in found.problem
    await read_configs(store, ["users/u"])
    assert "SECRET" not in caplog.text
    await store.close()
