"""ACLs in the tree: read at the start, followed, changed by several brokers at once."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from typing import Any

import pytest

from ottla.broker.runtime.tasks import spawn
from ottla.broker.security.authorization.acl_rules import AclRules
from ottla.broker.security.authorization.acl_store import RESOURCES_AT_ONCE, AclStore
from ottla.controller.runtime import LoopRuntime
from ottla.controller.tree.embedded_store import EmbeddedStore
from ottla.controller.tree.store import make_paths, set_or_create
from ottla.controller.tree.znodes_security import (
    ACL_PATHS,
    LITERAL,
    PREFIXED,
    Acl,
    AclResource,
    acl_change_prefix,
    acl_path,
    decode_acls,
    encode_acls,
)
from tests.doubles.eventually import eventually_async
from tests.doubles.interrupted_store import AFTER, BEFORE, InterruptedStore
from tests.doubles.znode_entities import delete_unread

TOPIC = AclResource(LITERAL, "Topic", "t")
PREFIX = AclResource(PREFIXED, "Group", "g")
ONE, TWO = Acl("User:a", "Allow", "Read", "*"), Acl("User:b", "Deny", "All", "10.0.0.1")


async def opened(store: Any) -> tuple[AclStore, AclRules]:
    rules = AclRules()
    acls = AclStore(store, LoopRuntime(spawn), rules)
    await acls.start()
    return acls, rules


async def until(rules: AclRules, resource: AclResource, expected: frozenset[Acl]) -> None:
    await eventually_async(lambda: rules.of(resource) == expected)


async def test_a_change_reaches_every_broker() -> None:
    store = EmbeddedStore(None)
    await store.connect()
    writer, written = await opened(store)
    reader, read = await opened(store)
    await writer.update(TOPIC, frozenset((ONE,)).union)
    assert written.of(TOPIC) == {ONE}
    await until(read, TOPIC, frozenset((ONE,)))
    await reader.update(TOPIC, frozenset((TWO,)).union)
    await until(written, TOPIC, frozenset((ONE, TWO)))
    data, _ = await store.get(acl_path(TOPIC))
    assert decode_acls(acl_path(TOPIC), data) == {ONE, TWO}
    await writer.update(PREFIX, frozenset((ONE,)).union)
    await until(read, PREFIX, frozenset((ONE,)))
    await reader.update(TOPIC, lambda held: held - {ONE, TWO})
    await until(written, TOPIC, frozenset())
    assert await store.exists(acl_path(TOPIC)) is None
    writer.stop()
    reader.stop()
    await store.close()


async def test_all_acls_are_read_again_when_changes_were_missed() -> None:
    store = EmbeddedStore(None)
    await store.connect()
    acls, rules = await opened(store)
    for resource in (TOPIC, PREFIX):
        await acls.update(resource, frozenset((ONE,)).union)
    await store.delete(acl_path(TOPIC))
    await store.set(acl_path(PREFIX), encode_acls(frozenset((TWO,))))
    await delete_unread(store, acl_change_prefix(LITERAL))
    await until(rules, PREFIX, frozenset((TWO,)))
    assert rules.of(TOPIC) == frozenset()
    acls.stop()
    await store.close()


async def test_what_is_there_is_read_at_the_start() -> None:
    store = EmbeddedStore(None)
    await store.connect()
    first, _ = await opened(store)
    await first.update(TOPIC, frozenset((ONE,)).union)
    await first.update(PREFIX, frozenset((TWO,)).union)
    _, rules = await opened(store)
    assert rules.of(TOPIC) == {ONE}
    assert rules.of(PREFIX) == {TWO}
    await store.close()


async def test_concurrent_changes_are_all_kept() -> None:
    store = EmbeddedStore(None)
    await store.connect()
    first, rules = await opened(store)
    second, _ = await opened(store)
    lines = [Acl(f"User:{number}", "Allow", "Read", "*") for number in range(8)]
    await asyncio.gather(
        *(
            (first, second)[number % 2].update(TOPIC, frozenset((line,)).union)
            for number, line in enumerate(lines)
        )
    )
    await until(rules, TOPIC, frozenset(lines))
    await store.close()


async def test_what_cannot_be_read_changes_nothing(caplog: pytest.LogCaptureFixture) -> None:
    store = EmbeddedStore(None)
    await store.connect()
    acls, rules = await opened(store)
    await acls.update(TOPIC, frozenset((ONE,)).union)
    with caplog.at_level(logging.ERROR, "ottla.security"):
        await set_or_create(store, acl_path(TOPIC), b"{not json")
        # Another resource's change is announced, and its neighbour's node is read with it.
        await store.create("/kafka-acl-changes/acl_changes_", b"Topic:t", sequential=True)
        await store.create("/kafka-acl-changes/acl_changes_", b"nonsense", sequential=True)
        await eventually_async(lambda: len(caplog.records) >= 2)
    assert rules.of(TOPIC) == {ONE}
    await set_or_create(store, acl_path(TOPIC), encode_acls([TWO]))
    await store.create("/kafka-acl-changes/acl_changes_", b"Topic:t", sequential=True)
    await until(rules, TOPIC, frozenset((TWO,)))
    await store.close()


async def test_many_acls_are_read_in_slices(monkeypatch: pytest.MonkeyPatch) -> None:
    """Others get the loop between two slices."""
    store = EmbeddedStore(None)
    await store.connect()
    await make_paths(store, ACL_PATHS)
    count = 2 * RESOURCES_AT_ONCE + 1
    for number in range(count):
        path = acl_path(AclResource(LITERAL, "Topic", f"t{number}"))
        await set_or_create(store, path, encode_acls([ONE]))
    sizes: list[int] = []
    turns: list[int] = []
    get_many = store.get_many

    async def counting(paths: Sequence[str]) -> Any:
        if paths and "/Topic/t" in paths[0]:
            sizes.append(len(paths))
            asyncio.get_running_loop().call_soon(turns.append, len(sizes))
        return await get_many(paths)

    monkeypatch.setattr(store, "get_many", counting)
    _, rules = await opened(store)
    assert sizes == [RESOURCES_AT_ONCE, RESOURCES_AT_ONCE, 1]
    assert turns == [1, 2, 3]
    assert all(rules.of(AclResource(LITERAL, "Topic", f"t{number}")) for number in range(count))
    await store.close()


@pytest.mark.parametrize("how", [BEFORE, AFTER])
async def test_a_change_whose_response_is_lost_is_made_once(how: str) -> None:
    inner = EmbeddedStore(None)
    await inner.connect()
    store: Any = InterruptedStore(inner)
    writer, written = await opened(store)
    store.interrupt(2, how)  # it is read, then written
    await writer.update(TOPIC, frozenset((ONE,)).union)
    assert store.is_past
    assert written.of(TOPIC) == {ONE}
    data, stat = await inner.get(acl_path(TOPIC))
    assert decode_acls(acl_path(TOPIC), data) == {ONE}
    assert stat.version == 0
    writer.stop()
    await inner.close()
