"""Several changes to one response are applied in order."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from ottla.broker.requests.amendments import amend


def test_changes_are_applied_in_order() -> None:
    context: Any = SimpleNamespace(amend=None)
    for number in range(3):
        amend(context, lambda response, number=number: response.append(number))
    response: list[int] = []
    context.amend(response)
    assert response == [0, 1, 2]
