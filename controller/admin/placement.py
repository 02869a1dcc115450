"""Replica placement: spreads the replicas of new partitions over brokers and racks.

Mirrors ``assignReplicasToBrokers`` of Kafka's ``AdminUtils``. Without racks, the first replicas are
assigned round-robin from a start, and the others at a distance that is incremented each round, so
that the load of a failed broker is spread over many. With five brokers, ten partitions, three
replicas and start 0:

    broker-0  broker-1  broker-2  broker-3  broker-4
    p0        p1        p2        p3        p4         first replica
    p5        p6        p7        p8        p9
    p4        p0        p1        p2        p3         second
    p8        p9        p5        p6        p7
    p3        p4        p0        p1        p2         third
    p7        p8        p9        p5        p6

With racks, the brokers are ordered so that the rack alternates, and no rack gets a second replica
of a partition before each rack has one.
"""

from collections.abc import Mapping, Sequence

Assignment = dict[int, tuple[int, ...]]


def place(
    brokers: Mapping[int, str | None],
    partitions: int,
    replication_factor: int,
    *,
    start: int,
    shift: int,
    first_partition: int = 0,
) -> Assignment:
    """Replicas of ``partitions`` partitions, numbered from ``first_partition``.

    ``brokers`` maps ids to racks; racks are used only if all brokers have one. ``start`` and
    ``shift`` are numbers from zero up, random for new topics. The replication factor is at most the
    number of brokers.
    """
    if brokers and all(rack is not None for rack in brokers.values()):
        racks = {broker: str(rack) for broker, rack in brokers.items()}
        return _place_on_racks(racks, partitions, replication_factor, start, shift, first_partition)
    ids = sorted(brokers)
    assignment: Assignment = {}
    for partition in range(first_partition, first_partition + partitions):
        if partition > 0 and partition % len(ids) == 0:
            shift += 1
        first = (partition + start) % len(ids)
        others = (
            ids[_follower(first, shift, each, len(ids))] for each in range(replication_factor - 1)
        )
        assignment[partition] = (ids[first], *others)
    return assignment


def _follower(first: int, shift: int, replica: int, brokers: int) -> int:
    """The index of the broker for follower number ``replica``; never ``first``."""
    return (first + 1 + (shift + replica) % (brokers - 1)) % brokers if brokers > 1 else first


def alternate_racks(racks: Mapping[int, str]) -> list[int]:
    """The broker ids with alternating racks: a1 b1 c1 a2 b2 c2 a3 ..."""
    by_rack: dict[str, list[int]] = {}
    for broker in sorted(racks):
        by_rack.setdefault(racks[broker], []).append(broker)
    waiting = [by_rack[rack] for rack in sorted(by_rack)]
    ordered: list[int] = []
    while waiting:
        ordered.extend(ids.pop(0) for ids in waiting)
        waiting = [ids for ids in waiting if ids]
    return ordered


def _place_on_racks(
    racks: Mapping[int, str],
    partitions: int,
    replication_factor: int,
    start: int,
    shift: int,
    first_partition: int,
) -> Assignment:
    ordered = alternate_racks(racks)
    rack_count = len(set(racks.values()))
    assignment: Assignment = {}
    for partition in range(first_partition, first_partition + partitions):
        if partition > 0 and partition % len(ordered) == 0:
            shift += 1
        first = (partition + start) % len(ordered)
        replicas = [ordered[first]]
        used_racks = {racks[ordered[first]]}
        step = 0
        while len(replicas) < replication_factor:
            broker = ordered[_follower(first, shift * rack_count, step, len(ordered))]
            step += 1
            fresh_rack = racks[broker] not in used_racks or len(used_racks) == rack_count
            if fresh_rack and broker not in replicas:
                replicas.append(broker)
                used_racks.add(racks[broker])
        assignment[partition] = tuple(replicas)
    return assignment


def start_after(brokers: Sequence[int], first_replica: int) -> int:
    """The start for added partitions: the broker of the first replica of partition 0."""
    ids = sorted(brokers)
    return next((index for index, broker in enumerate(ids) if broker >= first_replica), 0)
