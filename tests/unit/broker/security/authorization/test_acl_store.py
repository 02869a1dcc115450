"""ACLs in the tree: read at the start, followed, changed by several brokers at once."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from typing import Any

import pytest

from ottla.broker.config.unusable_znodes import UnusableZnodes
from ottla.broker.runtime.tasks import spawn
from ottla.broker.security.authorization.acl_rules import AclRules
from ottla.broker.security.authorization.acl_store import RESOURCES_AT_ONCE, AclStore
from ottla.broker.security.authorization.acl_types import Operation, ResourceType
from ottla.controller.runtime import LoopRuntime
from ottla.controller.tree.embedded_store import EmbeddedStore
from ottla.controller.tree.store import NotPermitted, make_paths, set_or_create
from ottla.controller.tree.znodes_security import (
    ACL_PATHS,
    LITERAL,
    PREFIXED,
    Acl,
    AclResource,
    acl_change_prefix,
    acl_path,
    decode_acls,
    encode_acl_change,
    encode_acls,
)
from ottla.protocol.errors import KafkaError
from tests.doubles.eventually import eventually_async
from tests.doubles.forbidden_znodes import ForbiddenZnodes
from tests.doubles.interrupted_store import AFTER, BEFORE, InterruptedStore
from tests.doubles.znode_entities import delete_unread

TOPIC = AclResource(LITERAL, "Topic", "t")
PREFIX = AclResource(PREFIXED, "Group", "g")
ONE, TWO = Acl("User:a", "Allow", "Read", "*"), Acl("User:b", "Deny", "All", "10.0.0.1")


async def opened(store: Any, unusable: UnusableZnodes | None = None) -> tuple[AclStore, AclRules]:
    rules = AclRules()
    acls = AclStore(store, LoopRuntime(spawn), rules, unusable or UnusableZnodes())
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


UNREADABLE = {
    "garbage": b"{not json",
    "empty": b"",
    "a newer version": encode_acls([ONE]).replace(b'"version":1', b'"version":2'),
    "no right": None,
}


def allowed(rules: AclRules, name: str, who: str = "User:a") -> bool:
    return rules.allows(who, "h", Operation.READ, ResourceType.TOPIC, name, without_acls=True)


@pytest.mark.parametrize("is_restart", [True, False])
@pytest.mark.parametrize("damage", UNREADABLE)
async def test_what_cannot_be_read_is_denied_until_it_is_repaired(
    damage: str, is_restart: bool
) -> None:
    """The resource, or all that a pattern covers, and no other; also without an announcement."""
    store = ForbiddenZnodes()
    await store.connect()
    unusable = UnusableZnodes()
    for resource, covered, other in (
        (TOPIC, ["t"], "u"),
        (AclResource(PREFIXED, "Topic", "pre"), ["pre", "prefix"], "pr"),
        (AclResource(LITERAL, "Topic", "*"), ["t", "x"], None),
    ):
        path, data = acl_path(resource), UNREADABLE[damage]
        acls, rules = await opened(store, unusable)
        await acls.update(resource, frozenset((ONE,)).union)
        assert all(allowed(rules, name) for name in covered)
        if data is None:
            store.forbidden.add(path)
        else:
            await set_or_create(store, path, data)
        if is_restart:
            acls.stop()
            acls, rules = await opened(store, unusable)
        else:
            change = acl_change_prefix(resource.pattern_type)
            await store.create(change, encode_acl_change(resource), sequential=True)
            await eventually_async(lambda path=path: path in unusable.found)
        assert not any(allowed(rules, name) for name in covered)
        assert not rules.allows_any(
            "User:b", "h", Operation.READ, ResourceType.TOPIC, without_acls=False
        )
        assert other is None or allowed(rules, other)
        assert path in unusable.found[path].problem
        with pytest.raises((KafkaError, NotPermitted), match=path.replace("*", ".")):
            await acls.update(resource, frozenset((TWO,)).union)
        assert resource.name in unusable.found[path].effect
        store.forbidden.clear()
        await set_or_create(store, path, encode_acls([ONE]))
        await unusable.look()
        assert all(allowed(rules, name) for name in covered)
        assert rules.of(resource) == {ONE}
        assert not unusable.found
        await acls.update(resource, lambda _: frozenset())
        acls.stop()
    await store.close()


async def test_a_damaged_znode_that_is_deleted_denies_nothing_more() -> None:
    store = EmbeddedStore(None)
    await store.connect()
    await make_paths(store, ACL_PATHS)
    await store.create(acl_path(TOPIC), b"{not json")
    unusable = UnusableZnodes()
    acls, rules = await opened(store, unusable)
    assert not allowed(rules, "t")
    await store.delete(acl_path(TOPIC))
    await unusable.look()
    assert allowed(rules, "t")
    acls.stop()
    await store.close()


async def test_a_damaged_change_is_skipped(caplog: pytest.LogCaptureFixture) -> None:
    store = EmbeddedStore(None)
    await store.connect()
    _, rules = await opened(store)
    with caplog.at_level(logging.ERROR, "ottla.security"):
        await store.create("/kafka-acl-changes/acl_changes_", b"nonsense", sequential=True)
        await set_or_create(store, acl_path(TOPIC), encode_acls([TWO]))
        await store.create("/kafka-acl-changes/acl_changes_", b"Topic:t", sequential=True)
        await until(rules, TOPIC, frozenset((TWO,)))
    assert "Ignoring an ACL change notification" in caplog.text
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
async def test_a_change_whose_response_is_lost_has_the_effect_of_one(how: str) -> None:
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
    # What is applied is written again: only a response says that it is durable.
    assert stat.version == (1 if how == AFTER else 0)
    writer.stop()
    await inner.close()
