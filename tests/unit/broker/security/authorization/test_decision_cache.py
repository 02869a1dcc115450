"""Decisions are kept in two generations."""

from __future__ import annotations

from ottla.broker.requests.request_context import Principal
from ottla.broker.security.authorization.acl_types import Operation, ResourceType
from ottla.broker.security.authorization.decision_cache import (
    GENERATION_SIZE,
    LONGEST_NAME,
    Decision,
    DecisionCache,
)


def reading(name: str | None) -> Decision:
    return Principal("User", "alice"), "10.0.0.1", Operation.READ, ResourceType.TOPIC, name


def test_a_decision_is_kept_until_the_cache_is_cleared() -> None:
    cache = DecisionCache()
    cache.put(reading("a"), True)
    cache.put(reading(None), False)
    assert cache.get(reading("a")) is True
    assert cache.get(reading(None)) is False
    assert cache.get(reading("b")) is None
    cache.clear()
    assert cache.get(reading("a")) is None
    assert len(cache) == 0


def test_many_names_push_out_no_decision_that_is_used() -> None:
    cache = DecisionCache()
    cache.put(reading("used"), True)
    cache.put(reading("unused"), True)
    for number in range(5 * GENERATION_SIZE):
        cache.put(reading(f"name-{number}"), False)
        if number % 1000 == 0:
            assert cache.get(reading("used")) is True
    assert cache.get(reading("unused")) is None
    assert len(cache) <= 2 * GENERATION_SIZE


def test_long_names_are_not_kept() -> None:
    cache = DecisionCache()
    cache.put(reading("x" * (LONGEST_NAME + 1)), True)
    assert len(cache) == 0
