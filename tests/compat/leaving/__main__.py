"""From Ottla to Kafka 4.3, with the commands of docs/leaving.md and the real jars.

    python -m tests.compat.leaving             # both ways
    python -m tests.compat.leaving one-broker  # or cluster

The first way begins with one broker without ZooKeeper, the second with three brokers and
ZooKeeper, which are replaced one after the other while clients run. Both lead over Apache Kafka
3.9.1 on the same directories and znodes, a KRaft controller that migrates, and KRaft 3.9.1, to
Kafka 4.3.1. After each step clients see the same records under both isolation levels, committed
offsets, ACLs, SCRAM users, quotas and settings; with Kafka 4.3.1 also the same share groups.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

from tests.compat.leaving import cluster, one_broker

WAYS = {"one-broker": one_broker.walk, "cluster": cluster.walk}


def main() -> None:
    for way in sys.argv[1:] or WAYS:
        print(way, flush=True)
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            try:
                WAYS[way](folder)
            except BaseException:
                for log in sorted([*folder.glob("*.log"), *folder.glob("broker-*/broker.log")]):
                    lines = log.read_text(errors="replace").splitlines()[-25:]
                    print(f"== {log.relative_to(folder)}", "\n".join(lines), sep="\n")
                raise


if __name__ == "__main__":
    main()
