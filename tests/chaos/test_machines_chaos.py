"""As `test_cluster_chaos.py`, with machines of two workers each: `ottla start --workers 2`.

Workers and supervisors are killed, paused and replaced, and a machine dies as a whole.
`OTTLA_CHAOS_SECONDS` and `OTTLA_CHAOS_SEED` are those of that module.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.chaos.run import TROUBLE_SECONDS, Chaos
from tests.chaos.test_cluster_chaos import SECONDS, SEED
from tests.doubles.chaos_machines import FIRST_IDS, ChaosMachines, start_chaos_machines

pytestmark = pytest.mark.zookeeper


class MachinesChaos(Chaos):
    """Processes of machines."""

    cluster: ChaosMachines

    def all_troubles(self) -> list[Callable[[], None]]:
        """As `Chaos`."""
        return [
            self.kill_worker,
            self.pause_worker,
            self.replace_workers,
            self.pause_supervisor,
            self.kill_supervisor,
            self.kill_machine,
        ]

    def _machine(self) -> int:
        """Every other time that of the controller."""
        controller: int = self.admin.list_topics(timeout=30).controller_id
        if self.random.random() < 0.5 and controller in self.cluster.brokers:
            return self.cluster.brokers[controller].machine
        return self.random.choice(FIRST_IDS)

    def _worker(self) -> int:
        return self.random.choice(self.cluster.workers_of(self._machine()))

    def kill_worker(self) -> None:
        self.cluster.kill_worker(self._worker())
        time.sleep(TROUBLE_SECONDS)

    def pause_worker(self) -> None:
        self.cluster.pause_worker(self._worker())
        time.sleep(TROUBLE_SECONDS)

    def replace_workers(self) -> None:
        """Topics stay available, as those of a rolling restart."""
        self.cluster.replace(self._machine())

    def pause_supervisor(self) -> None:
        """A worker may die meanwhile, which is noticed later."""
        machine = self._machine()
        victim = self.random.choice(self.cluster.workers_of(machine))
        if self.random.random() < 0.5:
            self.cluster.pause_supervisor(machine)
        else:
            self.cluster.kill_worker(victim)
            self.cluster.pause_supervisor(machine)
        time.sleep(TROUBLE_SECONDS)
        self.wait_for_progress("no progress without a supervisor")

    def kill_supervisor(self) -> None:
        self._without_bound(self.cluster.kill_supervisor)

    def kill_machine(self) -> None:
        self._without_bound(self.cluster.kill_machine)

    def _without_bound(self, trouble: Callable[[int], None]) -> None:
        """Two of three replicas may be there: the partition stands still, and loses nothing."""
        self.watch.is_bounded = False
        trouble(self._machine())
        time.sleep(TROUBLE_SECONDS)


def test_nothing_is_lost_on_machines_with_workers(tmp_path: Path) -> None:
    print(f"\nchaos of machines with seed {SEED}")
    with start_chaos_machines(tmp_path) as cluster:
        try:
            MachinesChaos(cluster, SEED).run(SECONDS)
        except BaseException:
            print(cluster.story())
            raise
