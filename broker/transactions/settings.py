"""The settings of the transaction coordinator, each with Kafka's default."""


class TransactionSettings:
    """Immutable by convention; attribute names are Kafka's setting names with the unit last."""

    __slots__ = (
        "transaction_abort_timed_out_transaction_cleanup_interval_ms",
        "transaction_max_timeout_ms",
        "transaction_partition_verification_enable",
        "transaction_remove_expired_transaction_cleanup_interval_ms",
        "transaction_state_log_num_partitions",
        "transactional_id_expiration_ms",
    )

    def __init__(
        self,
        *,
        transaction_max_timeout_ms: int = 900_000,
        transaction_state_log_num_partitions: int = 50,
        transactional_id_expiration_ms: int = 7 * 86_400_000,
        transaction_abort_timed_out_transaction_cleanup_interval_ms: int = 10_000,
        transaction_remove_expired_transaction_cleanup_interval_ms: int = 3_600_000,
        transaction_partition_verification_enable: bool = True,
    ) -> None:
        self.transaction_max_timeout_ms = transaction_max_timeout_ms
        self.transaction_state_log_num_partitions = transaction_state_log_num_partitions
        self.transactional_id_expiration_ms = transactional_id_expiration_ms
        self.transaction_abort_timed_out_transaction_cleanup_interval_ms = (
            transaction_abort_timed_out_transaction_cleanup_interval_ms
        )
        self.transaction_remove_expired_transaction_cleanup_interval_ms = (
            transaction_remove_expired_transaction_cleanup_interval_ms
        )
        self.transaction_partition_verification_enable = transaction_partition_verification_enable
