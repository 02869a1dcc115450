"""Share consumers at work while brokers are killed: three brokers, kill -9 of one every 20 seconds.

    python -m tests.chaos.share [--seconds 3600] [--every 20] [--workers 20] [--seed 1]

Ends with every record accepted, rejected or past its delivery limit, or with the records for which
that does not hold: by what the workers saw (`tests.doubles.share_workers`), and by what the share
coordinator has stored (`tests.doubles.stored_share_states`).
"""

from __future__ import annotations

import argparse
import random
import sys
import tempfile
import time
from collections import Counter
from contextlib import nullcontext
from pathlib import Path

from confluent_kafka.admin import AdminClient, NewTopic

from tests.doubles.broker_cluster import BrokerCluster, start_cluster
from tests.doubles.eventually import eventually
from tests.doubles.share_workers import ShareWorkers, produce, values_of, warm
from tests.doubles.stored_share_states import Stored, read_stored

TOPIC = "work"
GROUP = "workers"
PARTITIONS = 6
RECORDS_A_ROUND = 1000
SETTLE_SECONDS = 180.0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=3600.0)
    parser.add_argument("--every", type=float, default=20.0, help="seconds between two kills")
    parser.add_argument("--workers", type=int, default=20)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--keep", type=Path, help="a directory for data and logs, kept")
    options = parser.parse_args()
    with (
        nullcontext(options.keep) if options.keep else tempfile.TemporaryDirectory() as directory,
        start_cluster(
            Path(directory),
            min_insync_replicas=2,
            group_coordinator_rebalance_protocols="classic,consumer,share",
            share_coordinator_state_topic_prune_interval_ms=30_000,
        ) as cluster,
    ):
        problems = run(cluster, options)
    for problem in problems[:50]:
        print(problem)
    print(f"{len(problems)} problems")
    sys.exit(bool(problems))


def run(cluster: BrokerCluster, options: argparse.Namespace) -> list[str]:
    """Plays all rounds; returns what is wrong in the end."""
    bootstrap = cluster.bootstrap
    admin = AdminClient({"bootstrap.servers": bootstrap, "log_level": 0})
    admin.create_topics([NewTopic(TOPIC, PARTITIONS, 3)])[TOPIC].result(60)
    choices = random.Random(options.seed)
    with ShareWorkers(bootstrap, TOPIC, GROUP, options.workers) as workers:

        def begin() -> bool:
            warm(bootstrap, TOPIC, PARTITIONS)
            return workers.history.has_begun(PARTITIONS)

        eventually(begin, lambda: workers.errors[-10:], pause_seconds=0.5)
        values: list[str] = []
        end = time.monotonic() + options.seconds
        while time.monotonic() < end:
            next_kill = time.monotonic() + options.every
            more = values_of(RECORDS_A_ROUND, len(values))
            values += more
            produce(bootstrap, TOPIC, more[: RECORDS_A_ROUND // 2])
            victim = choices.choice(list(cluster.brokers))
            cluster[victim].kill()
            produce(bootstrap, TOPIC, more[RECORDS_A_ROUND // 2 :])
            time.sleep(max(0.0, next_kill - time.monotonic() - options.every / 3))
            cluster[victim].start()
            time.sleep(max(0.0, next_kill - time.monotonic()))
            left = len(workers.history.unfinished(values))
            print(f"killed {victim}: {len(values)} records, {left} in progress", flush=True)
        stored = settled(bootstrap, workers, values)
    print("errors of acknowledgements:", dict(Counter(workers.errors)))
    history = workers.history
    return history.problems(values) + stored.compared(history.by_value(), values)


def settled(bootstrap: str, workers: ShareWorkers, values: list[str]) -> Stored:
    """What is stored when no record is left, or when the time is over."""
    deadline = time.monotonic() + SETTLE_SECONDS
    while True:
        left = workers.history.unfinished(values)
        stored = read_stored(bootstrap, TOPIC, GROUP)
        if not (left or stored.unfinished()) or time.monotonic() > deadline:
            return stored
        time.sleep(2)


if __name__ == "__main__":
    main()
