"""Replica placement: spreads the replicas of new partitions over brokers and racks.

Mirrors `assignReplicasToBrokers` of Kafka's `AdminUtils`. Without racks, the first replicas are
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
of a partition before each rack has one. What clients give instead is checked here, too.
"""

from collections.abc import Mapping, Sequence

from ottla.protocol.errors import ErrorCode, KafkaError

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
    """Replicas of `partitions` partitions, numbered from `first_partition`.

    `brokers` maps ids to racks; racks are used only if all brokers have one. `start` and
    `shift` are numbers from zero up, random for new topics. The replication factor is at most the
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
    """The index of the broker for follower number `replica`; never `first`."""
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


def check_factor(factor: int, brokers: int) -> None:
    """Raise KafkaError if there are too few live brokers for this replication factor."""
    if factor <= 0:
        raise KafkaError(
            ErrorCode.INVALID_REPLICATION_FACTOR, "Replication factor must be larger than 0."
        )
    if factor > brokers:
        raise KafkaError(
            ErrorCode.INVALID_REPLICATION_FACTOR,
            f"Replication factor: {factor} larger than available brokers: {brokers}.",
        )


def check_given(assignments: Mapping[int, Sequence[int]]) -> Assignment:
    """The replicas of a new topic as its creator gave them. Raises KafkaError."""
    invalid = ErrorCode.INVALID_REPLICA_ASSIGNMENT
    sizes = {len(replicas) for replicas in assignments.values()}
    if len(sizes) != 1:
        raise KafkaError(invalid, "All partitions should have the same number of replicas")
    if sizes == {0}:
        raise KafkaError(invalid, "A partition needs at least one replica")
    for replicas in assignments.values():
        if len(set(replicas)) != len(replicas):
            raise KafkaError(invalid, f"Duplicate replica assignment found: {dict(assignments)}")
        if any(replica < 0 for replica in replicas):
            raise KafkaError(invalid, f"Invalid broker id in replica list: {list(replicas)}")
    if sorted(assignments) != list(range(len(assignments))):
        raise KafkaError(invalid, "partitions should be a consecutive 0-based integer sequence")
    return {index: tuple(replicas) for index, replicas in assignments.items()}


def check_added(
    assignments: Sequence[Sequence[int]],
    added: int,
    existing: int,
    factor: int,
    available: set[int],
) -> Assignment:
    """The given replicas of partitions that a topic gets: `existing` is how many it has, `factor`
    their number of replicas, `available` the live brokers. Raises KafkaError."""
    invalid = ErrorCode.INVALID_REPLICA_ASSIGNMENT
    unknown = {replica for replicas in assignments for replica in replicas} - available
    if unknown:
        listed = ", ".join(str(each) for each in sorted(unknown))
        raise KafkaError(invalid, f"Unknown broker(s) in replica assignment: {listed}.")
    if len(assignments) != added:
        raise KafkaError(
            invalid,
            f"Increasing the number of partitions by {added} but {len(assignments)} assignments "
            f"provided.",
        )
    for index, replicas in enumerate(assignments, existing):
        if not replicas:
            raise KafkaError(
                invalid, f"Cannot have replication factor of 0 for partition id {index}."
            )
        if len(set(replicas)) != len(replicas):
            listed = ", ".join(str(each) for each in replicas)
            raise KafkaError(
                invalid,
                f"Duplicate brokers not allowed in replica assignment: {listed} for partition id "
                f"{index}.",
            )
    wrong = [index for index, ids in enumerate(assignments, existing) if len(ids) != factor]
    if wrong:
        counts = ", ".join(str(len(assignments[index - existing])) for index in wrong)
        listed = ", ".join(str(index) for index in wrong)
        raise KafkaError(
            invalid,
            f"Inconsistent replication factor between partitions, partition 0 has {factor} while "
            f"partitions [{listed}] have replication factors [{counts}], respectively.",
        )
    return {index: tuple(ids) for index, ids in enumerate(assignments, existing)}
