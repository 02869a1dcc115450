"""The settings of the controller, under Kafka's names with underscores, and protocol versions.

`inter.broker.protocol.version` determines the versions of the control requests and the features
that are used, as in Kafka's `ControllerChannelManager`.
"""

from typing import NamedTuple

NEWEST_SUB_VERSION = 99
"""The newest -IVn of a release, for a version without one such as `3.9`."""


class ControllerSettings(NamedTuple):
    """Defaults are Kafka's; dynamic changes make a copy with `_replace`."""

    auto_leader_rebalance_enable: bool = True
    leader_imbalance_check_interval_seconds: int = 300
    leader_imbalance_per_broker_percentage: int = 10
    delete_topic_enable: bool = True
    unclean_leader_election_enable: bool = False
    num_partitions: int = 1
    default_replication_factor: int = 1
    inter_broker_protocol_version: str = "3.9"
    inter_broker_listener_name: str = "PLAINTEXT"
    controller_socket_timeout_ms: int = 30_000
    max_topic_partitions_per_request: int = 100_000
    """The limit of one CreateTopics or CreatePartitions request, for all of its topics: creating
    more blocks the event queue for seconds, or takes all memory."""


def parse_protocol_version(text: str) -> tuple[int, int, int]:
    """`3.9` -> (3, 9, 99), `2.4-IV1` -> (2, 4, 1), `0.10.2-IV0` -> (0, 1002, 0).

    Raises ValueError for anything else. Releases before 1.0 had one more number; it is added to the
    second one, so that versions compare in the order of their release.
    """
    release, separator, sub = text.partition("-IV")
    numbers = [int(part) for part in release.split(".")]
    sub_version = int(sub) if separator else NEWEST_SUB_VERSION
    if numbers[0] == 0:
        minor = numbers[1] * 100 + (numbers[2] if len(numbers) > 2 else 0)
        return 0, minor, sub_version
    return numbers[0], numbers[1] if len(numbers) > 1 else 0, sub_version


class ControlVersions(NamedTuple):
    """The request versions and features of an inter-broker protocol version."""

    leader_and_isr: int
    update_metadata: int
    stop_replica: int
    topic_ids: bool  # 2.8: every topic gets an id
    feature_versioning: bool  # 2.7: KIP-584
    alter_partition: bool  # 2.7-IV2: ISR changes by API, not by notification znodes
    leader_recovery: bool  # 3.2: KIP-704
    feature_znode_version: int  # 2 since 3.3
    broker_znode_version: int


_LEADER_AND_ISR = (
    ((3, 4, 0), 7),
    ((3, 2, 0), 6),
    ((2, 8, 1), 5),
    ((2, 4, 1), 4),
    ((2, 4, 0), 3),
    ((2, 2, 0), 2),
    ((1, 0, 0), 1),
)
_UPDATE_METADATA = (
    ((3, 4, 0), 8),
    ((2, 8, 1), 7),
    ((2, 4, 1), 6),
    ((2, 2, 0), 5),
    ((1, 0, 0), 4),
    ((0, 1002, 0), 3),
    ((0, 1000, 1), 2),
    ((0, 900, 0), 1),
)
_STOP_REPLICA = (((3, 4, 0), 4), ((2, 6, 0), 3), ((2, 4, 1), 2), ((2, 2, 0), 1))
_BROKER_ZNODE = (((2, 7, 0), 5), ((0, 1000, 1), 4))


def _newest(
    table: tuple[tuple[tuple[int, int, int], int], ...], version: tuple[int, int, int], least: int
) -> int:
    return next((newest for since, newest in table if version >= since), least)


def control_versions(inter_broker_protocol_version: str) -> ControlVersions:
    version = parse_protocol_version(inter_broker_protocol_version)
    return ControlVersions(
        leader_and_isr=_newest(_LEADER_AND_ISR, version, 0),
        update_metadata=_newest(_UPDATE_METADATA, version, 0),
        stop_replica=_newest(_STOP_REPLICA, version, 0),
        topic_ids=version >= (2, 8, 0),
        feature_versioning=version >= (2, 7, 0),
        alter_partition=version >= (2, 7, 2),
        leader_recovery=version >= (3, 2, 0),
        feature_znode_version=2 if version >= (3, 3, 0) else 1,
        broker_znode_version=_newest(_BROKER_ZNODE, version, 2),
    )
