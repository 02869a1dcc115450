"""Faults and restarts of a cluster. Each function returns when all replicas are in sync again."""

from __future__ import annotations

import random
import signal
import subprocess
import time
from collections.abc import Callable, Sequence

from tests.compat.system.cluster import (
    BROKER_IDS,
    SESSION_TIMEOUT_MS,
    ZOOKEEPER,
    Cluster,
    host,
    kind_of,
)
from tests.compat.system.verifiable import tool

# Past the session timeout, so that the cluster has to do without.
TROUBLE_S = SESSION_TIMEOUT_MS / 1000 + 6
#: The disk of `lose_syncs` goes back so far; before `lose_all_power` clients write so long.
LOST_SYNCS_S = 10.0
LOAD_S = 20.0
# No more than the disks hold, whatever the brokers can take in that time.
LOAD_RECORDS = 4_000_000
LOAD_TOPIC, LOAD_PARTITIONS = "load", 6
_OTHERS = tuple(map(host, BROKER_IDS))

Trouble = Callable[[Cluster, random.Random], None]


def rolling_restart(cluster: Cluster, choices: random.Random) -> None:
    """SIGTERM and start of each broker, the next one when all replicas are in sync."""
    for broker_id in shuffled(choices):
        _replace(cluster, broker_id, kind_of(cluster.brokers[broker_id]))


def replace_one(cluster: Cluster, choices: random.Random) -> None:
    """A broker is stopped, and one of the other kind started on its data."""
    broker_id = choices.choice(BROKER_IDS)
    cluster.replaced = broker_id
    _replace(cluster, broker_id, cluster.other_kind[kind_of(cluster.brokers[broker_id])])


def replace_rest(cluster: Cluster, choices: random.Random) -> None:
    """The brokers that `replace_one` left, one after the other."""
    kind = kind_of(cluster.brokers[cluster.replaced])
    for broker_id in shuffled(choices):
        if broker_id != cluster.replaced:
            _replace(cluster, broker_id, kind)


def _replace(cluster: Cluster, broker_id: int, kind: str) -> None:
    cluster.brokers[broker_id].stop()
    cluster.start(broker_id, kind)
    cluster.wait_until_in_sync()


def kill_broker(cluster: Cluster, choices: random.Random) -> None:
    """kill -9 of a broker that is not the controller."""
    controller = cluster.controller()
    _kill(cluster, choices.choice([each for each in BROKER_IDS if each != controller]))


def kill_controller(cluster: Cluster, choices: random.Random) -> None:
    """kill -9 of the controller."""
    _kill(cluster, cluster.controller())


def _kill(cluster: Cluster, broker_id: int) -> None:
    kind = kind_of(cluster.brokers[broker_id])
    cluster.brokers[broker_id].kill()
    time.sleep(TROUBLE_S)
    cluster.start(broker_id, kind)
    cluster.wait_until_in_sync()


def part_from_zookeeper(cluster: Cluster, choices: random.Random) -> None:
    """Packets between the controller and ZooKeeper vanish; brokers and clients still reach it."""
    cluster.cut(cluster.controller(), [ZOOKEEPER])
    _wait_and_heal(cluster)


def part_from_brokers(cluster: Cluster, choices: random.Random) -> None:
    """Packets between a broker and the other brokers vanish; ZooKeeper and clients reach it."""
    cluster.cut(choices.choice(BROKER_IDS), _OTHERS)
    _wait_and_heal(cluster)


def isolate(cluster: Cluster, choices: random.Random) -> None:
    """A broker is parted from brokers and ZooKeeper; clients still reach it."""
    cluster.cut(choices.choice(BROKER_IDS), (*_OTHERS, ZOOKEEPER))
    _wait_and_heal(cluster)


def fill_disk(cluster: Cluster, choices: random.Random) -> None:
    """The disk of a broker is full (ENOSPC); a broker that ends is started when there is room."""
    cluster.fill_disk(choices.choice(BROKER_IDS))
    _wait_and_heal(cluster)


