"""The order of brokers on the screen of `ottla status`."""

from __future__ import annotations

from typing import Any

from ottla.cli.broker_status import BrokerStatus
from ottla.cli.status import _place, _worker


def status(broker_id: int, **document: Any) -> BrokerStatus:
    return BrokerStatus(f"host:{broker_id}", {"broker_id": broker_id, **document})


def test_workers_of_a_machine_stand_together() -> None:
    states = {
        1: status(1, machine="b", worker=2),
        2: status(2, machine="a", worker=1),
        3: status(3),
        4: status(4, machine="b", worker=1),
        5: status(5, machine="a", worker=2),
    }
    # The state of the last is not known: as if it had a machine for itself.
    assert sorted([*states, 6], key=lambda each: _place(states, each)) == [3, 6, 2, 5, 4, 1]
    assert [_worker(states.get(each)) for each in (1, 3, 6)] == ["2 of b", None, None]
