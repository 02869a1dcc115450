"""A few runs of the kill matrix: a driver, two executors in processes of their own, a real broker.

`make spark-kill-matrix` has the rest: every step, both brokers, workers as processes.
"""

from __future__ import annotations

from pathlib import Path

from tests.doubles.broker_process import BrokerProcess
from tests.spark.kill_matrix import Matrix, all_points, chosen_points, job_environment
from tests.spark.kill_points import KillPoint

# Two executors of one core and 1 GiB each.
MASTER = "local-cluster[2,1,1024]"
POINTS = [
    # In the middle of a transaction; the Python process continues without its executor.
    KillPoint("executor", "Produce", "after", 0, "executor", continues=True),
    # During the driver's commit.
    KillPoint("driver", "TxnOffsetCommit", "after", 0, "executor", slow=True),
    # Decided, and no transaction committed yet.
    KillPoint("driver", "EndTxn", "after", 0, "driver"),
]


def test_killed_processes_lose_and_double_no_row(tmp_path: Path, broker: BrokerProcess) -> None:
    work = tmp_path / "kills"
    work.mkdir()
    matrix = Matrix(work, broker.bootstrap, job_environment(work))
    for point in POINTS:
        matrix.add(point)
    matrix.execute(MASTER)
    assert not matrix.failures()


def test_the_matrix_has_every_step_and_a_seed_chooses() -> None:
    points = all_points()
    assert len(set(points)) == len(points)
    for at, victim in (("executor", "executor"), ("driver", "driver"), ("driver", "executor")):
        assert [point for point in points if (point.at, point.victim) == (at, victim)]
    assert chosen_points(100, 1) == chosen_points(100, 1)
    assert chosen_points(100, 1) != chosen_points(100, 2)
    steps = {point.describe().split(",")[0] for point in points}
    assert {point.describe().split(",")[0] for point in chosen_points(len(points), 5)} == steps