def pause_broker(cluster: Cluster, choices: random.Random) -> None:
    """SIGSTOP of a broker for longer than its session, then SIGCONT."""
    cluster.signal(choices.choice(BROKER_IDS), signal.SIGSTOP)
    _wait_and_heal(cluster)


def pause_zookeeper(cluster: Cluster, choices: random.Random) -> None:
    """SIGSTOP of ZooKeeper for longer than the sessions, then SIGCONT."""
    cluster.zookeeper.pause()
    time.sleep(TROUBLE_S)
    cluster.zookeeper.resume()
    cluster.heal()


def lose_power(cluster: Cluster, choices: random.Random) -> None:
    """A broker's machine loses its power: what it had not synced is gone."""
    broker_id = choices.choice(BROKER_IDS)
    cluster.kill([broker_id])
    cluster.disks[broker_id].lose_power()
    _wait_and_heal(cluster)


def lose_syncs(cluster: Cluster, choices: random.Random) -> None:
    """A broker's machine loses its power, and its disk all that was synced in the last seconds."""
    broker_id = choices.choice(BROKER_IDS)
    cluster.disks[broker_id].keep_state()
    time.sleep(LOST_SYNCS_S)
    cluster.kill([broker_id])
    cluster.disks[broker_id].lose_syncs()
    _wait_and_heal(cluster)


def lose_all_power(cluster: Cluster, choices: random.Random) -> None:
    """All brokers lose their power at the same moment, with log.flush.interval.messages=1."""
    cluster.sync_each_record(True)
    time.sleep(LOST_SYNCS_S)
    cluster.kill(BROKER_IDS)
    for broker_id in BROKER_IDS:
        cluster.disks[broker_id].lose_power()
    _wait_and_heal(cluster)
    cluster.sync_each_record(False)


def _wait_and_heal(cluster: Cluster) -> None:
    time.sleep(TROUBLE_S)
    cluster.heal()


def saturate(cluster: Cluster, choices: random.Random) -> None:
    """A producer without a limit (ProducerPerformance) beside the clients."""
    cluster.create_topic(LOAD_TOPIC, LOAD_PARTITIONS)
    command = tool(
        cluster,
        "ProducerPerformance",
        *("--topic", LOAD_TOPIC, "--num-records", str(LOAD_RECORDS), "--record-size", "100"),
        *("--throughput", "-1", "--producer-props", f"bootstrap.servers={cluster.bootstrap}"),
        *("acks=1", "enable.idempotence=false"),
    )
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        time.sleep(LOAD_S)
    finally:
        process.kill()
        process.wait()
    cluster.wait_until_in_sync()
    cluster.delete_topic(LOAD_TOPIC)


def shuffled(choices: random.Random) -> Sequence[int]:
    return choices.sample(BROKER_IDS, len(BROKER_IDS))


TROUBLES: dict[str, Trouble] = {
    "rolling restart": rolling_restart,
    "kill -9 of a broker": kill_broker,
    "kill -9 of the controller": kill_controller,
    "controller parted from ZooKeeper": part_from_zookeeper,
    "broker parted from brokers": part_from_brokers,
    "broker isolated": isolate,
    "disk full": fill_disk,
    "SIGSTOP of a broker": pause_broker,
    "SIGSTOP of ZooKeeper": pause_zookeeper,
    "power failure of a broker": lose_power,
    "power failure of a broker, syncs lost": lose_syncs,
    "power failure of all brokers, each record synced": lose_all_power,
    "saturating load": saturate,
}
#: From three brokers of Kafka to three of Ottla and back.
UPGRADE: dict[str, Trouble] = {
    "first broker to Ottla": replace_one,
    "kill -9, one of three is Ottla": kill_broker,
    "the others to Ottla": replace_rest,
    "rolling restart, all are Ottla": rolling_restart,
    "first broker back to Kafka": replace_one,
    "kill -9, one of three is Kafka": kill_controller,
    "the others back to Kafka": replace_rest,
}
