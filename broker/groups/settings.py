"""The settings of the group coordinator, each with Kafka's default."""


class GroupSettings:
    """Immutable by convention; attribute names are Kafka's setting names with the unit last."""

    __slots__ = (
        "group_consumer_assignors",
        "group_consumer_heartbeat_interval_ms",
        "group_consumer_max_size",
        "group_consumer_migration_policy",
        "group_consumer_session_timeout_ms",
        "group_coordinator_rebalance_protocols",
        "group_initial_rebalance_delay_ms",
        "group_max_session_timeout_ms",
        "group_max_size",
        "group_min_session_timeout_ms",
        "offset_metadata_max_bytes",
        "offsets_retention_check_interval_ms",
        "offsets_retention_ms",
        "offsets_topic_compression_codec",
        "offsets_topic_num_partitions",
    )

    def __init__(
        self,
        *,
        group_min_session_timeout_ms: int = 6_000,
        group_max_session_timeout_ms: int = 1_800_000,
        group_initial_rebalance_delay_ms: int = 3_000,
        group_max_size: int = 2**31 - 1,
        offset_metadata_max_bytes: int = 4_096,
        offsets_topic_num_partitions: int = 50,
        offsets_topic_compression_codec: int = 0,
        offsets_retention_ms: int = 10_080 * 60_000,
        offsets_retention_check_interval_ms: int = 600_000,
        group_consumer_heartbeat_interval_ms: int = 5_000,
        group_consumer_session_timeout_ms: int = 45_000,
        group_consumer_max_size: int = 2**31 - 1,
        group_consumer_assignors: tuple[str, ...] = ("uniform", "range"),
        group_consumer_migration_policy: str = "disabled",
        group_coordinator_rebalance_protocols: frozenset[str] = frozenset(("classic",)),
    ) -> None:
        """`group_consumer_assignors` has names, the preferred one first."""
        self.group_coordinator_rebalance_protocols = group_coordinator_rebalance_protocols
        self.group_consumer_heartbeat_interval_ms = group_consumer_heartbeat_interval_ms
        self.group_consumer_session_timeout_ms = group_consumer_session_timeout_ms
        self.group_consumer_max_size = group_consumer_max_size
        self.group_consumer_assignors = group_consumer_assignors
        self.group_consumer_migration_policy = group_consumer_migration_policy
        self.group_min_session_timeout_ms = group_min_session_timeout_ms
        self.group_max_session_timeout_ms = group_max_session_timeout_ms
        self.group_initial_rebalance_delay_ms = group_initial_rebalance_delay_ms
        self.group_max_size = group_max_size
        self.offset_metadata_max_bytes = offset_metadata_max_bytes
        self.offsets_topic_num_partitions = offsets_topic_num_partitions
        self.offsets_topic_compression_codec = offsets_topic_compression_codec
        self.offsets_retention_ms = offsets_retention_ms
        self.offsets_retention_check_interval_ms = offsets_retention_check_interval_ms

    @property
    def has_consumer_groups(self) -> bool:
        """Whether the consumer group protocol (KIP-848) is enabled."""
        return "consumer" in self.group_coordinator_rebalance_protocols
