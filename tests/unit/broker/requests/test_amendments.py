"""Several changes to one response are applied in order."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

from ottla.broker.requests.request_context import amend, amend_in_slices, amend_now
from ottla.broker.runtime.slices import STEPS_PER_SLICE
from ottla.broker.runtime.tasks import spawn
from ottla.protocol.steps import Steps


def test_changes_are_applied_in_order() -> None:
    context: Any = SimpleNamespace(amend=None)
    for number in range(3):
        amend(context, lambda response, number=number: response.append(number))
    response: list[int] = []
    context.amend(response)
    assert response == [0, 1, 2]


def long_change(response: list[int]) -> Steps[None]:
    for _ in range(2 * STEPS_PER_SLICE):
        response.append(0)
        yield


def test_long_changes_are_applied_in_order_too() -> None:
    context: Any = SimpleNamespace(amend=None)
    for change in (lambda response: response.append(1), long_change, long_change):
        amend(context, change)
    amend(context, lambda response: response.append(2))
    response: list[int] = []
    amend_now(context.amend, response)
    assert response == [1, *[0] * 4 * STEPS_PER_SLICE, 2]


async def test_others_run_in_between() -> None:
    response: list[int] = []
    work = spawn(amend_in_slices(long_change, response), name="change")
    await asyncio.sleep(0)
    assert 0 < len(response) <= STEPS_PER_SLICE
    await work
    assert len(response) == 2 * STEPS_PER_SLICE
